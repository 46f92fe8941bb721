"""Runs cases, in the emulator or on a GPU, and compares every element with float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from random_cases import Case, Storage
from torch import Tensor

import tconv
from tconv.dispatch import decide
from tconv.emulator import EmulatorError, Launch, Mode, run
from tconv.evaluation.bits import same_bytes
from tconv.evaluation.comparison import Worst as Furthest
from tconv.evaluation.comparison import further, worst
from tconv.evaluation.draws import draw, non_contiguous, offset_storage
from tconv.evaluation.poison import poisoned
from tconv.evaluation.reference import Operands, exact, rounded_tf32
from tconv.evaluation.tolerance import TF32_OPERANDS, Tolerance, half_ulp
from tconv.kernels import source
from tconv.memory import aligned, laid_out
from tconv.planner import (
    COL2IM,
    COL2IM_ROWS,
    COL2IM_WGMMA,
    DIRECT,
    FAMILIES,
    MMA,
    WGMMA,
    Family,
    Gpu,
    Kernel,
    Plan,
    Unplannable,
)
from tconv.planner.col2im import why_not_col2im
from tconv.planner.col2im_rows import why_not_col2im_rows
from tconv.planner.col2im_wgmma import why_not_col2im_wgmma
from tconv.planner.wgmma import why_not_wgmma
from tconv.problem import TF32
from tconv.sandbox.emulated import launches

_CPU = torch.device("cpu")
#: Elements before and behind a result on the GPU that must stay as they are: a multiple of an allocation's alignment.
_GUARD = 1024
_LONGEST_MESSAGE = 600
#: A program of the emulator takes seconds, unless a kernel has no end.
_LONGEST_RUN_S = 90
#: Cases that end their program: after so many of one unit, the rest of the unit is left out.
_ENOUGH_ENDED = 3
#: Of the tiles of a family's model, one of so many is taken; of col2im, whose blocks are many, for so few inputs.
_PREFERRED, _FEW_INPUTS = 20, 4096
_HOPPER = 90


@dataclass(frozen=True)
class Failure:
    """A case that went wrong, and how, in one line or a few."""

    case: Case
    what: str


@dataclass
class Report:
    """How many cases ran on tconv's kernels, how many had none (an empty batch, a refusal), and what went wrong."""

    ran: int = 0
    without_kernel: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.ran += other.ran
        self.without_kernel += other.without_kernel
        self.failures += other.failures


def operands_of(case: Case) -> Operands:
    """The tensors of a case, on the CPU, stored as it says."""
    return _stored(draw(case.problem, _CPU, case.seed), case.storage)


def plan_of(case: Case, gpu: Gpu) -> Plan | None:
    """How the case is launched, None where it has no kernel."""
    if case.problem.batch == 0:
        return None
    if case.multiprocessors is not None:
        gpu = replace(gpu, multiprocessors=case.multiprocessors)
    if case.tensor_cores:
        turns = (MMA, WGMMA, COL2IM, COL2IM_WGMMA, COL2IM_ROWS)
        first = case.seed % len(turns)
        for family in (*turns[first:], *turns[:first]):
            with suppress(Unplannable):
                plan = family.plan(case.problem, gpu) if family is MMA else _preferred(family, case, gpu)
                wide = replace(plan.kernel, wide_index=True)
                return family.plan_with(case.problem, wide, gpu) if case.wide_index else plan
    try:
        plan = DIRECT.plan(case.problem, gpu)
        if not case.wide_index or plan.kernel.wide_index:
            return plan
        return DIRECT.plan_with(case.problem, replace(plan.kernel, wide_index=True), gpu)
    except Unplannable:
        return None


def _preferred(family: Family[Any], case: Case, gpu: Gpu) -> Plan:
    """One of the tiles that the family's model prefers, as the seed says; also where it would gain nothing."""
    layer = case.problem.layer
    few = math.prod(case.problem.input_size) * case.problem.batch <= _FEW_INPUTS
    if family is WGMMA:
        reason = why_not_wgmma(layer)
    elif family is COL2IM_ROWS:
        reason = why_not_col2im_rows(layer)
    else:
        why_not = why_not_col2im if family is COL2IM else why_not_col2im_wgmma
        reason = why_not(layer, 1) or (None if few else "many inputs")
    if family in (WGMMA, COL2IM_WGMMA, COL2IM_ROWS) and gpu.capability != _HOPPER:
        reason = f"{gpu.name} is no Hopper"
    if reason:
        raise Unplannable(reason)
    found, dice = family.candidates(case.problem, gpu), Random(case.seed)
    if found is None:
        raise Unplannable(f"no tile of the {family.name} family fits into shared memory")
    return family.plan_with(case.problem, dice.choice(found.first(_PREFERRED)).kernel, gpu)


