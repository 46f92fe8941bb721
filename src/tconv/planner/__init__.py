"""From a problem and a GPU to a plan: which kernel, which tile, which grid, and why. Pure Python."""

from tconv.planner.choice import FAMILIES, choose
from tconv.planner.direct import plan_direct
from tconv.planner.gpu import Gpu, floor_seconds
from tconv.planner.mma import plan_mma
from tconv.planner.plan import DirectTile, Family, Kernel, MmaTile, Plan, Preparation, Unplannable

__all__ = [
    "FAMILIES",
    "DirectTile",
    "Family",
    "Gpu",
    "Kernel",
    "MmaTile",
    "Plan",
    "Preparation",
    "Unplannable",
    "choose",
    "floor_seconds",
    "plan_direct",
    "plan_mma",
]
