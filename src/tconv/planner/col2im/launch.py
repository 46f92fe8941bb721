"""How a kernel of the `col2im` family is launched: `col2im_launch` of `kernels/col2im/launch.cuh`.

What is asked may be of many tiles at once (`tconv.planner.numbers`).
"""

from __future__ import annotations

from typing import NamedTuple

from tconv.planner.col2im.shape import Col2imShape, spans
from tconv.planner.col2im.tile import Col2imTile
from tconv.planner.numbers import ceil_div
from tconv.problem import Layer, Problem


class LaunchTraits(NamedTuple):
    """What launches need to know of a kernel of this family.

    Args:
        threads: of a block.
        shared_bytes: of a block.
        block_tile: images, slabs, rows and columns of a block's inputs.
        together: of their columns, those from whose multiples on a block's inputs begin.
        weight_sets: blocks with different weights, which share a block tile.
        columns_together: neighbouring inputs that are loaded at once.
        weight_bytes, preparing_blocks: of a launch before it; there is none.
    """

    threads: int
    shared_bytes: int
    block_tile: tuple[int, int, int, int]
    together: int
    weight_sets: int
    columns_together: int
    weight_bytes: int = 0
    preparing_blocks: int = 0


def launch_traits(layer: Layer, tile: Col2imTile, multiprocessors: int) -> LaunchTraits:
    """Of a kernel that was compiled with `tile`, or with many, on a GPU of so many multiprocessors."""
    shape = Col2imShape(layer, tile)
    block_tile = tile.block_tile
    return LaunchTraits(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        block_tile=(block_tile.images, block_tile.depths, block_tile.rows, block_tile.columns),
        together=tile.patch_positions,
        weight_sets=shape.weight_sets,
        columns_together=1,
    )


def grid(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Blocks of a launch."""
    images, *sizes = kernel.block_tile
    count = kernel.weight_sets * ceil_div(problem.batch, images)
    for axis, inputs, size, together in zip(
        layer.axes, problem.input_size, sizes, (1, 1, kernel.together), strict=True
    ):
        count = count * spans(axis, inputs, size, together)
    return count


def counted(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """What must stay below 2^31: numbers of blocks."""
    return grid(problem, layer, kernel)


def needs_wide_index(problem: Problem, layer: Layer, kernel: LaunchTraits) -> bool:
    """Never: offsets have 64 bits."""
    return False
