"""From a problem and a GPU to a plan: which kernel, which tile, which grid, and why. Pure Python."""

from tconv.planner.direct import plan_direct
from tconv.planner.gpu import Gpu, floor_seconds
from tconv.planner.plan import DirectTile, Family, Kernel, Plan, Unplannable

__all__ = ["DirectTile", "Family", "Gpu", "Kernel", "Plan", "Unplannable", "floor_seconds", "plan_direct"]
