"""Which family runs a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from tconv.planner import mma_shape
from tconv.planner.direct import plan_direct
from tconv.planner.direct_shape import launch_direct, needs_wide_index
from tconv.planner.gpu import Gpu
from tconv.planner.mma import computes, plan_mma
from tconv.planner.mma_shape import launch_mma
from tconv.planner.plan import Family, Kernel, MmaTile, Plan, Unplannable
from tconv.problem import Precision, Problem

#: Bytes a second of copies on a GPU that nobody measured.
_BANDWIDTH = 2e12
FAMILIES: tuple[Family, ...] = get_args(Family)
#: How much longer kernels take than predicted where the families are near each other, as measured on one NVIDIA H200.
_UNDERESTIMATED: dict[Family, float] = {"direct": 1.12, "mma": 1.0}


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
) -> Plan:
    """The plan of `problem` on `gpu`: of those of `families` the one that is predicted to be the fastest.

    Args:
        tensor_core_precision: of families that run on tensor cores, where it is not the layer's own: CUDA cores gain
            nothing from TF32.
        channels_last: how input and output lie in memory. A family that cannot read and write that has them copied.

    Raises:
        Unplannable: no family runs it; the message says what each lacks.
    """
    plans, troubles = [], []
    rounded = replace(problem, layer=replace(problem.layer, precision=tensor_core_precision or problem.layer.precision))
    for family in families:
        try:
            plans.append(plan_mma(rounded, gpu, channels_last) if family == "mma" else plan_direct(problem, gpu))
        except Unplannable as trouble:
            troubles.append(str(trouble))
    if not plans:
        raise Unplannable("; ".join(troubles))
    copies = 2 * problem.bytes_moved / (gpu.bandwidth or _BANDWIDTH) if channels_last else 0.0

    def seconds(plan: Plan) -> float:
        of_kernel = (plan.predicted_seconds or 0.0) * _UNDERESTIMATED[plan.kernel.family]
        return of_kernel + (0.0 if reads_channels_last(plan) else copies)

    return min(plans, key=seconds)


def reads_channels_last(plan: Plan) -> bool:
    """Whether its input and output are channels_last; else they are contiguous."""
    return isinstance(plan.kernel.tile, MmaTile) and bool(plan.kernel.tile.channels_last)
