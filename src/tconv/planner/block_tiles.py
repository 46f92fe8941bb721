"""How `mma` and `wgmma` are launched, whose blocks own block tiles of positions: `block_tiles_launch` of the headers.

What is asked may be of many tiles at once (`tconv.planner.numbers`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tconv.planner.numbers import INDEX_LIMIT, ceil_div, most, where
from tconv.problem import Layer, Problem, Triple

#: Of a block that prepares weights or inputs.
PREPARING_THREADS = 256


class LaunchTraits(NamedTuple):
    """What launches need to know of a kernel.

    Args:
        threads: of a block.
        shared_bytes: of a block.
        block_tile: images, slabs, rows and columns of a block's positions.
        origins: of depth, height and width.
        weight_sets: blocks with different weights, which share a block tile.
        together: blocks that a grid has multiples of: those with all weights, where each keeps its own; else 1.
        at_once: blocks that work at the same time, each at one block tile after the other; 0 where each has
            one block tile.
        input_reach, output_reach: numbers of each position that an offset within a block may span.
        columns_together: neighbouring inputs that are loaded at once.
        weight_bytes: of the prepared weights.
        preparing_blocks: of the launch that prepares them.
    """

    threads: int
    shared_bytes: int
    block_tile: tuple[int, int, int, int]
    origins: Triple
    weight_sets: int
    together: int
    at_once: int
    input_reach: int
    output_reach: int
    columns_together: int
    weight_bytes: int
    preparing_blocks: int


def works(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Block tiles of all positions, each with every set of weights."""
    images, *sizes = kernel.block_tile
    count = kernel.weight_sets * ceil_div(problem.batch, images)
    for axis, output, origin, size in zip(layer.axes, problem.output_size, kernel.origins, sizes, strict=True):
        count = count * ceil_div(axis.positions(output + origin), size)
    return count


def covered(problem: Problem, layer: Layer, kernel: LaunchTraits) -> float:
    """How many positions all block tiles have for each that the outputs have: block tiles reach beyond the ends."""
    positions = problem.batch
    for axis, output in zip(layer.axes, problem.output_size, strict=True):
        positions *= axis.positions(output)
    return works(problem, layer, kernel) / kernel.weight_sets * math.prod(kernel.block_tile) / positions


def rounds(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Block tiles that a block has, one after the other."""
    blocks = most(1, kernel.at_once // kernel.together) * kernel.together
    return where(kernel.at_once > 0, ceil_div(works(problem, layer, kernel), blocks), 1)


def grid(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Blocks of a launch, which share the work evenly."""
    turns = rounds(problem, layer, kernel) * kernel.together
    return ceil_div(works(problem, layer, kernel), turns) * kernel.together


def counted(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """What must stay below 2^31: blocks count beyond the last work, by less than a grid."""
    return works(problem, layer, kernel) + grid(problem, layer, kernel)


def needs_wide_index(problem: Problem, layer: Layer, kernel: LaunchTraits) -> bool:
    """Whether offsets within a block go beyond 2^31."""
    inputs = math.prod(problem.input_size) * kernel.input_reach
    return max(inputs, math.prod(problem.output_size) * kernel.output_reach) >= INDEX_LIMIT
