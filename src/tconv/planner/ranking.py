"""All tiles of a family for one problem, in the order in which its model prefers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tconv.planner import direct, mma
from tconv.planner.direct_model import Cost, predict
from tconv.planner.gpu import Gpu
from tconv.planner.mma_model import MmaCost, predict_mma
from tconv.planner.plan import Family, Kernel, Unplannable
from tconv.problem import Problem


@dataclass(frozen=True)
class Ranked:
    """A kernel that computes a problem, and what the model of its family predicts for sizes like these."""

    kernel: Kernel[Any]
    cost: Cost | MmaCost


def kernels(problem: Problem, family: Family, gpu: Gpu, channels_last: bool = False) -> list[Kernel[Any]]:
    """The kernels that the planner considers for `problem`; none where the family does not run it."""
    alike = direct.representative(problem)
    try:
        if family == "direct":
            direct.plan_direct(problem, gpu)
            return [Kernel(family, problem.layer, tile) for tile in dict.fromkeys(direct.candidates(alike, gpu))]
        mma.plan_mma(problem, gpu, channels_last)
    except Unplannable:
        return []
    layer = mma.equivalent(problem)
    tiles = mma.candidates(alike, layer, gpu, channels_last, mma.together(problem))
    return [Kernel(family, layer, tile) for tile in dict.fromkeys(tiles)]


def ranked(problem: Problem, family: Family, gpu: Gpu, channels_last: bool = False) -> list[Ranked]:
    """The same with their costs, the cheapest first."""
    alike = direct.representative(problem)

    def cost(kernel: Kernel[Any]) -> Cost | MmaCost:
        if family == "direct":
            return predict(alike, kernel.tile, gpu)
        return predict_mma(alike, kernel.layer, kernel.tile, gpu)

    found = [Ranked(kernel, cost(kernel)) for kernel in kernels(problem, family, gpu, channels_last)]
    return sorted(found, key=lambda candidate: candidate.cost.seconds)
