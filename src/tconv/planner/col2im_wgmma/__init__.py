"""The `col2im_wgmma` family: `col2im` by warpgroups, on Hopper."""

from __future__ import annotations

import math
from functools import lru_cache

from tconv.planner.col2im import launch as rules
from tconv.planner.col2im_wgmma.candidates import candidates, divides_phases, fits, why_none
from tconv.planner.col2im_wgmma.launch import launch_traits
from tconv.planner.col2im_wgmma.model import Col2imWgmmaCost, predict
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape
from tconv.planner.col2im_wgmma.tile import Col2imWgmmaTile
from tconv.planner.family import Candidates, Family, Ranked
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import length
from tconv.planner.plan import Kernel
from tconv.planner.sizes import equivalent, with_strides
from tconv.problem import SUMMED_IN_FLOAT, Layer, Problem

_MOST_POSITIONS = 512
_MOST_TAPS = 512
_LEAST_CHANNELS = 32


class _Col2imWgmma(Family[Col2imWgmmaTile]):
    name = "col2im_wgmma"
    tile = Col2imWgmmaTile
    shape = Col2imWgmmaShape
    rules = rules
    launch_traits = staticmethod(launch_traits)
    on_tensor_cores = True
    alignment = 16
    any_size = False
    reach = "exact"

    def why_not(self, problem: Problem, gpu: Gpu) -> str | None:
        if reason := self.no_hopper(gpu):
            return reason
        own = equivalent(problem)
        return self.too_long(own, _MOST_POSITIONS) or why_not_col2im_wgmma(own.layer) or why_none(own)

    def candidates(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[Col2imWgmmaTile] | None:
        return _candidates(equivalent(problem), gpu, channels_last)

    def best(
        self, problem: Problem, gpu: Gpu, channels_last: bool = False
    ) -> tuple[Ranked[Col2imWgmmaTile], int] | None:
        return _best(equivalent(problem), gpu, channels_last)

    def cost(self, problem: Problem, kernel: Kernel[Col2imWgmmaTile], gpu: Gpu) -> Col2imWgmmaCost:
        return predict(problem, kernel.layer, kernel.tile, gpu).beside_others(kernel.tile.prepared_inputs)

    def runs(self, kernel: Kernel[Col2imWgmmaTile], problem: Problem) -> bool:
        own = with_strides(problem, kernel.layer.stride)
        return own is not None and fits(own, kernel.tile)

    def reads_channels_last(self, kernel: Kernel[Col2imWgmmaTile]) -> bool:
        return bool(kernel.tile.channels_last)

    def reasons(self, problem: Problem, kernel: Kernel[Col2imWgmmaTile]) -> tuple[str, ...]:
        layer, tile = kernel.layer, kernel.tile
        own, block_tile = Col2imWgmmaShape(layer, tile), tile.block_tile
        return (
            f"a block has {own.width_phases} of {layer.stride[2]} phases along the width and {own.taps} taps of "
            f"{tile.channels} output channels: {own.block_rows} rows",
            f"a block tile of {block_tile.images} x {block_tile.depths} x {block_tile.rows} x {block_tile.columns} "
            f"inputs (images, slabs, rows, columns){', prepared by a kernel before' if tile.prepared_inputs else ''}",
            f"sets of warpgroups: {tile.warpgroups.splits} of {tile.warpgroups.high} x {tile.warpgroups.wide} (rows, "
            f"positions) share {own.k_tiles} k-tiles of {own.k_tile_channels} input channels",
        )


def why_not_col2im_wgmma(layer: Layer, least_channels: int = _LEAST_CHANNELS) -> str | None:
    taps = math.prod(layer.kernel)
    if layer.precision not in SUMMED_IN_FLOAT:
        return f"the col2im_wgmma family has no kernels for {layer.precision}"
    if taps > _MOST_TAPS and not divides_phases(layer):
        return f"{taps} taps are more than the col2im_wgmma family's {_MOST_TAPS}"
    if layer.in_channels_per_group < least_channels:
        return f"{layer.in_channels_per_group} input channels are too few for the col2im_wgmma family"
    return None


@lru_cache(maxsize=256)
def _candidates(problem: Problem, gpu: Gpu, channels_last: bool) -> Candidates[Col2imWgmmaTile] | None:
    tiles = candidates(problem, gpu, channels_last)
    if tiles is None:
        return None
    return Candidates("col2im_wgmma", problem.layer, tiles, predict(problem, problem.layer, tiles, gpu), length(tiles))


@lru_cache(maxsize=4096)
def _best(problem: Problem, gpu: Gpu, channels_last: bool) -> tuple[Ranked[Col2imWgmmaTile], int] | None:
    considered = _candidates(problem, gpu, channels_last)
    return None if considered is None else (considered.first(1)[0], len(considered))


COL2IM_WGMMA = _Col2imWgmma()