def what_is_wrong(case: Case, operands: Operands, y: Tensor) -> str | None:
    """One line about a result, on the CPU, that is not the float64 one within the bounds; None for a right one."""
    problem = case.problem
    layer = problem.layer
    if tuple(y.shape) != problem.output_shape:
        return f"got shape {tuple(y.shape)}, expected {problem.output_shape}"
    tolerance = Tolerance.of(layer, layer.precision)
    factor = tolerance.factor
    x, weight, bias = operands
    if layer.precision in TF32:  # what rounded operands give is known: only the sums may differ from it
        factor -= TF32_OPERANDS
        x, weight = rounded_tf32(x, layer.precision), rounded_tf32(weight, layer.precision)
    found = Furthest()
    for part in exact(Operands(x, weight, bias), problem):
        allowed = factor * part.magnitude + half_ulp(part.result, tolerance.dtype)
        here = worst(part.of(y), part.result, allowed, first=part.samples.start, row=part.rows.start)
        found = further(found, here)
    return found.describe() if found.ratio > 1 else None


def in_emulator(
    cases: Sequence[Case], mode: Mode = "plain", change: Callable[[str], str] = lambda text: text
) -> Report:
    """Runs the cases in one program of the emulator.

    Args:
        change: applied to the kernels' text, to plant a mistake.
    """
    planned = [(case, plan_of(case, Gpu.h200())) for case in cases]
    runs = [_EmulatorRun(case, plan) for case, plan in planned if plan is not None]
    report = Report(without_kernel=len(cases) - len(runs))
    if not runs:
        return report
    names: dict[Kernel[Any], str] = {}
    launches = [
        launch for one in runs for launch in one.launches(names.setdefault(one.plan.kernel, f"kernel_{len(names)}"))
    ]
    text = change(source.inlined(list(names.items())))
    try:
        run(text, launches, mode=mode, timeout_s=_LONGEST_RUN_S, copies="late")
    except EmulatorError as error:
        if len(cases) > 1 and error.kind != "build":
            return _one_by_one(cases, mode, change, error)
        return Report(failures=[Failure(cases[0], _short(error))])
    report.ran = len(runs)
    wrong = ((one.case, what_is_wrong(one.case, one.operands, one.y)) for one in runs)
    report.failures += [Failure(case, what) for case, what in wrong if what]
    return report


def _one_by_one(cases: Sequence[Case], mode: Mode, change: Callable[[str], str], together: EmulatorError) -> Report:
    """Which of the cases end their program, `together` being how all of them did."""
    report = Report()
    for case in cases:
        if len(report.failures) < _ENOUGH_ENDED:
            report.add(in_emulator([case], mode, change))
    if not report.failures and together.kind != "timeout":  # else the machine was busy
        report.failures.append(Failure(cases[0], f"with the rest of its unit alone: {_short(together)}"))
    return report


class _EmulatorRun:
    def __init__(self, case: Case, plan: Plan) -> None:
        self.case, self.plan = case, plan
        # A kernel's tensors are contiguous; at any offset, unless its family wants input and weights aligned.
        x, weight, bias = operands_of(case)
        x, weight = x.contiguous(), weight.contiguous()
        if FAMILIES[self.plan.kernel.family].alignment > 1:
            x, weight = aligned(x), aligned(weight)
        self.operands = Operands(x, weight, None if bias is None else bias.contiguous())
        self.y = torch.full(case.problem.output_shape, float("nan"), dtype=self.operands.x.dtype)

    def launches(self, kernel: str) -> list[Launch]:
        x, weight, bias = self.operands
        if self.case.problem.layer.weights_last:
            weight = aligned(weight.movedim(1, -1).contiguous())
        return launches(kernel, self.plan, self.case.problem, x, weight, bias, self.y)


