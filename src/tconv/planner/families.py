"""The families of kernels, and nothing else: the one place that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tconv.planner.col2im import COL2IM
from tconv.planner.col2im_rows import COL2IM_ROWS
from tconv.planner.col2im_wgmma import COL2IM_WGMMA
from tconv.planner.direct import DIRECT
from tconv.planner.family import Family
from tconv.planner.mma import MMA
from tconv.planner.wgmma import WGMMA

#: By name; of those that are predicted to be as fast, the first is taken.
FAMILIES: Mapping[str, Family[Any]] = MappingProxyType(
    {family.name: family for family in (DIRECT, MMA, WGMMA, COL2IM, COL2IM_WGMMA, COL2IM_ROWS)}
)
