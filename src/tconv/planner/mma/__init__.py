"""The `mma` family: dense layers, as a product of matrices on tensor cores, from sm_80 on."""

from __future__ import annotations

import math
from functools import lru_cache

from tconv.planner import block_tiles
from tconv.planner.family import Candidates, Family, Ranked
from tconv.planner.gpu import Gpu
from tconv.planner.mma.candidates import candidates
from tconv.planner.mma.launch import launch_traits
from tconv.planner.mma.model import MmaCost, predict
from tconv.planner.mma.shape import MmaShape
from tconv.planner.mma.tile import MmaTile
from tconv.planner.numbers import length
from tconv.planner.plan import Kernel
from tconv.planner.shifts import together
from tconv.planner.sizes import equivalent, representative, with_strides
from tconv.problem import Layer, Problem

_OLDEST_ARCH = 80
#: Row phases and shifts from here on would be too much text, or tables too long, for the compiler.
_MOST_PHASES = 4096
#: Of a block tile along an axis.
_MOST_POSITIONS = 8 * 8 * 8


class _Mma(Family[MmaTile]):
    name = "mma"
    tile = MmaTile
    shape = MmaShape
    rules = block_tiles
    launch_traits = staticmethod(launch_traits)
    on_tensor_cores = True
    alignment = 16
    reach = "phases"

    def why_not(self, problem: Problem, gpu: Gpu) -> str | None:
        if gpu.capability < _OLDEST_ARCH:
            return f"the mma family needs sm_{_OLDEST_ARCH} or newer; {gpu.name} is {gpu.arch}"
        return self.too_long(problem, _MOST_POSITIONS) or why_not_mma(equivalent_layer(problem))

    def candidates(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[MmaTile] | None:
        alike = (representative(problem), equivalent_layer(problem), gpu, channels_last, together(problem))
        return _candidates(*alike)

    def best(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> tuple[Ranked[MmaTile], int] | None:
        return _best(representative(problem), equivalent_layer(problem), gpu, channels_last, together(problem))

    def cost(self, problem: Problem, kernel: Kernel[MmaTile], gpu: Gpu) -> MmaCost:
        return predict(problem, kernel.layer, kernel.tile, gpu)

    def runs(self, kernel: Kernel[MmaTile], problem: Problem) -> bool:
        same = with_strides(problem, kernel.layer.stride) is not None
        return same and problem.input_size[2] % kernel.tile.pipeline.patch_columns == 0

    def reads_channels_last(self, kernel: Kernel[MmaTile]) -> bool:
        return bool(kernel.tile.channels_last)

    def reasons(self, problem: Problem, kernel: Kernel[MmaTile]) -> tuple[str, ...]:
        layer, tile = kernel.layer, kernel.tile
        own, warps, block_tile = MmaShape(layer, tile), tile.warps, tile.block_tile
        with_taps = own.fragments_with_taps / (own.shifts * own.block_row_tiles)
        return (
            f"{own.phase_tiles} tiles of 16 rows hold {math.prod(layer.stride)} phases of "
            f"{tile.channels} output channels; {own.row_blocks} blocks share the positions of a block tile",
            f"a block tile of {block_tile.images} x {block_tile.depths} x {block_tile.rows} x {block_tile.columns} "
            f"positions (images, slabs, rows, columns): {own.block_tile_positions} of {own.block_positions} multiplied",
            f"{warps.splits} x {warps.high} x {warps.wide} warps (sets, rows, positions) of {16 * warps.row_tiles} "
            f"rows x {8 * warps.position_tiles} positions, about {own.registers} registers a thread",
            f"{own.shifts} shifts, {with_taps:.0%} of the products "
            f"have a tap; {own.k_tiles} k-tiles of channels, "
            + (
                f"copied into {tile.pipeline.copied} stages"
                if tile.pipeline.copied
                else "inputs on their way in registers"
            ),
        )


def why_not_mma(layer: Layer) -> str | None:
    """Why the family has no kernel for `layer`; None if it has."""
    if math.prod(layer.stride) > _MOST_PHASES:
        return f"{math.prod(layer.stride)} phases are more than the mma family's {_MOST_PHASES}"
    return None


def equivalent_layer(problem: Problem) -> Layer:
    """The layer that the family computes `problem` by."""
    return equivalent(problem, _MOST_PHASES).layer


def _candidates(
    problem: Problem, layer: Layer, gpu: Gpu, channels_last: bool, most_together: int
) -> Candidates[MmaTile] | None:
    tiles = candidates(problem, layer, gpu, channels_last, most_together)
    if tiles is None:
        return None
    return Candidates("mma", layer, tiles, predict(problem, layer, tiles, gpu), length(tiles))


@lru_cache(maxsize=4096)
def _best(
    problem: Problem, layer: Layer, gpu: Gpu, channels_last: bool, most_together: int
) -> tuple[Ranked[MmaTile], int] | None:
    considered = _candidates(problem, layer, gpu, channels_last, most_together)
    return None if considered is None else (considered.first(1)[0], len(considered))


MMA = _Mma()