def on_gpu(cases: Sequence[Case]) -> tuple[Report, int]:
    """Runs the cases on CUDA device 0: through the library, or through the loader where a case asks for its own plan.

    Each is run twice, and must give the same bits. Returns how many were checked, too: after an error of the device no
    more can be, in this process.
    """
    torch.backends.cudnn.allow_tf32 = False  # the library would round, too; cases of TF32 say so
    report = Report()
    for number, case in enumerate(cases, 1):
        operands = operands_of(case)
        try:
            runs = list(_through_library(case, operands, report) if _is_plain(case) else _through_loader(case, report))
        except Exception as error:
            report.failures.append(Failure(case, _short(error)))
            if "CUDA" in f"{type(error).__name__} {error}":
                return report, number
            continue
        what = what_is_wrong(case, operands, runs[0]) if runs else None
        if what is None and any(not same_bytes(runs[0], again) for again in runs[1:]):
            what = "a second run gave other bits"
        if what is not None:
            report.failures.append(Failure(case, what))
    return report, len(cases)


def _is_plain(case: Case) -> bool:
    """Whether the library's front makes the very call of this case."""
    own_plan = case.multiprocessors is not None or case.wide_index or case.tensor_cores
    return not own_plan and case.problem.layer.precision not in TF32


def _through_library(case: Case, operands: Operands, report: Report) -> Iterator[Tensor]:
    problem = case.problem
    layer, used = problem.layer, slice(3 - problem.layer.spatial_dims, None)
    front = (tconv.conv_transpose1d, tconv.conv_transpose2d, tconv.conv_transpose3d)[layer.spatial_dims - 1]
    # Copying to the GPU makes some views contiguous, so they are made anew there.
    x, weight, bias = _stored(Operands(*(None if t is None else t.cuda() for t in operands)), case.storage)
    tensors = Operands(x, laid_out(weight, True) if layer.weights_last else weight, bias)
    arguments = (layer.stride[used], layer.padding[used], problem.output_padding[used], layer.groups)
    call = (*tensors, *arguments, layer.dilation[used])
    if decide(*call).plan is not None:
        report.ran += 1
    else:
        report.without_kernel += 1
        if problem.batch > 0:  # PyTorch's own result, in whatever arithmetic it takes
            return
    for _ in range(2):
        with poisoned(tensors.x.device, max(1, torch.Size(problem.output_shape).numel() * layer.item_bytes)):
            yield front(*call).cpu()
    if any(t is not None and not same_bytes(t.cpu(), u.cpu()) for t, u in zip(tensors, operands, strict=True)):
        raise AssertionError("the call changed its operands")


def _through_loader(case: Case, report: Report) -> Iterator[Tensor]:
    from tconv.jit.loader import gpu_of, launcher

    plan = plan_of(case, gpu_of(0))
    if plan is None:
        report.without_kernel += 1
        return
    report.ran += 1
    contiguous = [None if t is None else t.contiguous().cuda() for t in draw(case.problem, _CPU, case.seed)]
    tensors = Operands(*contiguous)
    if case.storage == "offset":
        tensors = offset_storage(tensors)
    if plan.kernel.layer.weights_last:
        tensors = tensors._replace(weight=laid_out(tensors.weight, True))
    if FAMILIES[plan.kernel.family].alignment > 1:
        tensors = tensors._replace(x=aligned(tensors.x), weight=aligned(tensors.weight))
    count = torch.Size(case.problem.output_shape).numel()
    for _ in range(2):
        memory = torch.full((count + 2 * _GUARD,), float("nan"), dtype=tensors.x.dtype, device="cuda")
        y = memory[_GUARD : _GUARD + count]
        addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
        stream = torch.cuda.current_stream().cuda_stream
        launcher(plan, 0).enqueue(stream, *addresses, y.data_ptr())
        if not (memory[:_GUARD].isnan().all() and memory[_GUARD + count :].isnan().all()):
            raise AssertionError("the kernel wrote beside its result")
        yield y.view(case.problem.output_shape).cpu()


def _stored(operands: Operands, storage: Storage) -> Operands:
    if storage == "offset":
        return offset_storage(operands)
    if storage == "channels_last" and operands.x.dim() > 3:
        memory_format = torch.channels_last if operands.x.dim() == 4 else torch.channels_last_3d
        return operands._replace(x=operands.x.to(memory_format=memory_format))
    return operands if storage == "contiguous" else non_contiguous(operands)


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + " ..."
