"""From a problem and a GPU to a plan: which kernel, which tile, which grid, and why. Nothing of torch or CUDA."""

from tconv.planner.choice import choose
from tconv.planner.col2im import COL2IM
from tconv.planner.col2im.tile import Col2imTile
from tconv.planner.col2im_rows import COL2IM_ROWS
from tconv.planner.col2im_rows.tile import Col2imRowsTile
from tconv.planner.col2im_wgmma import COL2IM_WGMMA
from tconv.planner.col2im_wgmma.tile import Col2imWgmmaTile
from tconv.planner.direct import DIRECT
from tconv.planner.direct.tile import DirectTile
from tconv.planner.families import FAMILIES
from tconv.planner.family import Family
from tconv.planner.gpu import Gpu, floor_seconds
from tconv.planner.mma import MMA
from tconv.planner.mma.tile import MmaTile
from tconv.planner.plan import InputPreparation, Kernel, Plan, Preparation, Unplannable
from tconv.planner.tuned import Question
from tconv.planner.wgmma import WGMMA
from tconv.planner.wgmma.tile import WgmmaTile

__all__ = [
    "COL2IM",
    "COL2IM_ROWS",
    "COL2IM_WGMMA",
    "DIRECT",
    "FAMILIES",
    "MMA",
    "WGMMA",
    "Col2imRowsTile",
    "Col2imTile",
    "Col2imWgmmaTile",
    "DirectTile",
    "Family",
    "Gpu",
    "InputPreparation",
    "Kernel",
    "MmaTile",
    "Plan",
    "Preparation",
    "Question",
    "Unplannable",
    "WgmmaTile",
    "choose",
    "floor_seconds",
]
