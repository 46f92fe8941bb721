"""How a kernel of the `col2im` family is launched: `col2im_launch` of `kernels/col2im/launch.cuh`.

What is asked may be of many tiles at once (`tconv.planner.numbers`).
"""

from __future__ import annotations

from typing import NamedTuple

from tconv.planner.col2im.shape import Col2imShape, overlap, spans
from tconv.planner.col2im.tile import Col2imTile
from tconv.planner.numbers import ceil_div, most, where
from tconv.problem import Layer, Problem


class LaunchTraits(NamedTuple):
    """What launches need to know of a kernel of this family.

    Args:
        threads: of a block.
        shared_bytes: of a block.
        block_tile: images, slabs, rows and columns of a block's inputs.
        together: of their columns, those from whose multiples on a block's inputs begin.
        shared: columns that neighbouring block tiles have in common.
        at_once: blocks that work at the same time, each at one block tile after the other; 0 where each has one.
        weight_sets: blocks with different weights, which share a block tile.
        columns_together: neighbouring inputs that are loaded at once.
        weight_bytes, preparing_blocks: of a launch before it; there is none.
    """

    threads: int
    shared_bytes: int
    block_tile: tuple[int, int, int, int]
    together: int
    shared: int
    at_once: int
    weight_sets: int
    columns_together: int
    weight_bytes: int = 0
    preparing_blocks: int = 0


def launch_traits(layer: Layer, tile: Col2imTile, multiprocessors: int) -> LaunchTraits:
    """Of a kernel that was compiled with `tile`, or with many, on a GPU of so many multiprocessors."""
    shape = Col2imShape(layer, tile)
    block_tile, width = tile.block_tile, layer.axes[2]
    return LaunchTraits(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        block_tile=(block_tile.images, block_tile.depths, block_tile.rows, block_tile.columns),
        together=tile.patch_positions,
        shared=where(shape.vector > 1, overlap(width, aligned=True), overlap(width)),
        at_once=where(tile.resident > 0, multiprocessors * tile.blocks, 0),
        weight_sets=shape.weight_sets,
        columns_together=1,
    )


def works(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Block tiles of all inputs, each with every set of weights."""
    images, depths, rows, columns = kernel.block_tile
    depth, height, width = layer.axes
    count = kernel.weight_sets * ceil_div(problem.batch, images)
    count = count * spans(depth, problem.input_size[0], depths) * spans(height, problem.input_size[1], rows)
    return count * spans(width, problem.input_size[2], columns, kernel.together, kernel.shared)


def grid(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Blocks of a launch, which share the work evenly."""
    block_tiles = works(problem, layer, kernel) // kernel.weight_sets
    turns = ceil_div(block_tiles, most(1, kernel.at_once // kernel.weight_sets))
    return kernel.weight_sets * ceil_div(block_tiles, where(kernel.at_once > 0, turns, 1))


def counted(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """What must stay below 2^31: numbers of block tiles, beyond the last of which blocks count by less than a grid."""
    return works(problem, layer, kernel) + where(kernel.at_once > 0, grid(problem, layer, kernel), 0)


def needs_wide_index(problem: Problem, layer: Layer, kernel: LaunchTraits) -> bool:
    """Never: offsets have 64 bits."""
    return False
