"""The `col2im` family, from sm_80 on: layers of few positions or few output channels, as one product and sums of it."""

from __future__ import annotations

import math
from functools import lru_cache

from tconv.planner.col2im import launch as rules
from tconv.planner.col2im.candidates import candidates, fits, why_none
from tconv.planner.col2im.model import Col2imCost, predict
from tconv.planner.col2im.shape import Col2imShape
from tconv.planner.col2im.tile import Col2imTile
from tconv.planner.family import Candidates, Family, Ranked
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import length
from tconv.planner.plan import Kernel
from tconv.planner.sizes import equivalent, with_strides
from tconv.problem import SUMMED_IN_FLOAT, Layer, Problem

_OLDEST_ARCH = 80
#: Taps of a filter, all of which a block has.
_MOST_TAPS = 256
#: Input channels of a group from which on the family pays.
_LEAST_CHANNELS = 32
#: Of a block tile along an axis.
_MOST_POSITIONS = 512


class _Col2im(Family[Col2imTile]):
    name = "col2im"
    tile = Col2imTile
    shape = Col2imShape
    rules = rules
    launch_traits = staticmethod(rules.launch_traits)
    on_tensor_cores = True
    alignment = 16
    any_size = False
    reach = "exact"

    def why_not(self, problem: Problem, gpu: Gpu) -> str | None:
        if gpu.capability < _OLDEST_ARCH:
            return f"the col2im family needs sm_{_OLDEST_ARCH} or newer; {gpu.name} is {gpu.arch}"
        own = equivalent(problem)
        return self.too_long(own, _MOST_POSITIONS) or why_not_col2im(own.layer) or _why_no_tile(own)

    def candidates(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[Col2imTile] | None:
        return _candidates(equivalent(problem), gpu, channels_last)

    def best(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> tuple[Ranked[Col2imTile], int] | None:
        return _best(equivalent(problem), gpu, channels_last)

    def cost(self, problem: Problem, kernel: Kernel[Col2imTile], gpu: Gpu) -> Col2imCost:
        return predict(problem, kernel.layer, kernel.tile, gpu)

    def runs(self, kernel: Kernel[Col2imTile], problem: Problem) -> bool:
        own = with_strides(problem, kernel.layer.stride)
        return own is not None and fits(own, kernel.tile)

    def reads_channels_last(self, kernel: Kernel[Col2imTile]) -> bool:
        return bool(kernel.tile.channels_last)

    def reasons(self, problem: Problem, kernel: Kernel[Col2imTile]) -> tuple[str, ...]:
        layer, tile = kernel.layer, kernel.tile
        own, block_tile = Col2imShape(layer, tile), tile.block_tile
        return (
            f"a block has {own.taps} taps of {tile.channels} output channels: {own.block_rows} rows",
            f"a block tile of {block_tile.images} x {block_tile.depths} x {block_tile.rows} x {block_tile.columns} "
            "inputs (images, slabs, rows, columns)",
            f"sets of warps: {tile.warps.splits} of {tile.warps.high} x {tile.warps.wide} (rows, positions) share "
            f"{own.k_tiles} k-tiles of {own.k_tile_channels} input channels; {own.stages_ahead} are asked for at once"
            + (", weights are resident" if tile.resident else f", of {own.set_k_tiles}"),
        )


def why_not_col2im(layer: Layer, least_channels: int = _LEAST_CHANNELS) -> str | None:
    """Why the family has no kernel for `layer`; None if it has. With fewer input channels it would gain nothing."""
    taps = math.prod(layer.kernel)
    if layer.precision not in SUMMED_IN_FLOAT:
        return f"the col2im family has no kernels for {layer.precision}"
    if taps > _MOST_TAPS:
        return f"{taps} taps are more than the col2im family's {_MOST_TAPS}"
    if layer.in_channels_per_group < least_channels:
        return f"{layer.in_channels_per_group} input channels are too few for the col2im family"
    return None


def _why_no_tile(problem: Problem) -> str | None:
    """Why none of its tiles is for `problem`: it has many inputs and many output channels."""
    why = why_none(problem, resident=False), why_none(problem, resident=True)
    return f"{why[0]}, and {why[1]}: too many for the col2im family" if why[0] and why[1] else None


@lru_cache(maxsize=256)
def _candidates(problem: Problem, gpu: Gpu, channels_last: bool) -> Candidates[Col2imTile] | None:
    tiles = candidates(problem, gpu, channels_last)
    if tiles is None:
        return None
    return Candidates("col2im", problem.layer, tiles, predict(problem, problem.layer, tiles, gpu), length(tiles))


@lru_cache(maxsize=4096)
def _best(problem: Problem, gpu: Gpu, channels_last: bool) -> tuple[Ranked[Col2imTile], int] | None:
    considered = _candidates(problem, gpu, channels_last)
    return None if considered is None else (considered.first(1)[0], len(considered))


COL2IM = _Col2im()
