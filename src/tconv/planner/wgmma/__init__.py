"""The `wgmma` family: dense layers on the tensor cores of Hopper."""

from __future__ import annotations

import math
from functools import lru_cache

from tconv.planner import block_tiles
from tconv.planner.family import Candidates, Family, Ranked
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import length
from tconv.planner.plan import Kernel
from tconv.planner.shifts import together
from tconv.planner.sizes import representative
from tconv.planner.wgmma.candidates import candidates
from tconv.planner.wgmma.launch import launch_traits
from tconv.planner.wgmma.model import WgmmaCost, predict
from tconv.planner.wgmma.shape import WgmmaShape
from tconv.planner.wgmma.tile import WgmmaTile
from tconv.problem import Layer, Precision, Problem

#: Beyond the end of an axis, the last block tile may have so many positions.
_MOST_POSITIONS = 1024
_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "tf32_rna", "fp16", "bf16")
#: Rows of a multiple of so many inputs begin at sectors of memory, and their outputs do; others cost more.
_ALIGNED = 16
#: Phases and shifts from here on would be too much to go through.
_MOST_PHASES, _MOST_TAPS = 1024, 4096


class _Wgmma(Family[WgmmaTile]):
    name = "wgmma"
    tile = WgmmaTile
    shape = WgmmaShape
    rules = block_tiles
    launch_traits = staticmethod(launch_traits)
    on_tensor_cores = True
    alignment = 16
    reach = "exact"

    def why_not(self, problem: Problem, gpu: Gpu) -> str | None:
        if reason := self.no_hopper(gpu):
            return reason
        return self.too_long(problem, _MOST_POSITIONS) or why_not_wgmma(problem.layer)

    def candidates(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[WgmmaTile] | None:
        return _candidates(representative(problem, _ALIGNED), gpu, channels_last, together(problem))

    def best(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> tuple[Ranked[WgmmaTile], int] | None:
        return _best(representative(problem, _ALIGNED), gpu, channels_last, together(problem))

    def cost(self, problem: Problem, kernel: Kernel[WgmmaTile], gpu: Gpu) -> WgmmaCost:
        return predict(problem, kernel.layer, kernel.tile, gpu).beside_others(kernel.tile.prepared_inputs)

    def runs(self, kernel: Kernel[WgmmaTile], problem: Problem) -> bool:
        return problem.input_size[2] % kernel.tile.patch_columns == 0

    def reads_channels_last(self, kernel: Kernel[WgmmaTile]) -> bool:
        return bool(kernel.tile.channels_last)

    def reasons(self, problem: Problem, kernel: Kernel[WgmmaTile]) -> tuple[str, ...]:
        layer, tile = kernel.layer, kernel.tile
        own, block_tile = WgmmaShape(layer, tile), tile.block_tile
        stacked = (
            f"stacked, so that {own.row_visits} shifts share their inputs" if tile.stacked else "one behind another"
        )
        weights = "all weights, which stay" if tile.resident else f"{tile.weight_stages} of weights"
        weights += ", prepared by each block" if tile.own_weights else ""
        kind = "copied" if own.by_channel or own.by_place else "transposed" if own.transposed else "one by one"
        if tile.prepared_inputs:
            kind = "prepared by a kernel before"
        return (
            f"blocks of {tile.channels} output channels in {tile.phases} of {own.phases} phases; {own.weight_sets} "
            f"share a block tile; products of {own.product_rows} rows",
            f"a block tile of {block_tile.images} x {block_tile.depths} x {block_tile.rows} x {block_tile.columns} "
            f"positions (images, slabs, rows, columns): {own.block_tile_positions} of {own.block_positions} multiplied",
            f"{tile.position_tiles} tiles of 64 positions for each of two warpgroups, {stacked}",
            f"{own.visits} visits to each of {own.k_tiles} k-tiles of {own.k_tile_channels} channels; "
            f"{tile.input_stages} stages of inputs, {kind}, and {weights}",
        )


def why_not_wgmma(layer: Layer) -> str | None:
    """Why the family has no kernel for `layer`; None if it has."""
    if layer.precision not in _PRECISIONS:
        return f"the wgmma family multiplies {', '.join(_PRECISIONS)}; this is {layer.precision}"
    if math.prod(layer.stride) > _MOST_PHASES or math.prod(layer.kernel) > _MOST_TAPS:
        return f"more than {_MOST_PHASES} phases or {_MOST_TAPS} taps are too many for the wgmma family"
    return None


def _candidates(problem: Problem, gpu: Gpu, channels_last: bool, most_together: int) -> Candidates[WgmmaTile] | None:
    layer = problem.layer
    tiles = candidates(problem, layer, gpu, channels_last, most_together)
    if tiles is None:
        return None
    return Candidates("wgmma", layer, tiles, predict(problem, layer, tiles, gpu), length(tiles))


@lru_cache(maxsize=4096)
def _best(problem: Problem, gpu: Gpu, channels_last: bool, most_together: int) -> tuple[Ranked[WgmmaTile], int] | None:
    considered = _candidates(problem, gpu, channels_last, most_together)
    return None if considered is None else (considered.first(1)[0], len(considered))


WGMMA = _Wgmma()
