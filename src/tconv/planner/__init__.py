"""From a problem and a GPU to a plan: which kernel, which tile, which grid, and why. Nothing of torch or CUDA."""

from tconv.planner.choice import choose
from tconv.planner.direct import DIRECT
from tconv.planner.direct.tile import DirectTile
from tconv.planner.families import FAMILIES
from tconv.planner.family import Family
from tconv.planner.gpu import Gpu, floor_seconds
from tconv.planner.mma import MMA
from tconv.planner.mma.tile import MmaTile
from tconv.planner.plan import Kernel, Plan, Preparation, Unplannable
from tconv.planner.tuned import Question

__all__ = [
    "DIRECT",
    "FAMILIES",
    "MMA",
    "DirectTile",
    "Family",
    "Gpu",
    "Kernel",
    "MmaTile",
    "Plan",
    "Preparation",
    "Question",
    "Unplannable",
    "choose",
    "floor_seconds",
]
