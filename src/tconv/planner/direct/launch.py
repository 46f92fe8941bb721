"""How a kernel of the `direct` family is launched: `direct_launch` of `kernels/direct/launch.cuh`.

What is asked may be of many tiles at once (`tconv.planner.numbers`).
"""

from __future__ import annotations

from typing import NamedTuple

from tconv.planner.direct.shape import DirectShape
from tconv.planner.direct.tile import DirectTile
from tconv.planner.numbers import INDEX_LIMIT, ceil_div, least, most, where
from tconv.problem import Layer, Problem, Triple

#: Blocks that the grid has for each multiprocessor when they go on to further positions.
_BLOCKS_PER_MULTIPROCESSOR = 32


class LaunchTraits(NamedTuple):
    """What launches need to know of a kernel of this family.

    Args:
        threads: of a block.
        shared_bytes: of a block.
        parts: blocks that share the positions of one.
        rows, columns: positions that a warp's step takes in height and in width; of a tile those of a block.
        groups: of such rows that a warp takes at once; 0 where a block has a tile.
        block_runs: steps of warps that a block takes at once.
        at_once: how many blocks with the same weights go over the positions together; 0 where each has its own.
        origins: of depth, height and width.
        columns_together: neighbouring inputs that are loaded at once.
        weight_bytes, preparing_blocks: of a launch before it; there is none.
    """

    threads: int
    shared_bytes: int
    parts: int
    rows: int
    columns: int
    groups: int
    block_runs: int
    at_once: int
    origins: Triple
    columns_together: int
    weight_bytes: int = 0
    preparing_blocks: int = 0


def launch_traits(layer: Layer, tile: DirectTile, multiprocessors: int) -> LaunchTraits:
    """Of a kernel that was compiled with `tile`, or with many, on a GPU of so many multiprocessors."""
    shape = DirectShape(layer, tile)
    at_once = most(1, _BLOCKS_PER_MULTIPROCESSOR * multiprocessors // shape.parts)
    return LaunchTraits(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        parts=shape.parts,
        rows=where(tile.warps_wide > 0, shape.tile_rows, tile.rows),
        columns=most(1, tile.warps_wide) * shape.run_columns,
        groups=where(tile.warps_wide > 0, 0, shape.run_rows),
        block_runs=shape.block_runs,
        at_once=where(shape.resident, at_once, 0),
        origins=(0, tile.row_origin, tile.origin),
        columns_together=1,
    )


def row_groups(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Groups of neighbouring rows of positions that a thread, or a block's tile, owns; over the whole batch."""
    depth, height, _ = layer.axes
    rows = height.positions(problem.output_size[1] + kernel.origins[1])
    return problem.batch * depth.positions(problem.output_size[0]) * ceil_div(rows, kernel.rows)


def runs(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Runs of positions that a warp owns at once, over the whole batch."""
    width = layer.axes[2].positions(problem.output_size[2] + kernel.origins[2])
    groups = row_groups(problem, layer, kernel)
    rows = where(kernel.groups > 0, ceil_div(groups, most(1, kernel.groups)), groups * kernel.block_runs)
    return rows * ceil_div(width, kernel.columns)


def grid(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Blocks of a launch. Those with resident weights go on to further positions."""
    blocks = ceil_div(runs(problem, layer, kernel), kernel.block_runs)
    return kernel.parts * where(kernel.at_once > 0, least(blocks, kernel.at_once), blocks)


def counted(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """What must stay below 2^31: numbers of blocks."""
    return grid(problem, layer, kernel)


def needs_wide_index(problem: Problem, layer: Layer, kernel: LaunchTraits) -> bool:
    """Whether numbers of rows, runs or elements of a plane go beyond 2^31."""
    # A block's walk over the runs passes their end by less than as many again.
    walked = 2 * (row_groups(problem, layer, kernel) + runs(problem, layer, kernel) + kernel.block_runs)
    planes = [size[0] * size[1] * size[2] for size in (problem.input_size, problem.output_size)]
    return max(walked, *planes) >= INDEX_LIMIT
