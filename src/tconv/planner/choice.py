"""Which family runs a problem, or whether PyTorch should; and which tiles are worth a measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args

from tconv.planner import mma_shape
from tconv.planner.direct import plan_direct, representative
from tconv.planner.direct_shape import launch_direct, needs_wide_index
from tconv.planner.gpu import Gpu
from tconv.planner.mma import computes, plan_mma
from tconv.planner.mma_shape import launch_mma
from tconv.planner.plan import Family, Kernel, MmaTile, Plan, Unplannable
from tconv.planner.pytorch_model import is_well_known, predict_pytorch
from tconv.planner.ranking import Ranked, kernels, ranked
from tconv.planner.tuned import Answers, Question, Tuned
from tconv.problem import Precision, Problem

FAMILIES: tuple[Family, ...] = get_args(Family)
#: One in so many of the leading candidates is left to each family, however its model ranks it: models err.
_SHARE = 4
#: How many times faster a side must be predicted to be, where predictions must be trusted: that of PyTorch errs by half
#: as much on most layers.
_CLEARLY = 1.3


def launch(problem: Problem, kernel: Kernel[Any], gpu: Gpu) -> Plan | None:
    """The plan that runs `problem` by a kernel that was chosen for its layer at other sizes; None if that cannot be.

    Raises:
        Unplannable: the grid would be too large.
    """
    if kernel.family == "direct":
        wide = needs_wide_index(problem, kernel.tile)
        return launch_direct(problem, replace(kernel, wide_index=wide), gpu)
    if not computes(kernel, problem):
        return None
    wide = mma_shape.needs_wide_index(problem, kernel.layer, kernel.tile)
    return launch_mma(problem, replace(kernel, wide_index=wide), gpu)


def choose(
    problem: Problem,
    gpu: Gpu,
    families: Sequence[Family] = FAMILIES,
    tensor_core_precision: Precision | None = None,
    channels_last: bool = False,
    tuned: Answers = MappingProxyType({}),
) -> Plan:
    """The plan of `problem` on `gpu`: the one of `families` that was measured, or else is predicted, to be the fastest.

    Args:
        tensor_core_precision: of families that run on tensor cores, where it is not the layer's own: CUDA cores gain
            nothing from TF32.
        channels_last: how input and output lie in memory. A family that cannot read and write that has them copied.
        tuned: what was measured on this GPU.

    Raises:
        Unplannable: no family runs it; the message says what each lacks.
    """
    question = Question(problem, tensor_core_precision, channels_last)
    answer = tuned.get(question)
    if answer is not None and answer.family in families:
        plan = _measured(question, answer, gpu)
        if plan is not None:
            return plan
    plans, troubles = [], []
    for family in families:
        asked = question.problem_of(family)
        try:
            plans.append(plan_mma(asked, gpu, channels_last) if family == "mma" else plan_direct(asked, gpu))
        except Unplannable as trouble:
            troubles.append(str(trouble))
    if not plans:
        raise Unplannable("; ".join(troubles))
    return min(plans, key=lambda plan: _seconds(question, plan.kernel, plan.predicted_seconds or 0.0, gpu))


def why_pytorch(question: Question, plan: Plan, gpu: Gpu) -> str | None:
    """Why PyTorch's operator should answer `question` rather than `plan`; None if `plan` should, or was measured.

    Where the GPU was measured PyTorch must be clearly faster, by a prediction that was compared with such layers; on
    any other GPU tconv must be.
    """
    if plan.predicted_seconds is None:
        return None
    alike = replace(question, problem=representative(question.problem))
    theirs = predict_pytorch(alike.problem_of("mma"), gpu, question.channels_last)
    ours = _seconds(question, plan.kernel, plan.predicted_seconds, gpu)
    times = (
        f"{theirs * 1e3:.3g} ms against {ours * 1e3:.3g} ms of the {plan.kernel.family} family for sizes like these; "
        "tconv tune measures both, TCONV_INSIST=1 takes tconv's"
    )
    if gpu.is_measured:
        faster = is_well_known(question.problem.layer) and theirs * _CLEARLY < ours
        return f"PyTorch's operator is predicted to be faster: {times}" if faster else None
    if ours * _CLEARLY <= theirs:
        return None
    return f"nobody measured {gpu.name}, and PyTorch's operator is not predicted to be {_CLEARLY} times slower: {times}"


def leading(question: Question, gpu: Gpu, first: int) -> list[tuple[Kernel[Any], float]]:
    """The `first` kernels by the models, with the seconds predicted of each; the one that `choose` takes is in front.

    A quarter of them, and at least one, is left to each family that runs the problem.
    """
    by_family = [_expected(question, family, gpu) for family in FAMILIES]
    share = math.ceil(first / _SHARE)
    kept = [candidate for candidates in by_family for candidate in candidates[:share]]
    rest = [candidate for candidates in by_family for candidate in candidates[share:]]
    others = sorted(rest, key=lambda pair: pair[1])[: max(0, first - len(kept))]
    return sorted([*kept, *others], key=lambda pair: pair[1])


def reads_channels_last(plan: Plan) -> bool:
    """Whether its input and output are channels_last; else they are contiguous."""
    return _reads_channels_last(plan.kernel)


def _measured(question: Question, answer: Tuned, gpu: Gpu) -> Plan | None:
    """The plan with the measured tile; None if the planner would not consider that tile, so that it is of others."""
    problem = question.problem_of(answer.family)
    considered = kernels(problem, answer.family, gpu, question.channels_last)
    kernel = next((kernel for kernel in considered if kernel.tile == answer.tile), None)
    try:
        plan = None if kernel is None else launch(problem, kernel, gpu)
    except Unplannable:
        return None
    return None if plan is None else replace(plan, reasons=(answer.why(),))


def _expected(question: Question, family: Family, gpu: Gpu) -> list[tuple[Kernel[Any], float]]:
    def seconds(candidate: Ranked) -> float:
        return _seconds(question, candidate.kernel, candidate.cost.seconds, gpu)

    found = ranked(question.problem_of(family), family, gpu, question.channels_last)
    return [(candidate.kernel, seconds(candidate)) for candidate in found]


def _seconds(question: Question, kernel: Kernel[Any], predicted: float, gpu: Gpu) -> float:
    """What is to be expected of a kernel, with the copies around one that cannot read and write channels_last."""
    copies = question.channels_last and not _reads_channels_last(kernel)
    if not copies:
        return predicted
    return predicted + 2 * representative(question.problem).bytes_moved / gpu.copy_bandwidth


def _reads_channels_last(kernel: Kernel[Any]) -> bool:
    return isinstance(kernel.tile, MmaTile) and bool(kernel.tile.channels_last)
