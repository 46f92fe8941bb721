"""How a kernel of the `mma` family is launched; written files have these rules, too.

What is asked may be of many tiles at once (`tconv.planner.numbers`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tconv.planner.mma.shape import MmaShape, origins
from tconv.planner.mma.tile import MmaTile
from tconv.planner.numbers import ceil_div, most, where
from tconv.problem import Layer, Problem, Triple

_INT_LIMIT = 2**31
_LANES = 32
#: Of a block of the kernel that prepares weights.
PREPARING_THREADS = 256


class Launching(NamedTuple):
    """What launches need to know of a kernel of this family.

    Args:
        threads: of a block.
        shared_bytes: of a block.
        box: images, slabs, rows and columns of a block's positions.
        origins: of depth, height and width.
        weight_sets: blocks with different weights, which share a box.
        at_once: how many boxes blocks with the same weights work at together; 0 where each block has one box.
        chunk_channels: input channels of a chunk.
        columns_together: neighbouring inputs that are loaded at once.
        weight_bytes: of the prepared weights.
        preparing_blocks, preparing_threads: of the launch that prepares them.
    """

    threads: int
    shared_bytes: int
    box: tuple[int, int, int, int]
    origins: Triple
    weight_sets: int
    at_once: int
    chunk_channels: int
    columns_together: int
    weight_bytes: int
    preparing_blocks: int
    preparing_threads: int


def launching(layer: Layer, tile: MmaTile, multiprocessors: int) -> Launching:
    """Of a kernel that was compiled with `tile`, or with many, on a GPU of so many multiprocessors."""
    shape = MmaShape(layer, tile)
    # Of resident weights as many blocks as run at the same time.
    at_once = most(1, multiprocessors * tile.blocks // shape.weight_sets)
    return Launching(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        box=(tile.box.images, tile.box.depths, tile.box.rows, tile.box.columns),
        origins=origins(tile.box),
        weight_sets=shape.weight_sets,
        at_once=where(tile.pipeline.resident > 0, at_once, 0),
        chunk_channels=shape.chunk_channels,
        columns_together=tile.pipeline.patch_columns,
        weight_bytes=shape.weight_bytes,
        preparing_blocks=ceil_div(shape.preparing_items, PREPARING_THREADS),
        preparing_threads=PREPARING_THREADS,
    )


def boxes(problem: Problem, layer: Layer, kernel: Launching) -> int:
    """Boxes of all positions."""
    images, *sizes = kernel.box
    count = ceil_div(problem.batch, images)
    for axis, output, origin, size in zip(layer.axes, problem.output_size, kernel.origins, sizes, strict=True):
        count = count * ceil_div(axis.positions(output + origin), size)
    return count


def grid(problem: Problem, layer: Layer, kernel: Launching) -> int:
    """Blocks of a launch: each has one box, or some of them, as many as the others."""
    count = boxes(problem, layer, kernel)
    rounds = ceil_div(count, most(1, kernel.at_once))
    return kernel.weight_sets * where(kernel.at_once > 0, ceil_div(count, rounds), count)


def counted(problem: Problem, layer: Layer, kernel: Launching) -> int:
    """What must stay below 2^31: blocks that go on to further boxes count beyond the last one, by less than a grid."""
    return kernel.weight_sets * boxes(problem, layer, kernel) + grid(problem, layer, kernel)


def needs_wide_index(problem: Problem, layer: Layer, kernel: Launching) -> bool:
    """Whether offsets within a box's images, or between the channels that a lane stores, go beyond 2^31."""
    inputs = math.prod(problem.input_size) * (kernel.box[0] * layer.in_channels + kernel.chunk_channels)
    return max(inputs, _LANES * math.prod(problem.output_size)) >= _INT_LIMIT
