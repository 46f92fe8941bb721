"""How a kernel of the `col2im_rows` family is launched: `col2im_rows_launch` of `kernels/col2im_rows/launch.cuh`.

What is asked may be of many tiles at once (`tconv.planner.numbers`).
"""

from __future__ import annotations

from typing import NamedTuple

from tconv.planner.col2im_rows.shape import Col2imRowsShape
from tconv.planner.col2im_rows.tile import Col2imRowsTile
from tconv.planner.numbers import ceil_div, where
from tconv.planner.shifts import uncropped_positions
from tconv.problem import Layer, Problem


class LaunchTraits(NamedTuple):
    """What launches need to know of a kernel of this family.

    Args:
        threads: of a block.
        shared_bytes: of a block.
        teams: of a block; each has one strip of so many lines.
        lines, rows: lines of a team, and positions along the height of each.
        columns, first_column, strip_step: inputs of a line in a strip, the first of the first one, and from one strip
            to the next.
        weight_sets: blocks with different weights.
        columns_together: neighbouring inputs that are loaded at once.
        weight_bytes, preparing_blocks: of a launch before it; there is none.
    """

    threads: int
    shared_bytes: int
    teams: int
    lines: int
    rows: int
    columns: int
    first_column: int
    strip_step: int
    weight_sets: int
    columns_together: int
    weight_bytes: int = 0
    preparing_blocks: int = 0


def launch_traits(layer: Layer, tile: Col2imRowsTile, multiprocessors: int) -> LaunchTraits:
    """Of a kernel that was compiled with `tile`, or with many; the number of multiprocessors does not matter."""
    shape = Col2imRowsShape(layer, tile)
    return LaunchTraits(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        teams=shape.teams,
        lines=shape.lines,
        rows=tile.rows,
        columns=tile.columns,
        first_column=shape.first_column,
        strip_step=shape.strip_step,
        weight_sets=shape.weight_sets,
        columns_together=tile.vector,
    )


def works(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Strips of as many lines as a team has, of one set of weights."""
    depth, height, _ = layer.axes
    depths = uncropped_positions(depth, problem.output_size[0])
    ranges = ceil_div(uncropped_positions(height, problem.output_size[1]), kernel.rows)
    beyond = problem.input_size[2] - kernel.first_column - kernel.columns
    strips = where(beyond <= 0, 1, 1 + ceil_div(beyond, kernel.strip_step))
    return ceil_div(problem.batch * depths * ranges, kernel.lines) * strips


def grid(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """Blocks of a launch."""
    return kernel.weight_sets * ceil_div(works(problem, layer, kernel), kernel.teams)


def counted(problem: Problem, layer: Layer, kernel: LaunchTraits) -> int:
    """What must stay below 2^31: the numbers of works, some of which may not exist."""
    return grid(problem, layer, kernel) * kernel.teams


def needs_wide_index(problem: Problem, layer: Layer, kernel: LaunchTraits) -> bool:
    """Never: offsets have 64 bits."""
    return False
