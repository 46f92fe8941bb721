"""Which family runs a problem, or whether PyTorch should; and which tiles are worth a measurement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tconv.planner.epilogue_cost import fused_seconds, pass_seconds
from tconv.planner.families import FAMILIES
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.plan import Kernel, Plan, Unplannable
from tconv.planner.pytorch_model import is_well_known, predict_pytorch
from tconv.planner.tuned import Answers, Question, Tuned
from tconv.problem import Problem

#: One in so many of the leading candidates is left to each family, however its model ranks it: models err.
_SHARE = 4
#: How many times faster a side must be predicted to be, where predictions must be trusted: that of PyTorch errs by half
#: as much on most layers.
_CLEARLY = 1.3


def choose(
    question: Question, gpu: Gpu, families: Iterable[str] = FAMILIES, tuned: Answers = MappingProxyType({})
) -> Plan:
    """The plan that answers `question` on `gpu`: the one of `families` that was measured, or is predicted, the fastest.

    Args:
        tuned: what was measured on this GPU.

    Raises:
        Unplannable: no family runs it; the message says what each lacks.
    """
    found = question.found_in(tuned)
    if found is not None and found[1].family in families:
        plan = _measured(question, found[1], gpu)
        if plan is not None:
            return plan
    plans, troubles = [], []
    for name, last in itertools.product(families, _formats(question)):
        try:
            plans.append(FAMILIES[name].plan(question.problem_of(name), gpu, last))
        except Unplannable as trouble:
            troubles.append(str(trouble))
    if not plans:
        raise Unplannable("; ".join(dict.fromkeys(troubles)))
    return min(plans, key=lambda plan: _seconds(question, plan.kernel, plan.predicted_seconds or 0.0, gpu))


def why_pytorch(question: Question, plan: Plan, gpu: Gpu) -> str | None:
    """Why PyTorch's operator should answer `question` rather than `plan`; None if `plan` should, or was measured.

    Where the GPU was measured PyTorch must be clearly faster, by a prediction that was compared with such layers; on
    any other GPU tconv must be. Behind PyTorch's operator, the layer's program is a pass of its own.
    """
    if plan.predicted_seconds is None:
        return None
    theirs = predict_pytorch(question.on_tensor_cores(), gpu, question.channels_last)
    theirs += pass_seconds(question.problem, gpu)
    ours = _seconds(question, plan.kernel, plan.predicted_seconds, gpu)
    times = (
        f"{theirs * 1e3:.3g} ms against {ours * 1e3:.3g} ms of the {plan.kernel.family} family; "
        "tconv tune measures both, TCONV_INSIST=1 takes tconv's"
    )
    if gpu.is_measured:
        faster = is_well_known(question.problem.layer) and theirs * _CLEARLY < ours
        return f"PyTorch's operator is predicted to be faster: {times}" if faster else None
    if ours * _CLEARLY <= theirs:
        return None
    return f"nobody measured {gpu.name}, and PyTorch's operator is not predicted to be {_CLEARLY} times slower: {times}"


def was_slower(question: Question, tuned: Answers, gpu: Gpu) -> str | None:
    """Why what was measured leaves `question` to PyTorch, with its program behind both; None if it does not.

    Our time may be one of the layer alone: then the program's cost is predicted. PyTorch's always is.
    """
    found = question.found_in(tuned)
    if found is None:
        return None
    measured, answer = found
    program = fused_seconds(question.problem, gpu) - fused_seconds(measured.problem, gpu)
    theirs = answer.pytorch_milliseconds / 1e3 + pass_seconds(question.problem, gpu)
    return answer.why_pytorch() if theirs < answer.milliseconds / 1e3 + program else None


def leading(question: Question, gpu: Gpu, first: int) -> list[tuple[Kernel[Any], float]]:
    """The `first` kernels by the models, with the seconds predicted of each; the one that `choose` takes is in front.

    A quarter of them, or an equal share if there are more than four, is left to each family that runs the problem; at
    least one.
    """
    by_family = [_expected(question, name, gpu, first) for name in FAMILIES]
    answering = sum(map(bool, by_family))
    share = max(1, min(math.ceil(first / _SHARE), first // max(1, answering)))
    kept = [candidate for candidates in by_family for candidate in candidates[:share]]
    rest = [candidate for candidates in by_family for candidate in candidates[share:]]
    others = sorted(rest, key=lambda pair: pair[1])[: max(0, first - len(kept))]
    return sorted([*kept, *others], key=lambda pair: pair[1])


def reads_channels_last(plan: Plan) -> bool:
    """Whether its input and output are channels_last; else they are contiguous."""
    return FAMILIES[plan.kernel.family].reads_channels_last(plan.kernel)


def replan(problem: Problem, kernel: Kernel[Any], gpu: Gpu) -> Plan | None:
    """The plan that runs `problem` by a kernel that was chosen for its layer at other sizes; None if that cannot be.

    Raises:
        Unplannable: the grid would be too large.
    """
    return FAMILIES[kernel.family].replan(problem, kernel, gpu)


def runs_on(family: str, problem: Problem, gpu: Gpu, arch: str) -> bool:
    """Whether a family runs `problem` on a GPU like `gpu` of another arch."""
    return FAMILIES[family].why_not(problem, replace(gpu, arch=arch)) is None


def _measured(question: Question, answer: Tuned, gpu: Gpu) -> Plan | None:
    """The plan with the measured tile; None if the planner would not consider that tile, so that it is of others."""
    problem = question.problem_of(answer.family)
    of_formats = (FAMILIES[answer.family].considered(problem, gpu, last) for last in _formats(question))
    layer = next((found.layer for found in of_formats if found is not None and found.has(answer.tile)), None)
    if layer is None:
        return None
    try:
        plan = replan(problem, Kernel(answer.family, layer, answer.tile), gpu)
    except Unplannable:
        return None
    return None if plan is None else replace(plan, reasons=(answer.why(),))


def _expected(question: Question, family: str, gpu: Gpu, first: int) -> list[tuple[Kernel[Any], float]]:
    """So many of its kernels, the fastest first, with the seconds that are to be expected of each."""
    of_formats = (FAMILIES[family].considered(question.problem_of(family), gpu, last) for last in _formats(question))
    found = (candidates.first(first) for candidates in of_formats if candidates is not None)
    leading = list(dict.fromkeys(candidate.kernel for of_format in found for candidate in of_format))
    costs = [FAMILIES[family].cost(question.problem_of(family), kernel, gpu).seconds for kernel in leading]
    expected = [
        (kernel, _seconds(question, kernel, float(cost), gpu)) for kernel, cost in zip(leading, costs, strict=True)
    ]
    return sorted(expected, key=lambda pair: pair[1])[:first]


def _formats(question: Question) -> tuple[bool, ...]:
    """Whether kernels read and write channels_last: both, where copies around contiguous ones might be worth it."""
    return (True, False) if question.channels_last else (False,)


def _seconds(question: Question, kernel: Kernel[Any], predicted: float, gpu: Gpu) -> float:
    """What is to be expected of a kernel with the copies around one that does not read and write channels_last."""
    if not question.channels_last or FAMILIES[kernel.family].reads_channels_last(kernel):
        return predicted
    return predicted + 2 * SHORTEST_SECONDS + 3 * question.problem.bytes_moved / gpu.copy_bandwidth
