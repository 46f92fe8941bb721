"""One kernel on trial: compiled aside, called on tensors, compared with what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import _C, Tensor

from tconv.evaluation.reference import Operands
from tconv.jit.compile import Compiled
from tconv.jit.loader import Launcher, compile_kernel, load_all
from tconv.memory import laid_out, memory_format
from tconv.planner import Gpu, Kernel, Plan, Unplannable
from tconv.planner.choice import reads_channels_last, replan
from tconv.problem import Precision, Problem

#: Relative errors, pooled, beyond which a result is wrong rather than rounded otherwise than the right one.
WRONG: dict[Precision, float] = {
    "fp32": 1e-5,
    "tf32": 2e-3,
    "tf32_rna": 2e-3,
    "fp16": 2e-3,
    "bf16": 2e-2,
    "fp64": 1e-13,
}
#: Elements that are compared at once.
_K_TILE_ELEMENTS = 2**25


@dataclass(frozen=True)
class Trial:
    """A kernel and its compilation, under way, which may leave it fewer blocks a multiprocessor."""

    kernel: Kernel[Any]
    compiled: Future[tuple[Kernel[Any], Compiled]]


def submit(problem: Problem, kernel: Kernel[Any], gpu: Gpu, pool: Executor) -> Trial | None:
    """`kernel` for this problem, being compiled; None where it does not run these very sizes."""
    try:
        plan = replan(problem, kernel, gpu)
    except Unplannable:
        return None
    return None if plan is None else Trial(kernel, pool.submit(compile_kernel, plan.kernel, gpu.arch))


@dataclass(frozen=True)
class Distance:
    """How far a result is from the right one: the relative error, pooled, and the furthest element beside their rms."""

    pooled: float
    worst: float

    @classmethod
    def between(cls, got: Tensor, expected: Tensor) -> Distance:
        """Of two tensors (N, ...) of one shape; NaN where one has a NaN."""
        step = max(1, _K_TILE_ELEMENTS // max(1, expected[:1].numel()))
        apart, size, worst = torch.zeros(3, dtype=torch.float64, device=expected.device)
        for start in range(0, len(expected), step):
            right = expected[start : start + step].double()
            difference = (got[start : start + step].double() - right).abs()
            apart, size = apart + difference.square().sum(), size + right.square().sum()
            worst = torch.maximum(worst, difference.max())
        return cls(float((apart / size).sqrt()), float(worst / (size / expected.numel()).sqrt()))


def caller(
    plan: Plan,
    cubin: bytes,
    operands: Operands,
    channels_last: bool = False,
    frozen: bool = False,
    read: Sequence[Tensor] = (),
) -> Callable[[], Tensor]:
    """The call of a compiled kernel on these tensors as the library makes it, copies included.

    Args:
        channels_last: how the input lies in memory, and the result shall.
        frozen: weights are prepared here, once, where they are.
        read: by the layer's program.
    """
    device = torch.cuda.current_device()
    kernel, preparing, of_inputs = load_all(plan, cubin, device)
    launcher = Launcher(kernel, plan, device, preparing, of_inputs)
    x, weight, bias = operands
    directly = reads_channels_last(plan)
    wanted = memory_format(x.dim(), channels_last)
    written = memory_format(x.dim(), directly)
    read_first = laid_out(weight, launcher.weights_last)  # lives until it was prepared
    once = launcher.prepare(read_first.data_ptr()) if frozen and preparing is not None else None
    # Of all outputs as they lie.
    operands_read = [
        each.contiguous(memory_format=written if each.shape == plan.problem.output_shape else torch.contiguous_format)
        for each in read
    ]

    def call() -> Tensor:
        given = x.contiguous(memory_format=written)
        weights = laid_out(weight, launcher.weights_last) if once is None else once
        y = torch.empty(plan.problem.output_shape, dtype=x.dtype, device=x.device, memory_format=written)
        addresses = (given.data_ptr(), weights.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
        enqueue = launcher.enqueue if once is None else launcher.enqueue_prepared
        enqueue(_C._cuda_getCurrentRawStream(device), *addresses, *(each.data_ptr() for each in operands_read))
        return y.contiguous(memory_format=wanted)

    return call
