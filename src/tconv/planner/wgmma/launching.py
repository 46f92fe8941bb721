"""How a kernel of the `wgmma` family is launched; written files have these rules, too.

What is asked may be of many tiles at once (`tconv.planner.numbers`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tconv.planner.numbers import ceil_div, most, where
from tconv.planner.wgmma.shape import WgmmaShape
from tconv.planner.wgmma.tile import WgmmaTile
from tconv.problem import Layer, Problem

_INT_LIMIT = 2**31
#: Of a block of a kernel that prepares weights or inputs.
PREPARING_THREADS = 256
#: Blocks for each multiprocessor that prepare inputs, and bytes of channels that they turn at once.
_INPUT_BLOCKS, _INPUT_ROWS = 8, 128


class Launching(NamedTuple):
    """What launches need to know of a kernel of this family.

    Args:
        threads: of a block.
        shared_bytes: of a block.
        box: images, slabs, rows and columns of a block's positions.
        weight_sets: blocks with different weights, which share a box.
        together: blocks that a grid has at least, and multiples of: those with all weights, where each keeps its own.
        at_once: blocks that work at the same time, each at one box after the other.
        columns_together: neighbouring inputs that are loaded at once.
        weight_bytes: of the prepared weights.
        preparing_blocks, preparing_threads: of the launch that prepares them.
        input_blocks: of the launch that prepares the inputs, of as many threads each; 0 where there is none.
        input_shared_bytes: of a block of that.
    """

    threads: int
    shared_bytes: int
    box: tuple[int, int, int, int]
    weight_sets: int
    together: int
    at_once: int
    columns_together: int
    weight_bytes: int
    preparing_blocks: int
    preparing_threads: int
    input_blocks: int
    input_shared_bytes: int


def launching(layer: Layer, tile: WgmmaTile, multiprocessors: int) -> Launching:
    """Of a kernel that was compiled with `tile`, or with many, on a GPU of so many multiprocessors."""
    shape = WgmmaShape(layer, tile)
    return Launching(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        box=(tile.box.images, tile.box.depths, tile.box.rows, tile.box.columns),
        weight_sets=shape.weight_sets,
        together=where(tile.resident > 0, shape.weight_sets, 1),
        at_once=multiprocessors,
        columns_together=tile.patch_columns,
        weight_bytes=shape.weight_bytes,
        preparing_blocks=ceil_div(shape.preparing_items, PREPARING_THREADS),
        preparing_threads=PREPARING_THREADS,
        input_blocks=where(tile.prepared_inputs > 0, _INPUT_BLOCKS * multiprocessors, 0),
        input_shared_bytes=_INPUT_ROWS * (64 * layer.item_bytes + 4) // layer.item_bytes,
    )


def works(problem: Problem, layer: Layer, kernel: Launching) -> int:
    """Boxes of all positions, each with every set of weights."""
    images, *sizes = kernel.box
    count = kernel.weight_sets * ceil_div(problem.batch, images)
    for axis, output, size in zip(layer.axes, problem.output_size, sizes, strict=True):
        count = count * ceil_div(axis.positions(output), size)
    return count


def rounds(problem: Problem, layer: Layer, kernel: Launching) -> int:
    """Boxes that a block has, one after the other."""
    return ceil_div(works(problem, layer, kernel), most(1, kernel.at_once // kernel.together) * kernel.together)


def grid(problem: Problem, layer: Layer, kernel: Launching) -> int:
    """Blocks of a launch, which share the work evenly."""
    turns = rounds(problem, layer, kernel) * kernel.together
    return ceil_div(works(problem, layer, kernel), turns) * kernel.together


def counted(problem: Problem, layer: Layer, kernel: Launching) -> int:
    """What must stay below 2^31: blocks count beyond the last work, by less than a grid."""
    return works(problem, layer, kernel) + grid(problem, layer, kernel)


def needs_wide_index(problem: Problem, layer: Layer, kernel: Launching) -> bool:
    """Whether offsets within a box's images, or within a plane of outputs, go beyond 2^31."""
    inputs = math.prod(problem.input_size) * kernel.box[0] * layer.in_channels
    return max(inputs, math.prod(problem.output_size)) >= _INT_LIMIT
