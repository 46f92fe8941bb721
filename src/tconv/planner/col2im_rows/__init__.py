"""The `col2im_rows` family: col2im down the rows of a map, on Hopper, for layers of few output channels."""

from __future__ import annotations

import math
from functools import lru_cache

from tconv.planner.col2im_rows import launch as rules
from tconv.planner.col2im_rows.candidates import MOST_CHANNEL_BLOCKS, candidates, fits
from tconv.planner.col2im_rows.launch import launch_traits
from tconv.planner.col2im_rows.model import Col2imRowsCost, predict
from tconv.planner.col2im_rows.shape import INPUTS, MOST_COLUMNS, MOST_OUTPUT_ROWS, Col2imRowsShape
from tconv.planner.col2im_rows.tile import Col2imRowsTile
from tconv.planner.family import Candidates, Family, Ranked
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import ceil_div, length
from tconv.planner.plan import Kernel
from tconv.problem import SUMMED_IN_FLOAT, Layer, Problem

#: Positions by which a block may pass the end of an axis: more than a line has, and shifts.
_MOST_POSITIONS = 4096
#: Output channels of a group, beyond which others are faster.
_MOST_CHANNELS = 8


class _Col2imRows(Family[Col2imRowsTile]):
    name = "col2im_rows"
    tile = Col2imRowsTile
    shape = Col2imRowsShape
    rules = rules
    launch_traits = staticmethod(launch_traits)
    on_tensor_cores = True
    alignment = 16
    reach = "phases"

    def why_not(self, problem: Problem, gpu: Gpu) -> str | None:
        if reason := self.no_hopper(gpu):
            return reason
        return self.too_long(problem, _MOST_POSITIONS) or why_not_col2im_rows(problem.layer)

    def candidates(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[Col2imRowsTile] | None:
        return _candidates(problem, gpu, channels_last)

    def best(
        self, problem: Problem, gpu: Gpu, channels_last: bool = False
    ) -> tuple[Ranked[Col2imRowsTile], int] | None:
        return _best(problem, gpu, channels_last)

    def cost(self, problem: Problem, kernel: Kernel[Col2imRowsTile], gpu: Gpu) -> Col2imRowsCost:
        return predict(problem, kernel.layer, kernel.tile, gpu)

    def runs(self, kernel: Kernel[Col2imRowsTile], problem: Problem) -> bool:
        return fits(problem, kernel.tile)

    def reads_channels_last(self, kernel: Kernel[Col2imRowsTile]) -> bool:
        return bool(kernel.tile.channels_last)

    def reasons(self, problem: Problem, kernel: Kernel[Col2imRowsTile]) -> tuple[str, ...]:
        layer, tile = kernel.layer, kernel.tile
        own = Col2imRowsShape(layer, tile)
        return (
            f"a team of {own.team_inputs // INPUTS} warpgroups has {tile.columns} inputs of a row, in each of "
            f"{own.lines} lines; it goes down {own.input_rows} rows for {tile.rows} positions",
            f"an input gives to {own.columns} outputs: {own.height.shifts} shifts along the height, each of "
            f"{tile.channels} channels, {math.prod(layer.stride)} phases and {own.width.shifts} shifts along the width",
            f"{tile.warpgroups} warpgroups of a block share its weights",
            f"a warpgroup's inputs come through {tile.input_stages} stages of shared memory, {tile.vector} by a copy"
            if tile.input_stages
            else "inputs go from memory to registers",
        )


def why_not_col2im_rows(layer: Layer) -> str | None:
    if layer.precision not in SUMMED_IN_FLOAT:
        return f"the col2im_rows family has no kernels for {layer.precision}"
    channels = layer.out_channels_per_group
    if channels > _MOST_CHANNELS:
        return f"{channels} output channels are more than the col2im_rows family's {_MOST_CHANNELS}"
    channels = ceil_div(channels, MOST_CHANNEL_BLOCKS)
    smallest = Col2imRowsShape(layer, Col2imRowsTile(1, INPUTS, 1, channels, 1, 1, 0, 0, 1))
    if not smallest.fits_products:
        return (
            f"an input gives to {smallest.columns} outputs of {channels} channels, in {smallest.output_rows} rows of a "
            f"position; a block of the col2im_rows family has room for {MOST_COLUMNS} in {MOST_OUTPUT_ROWS}, and a "
            f"group has {MOST_CHANNEL_BLOCKS} blocks at most"
        )
    return None


@lru_cache(maxsize=256)
def _candidates(problem: Problem, gpu: Gpu, channels_last: bool) -> Candidates[Col2imRowsTile] | None:
    tiles = candidates(problem, gpu, channels_last)
    if tiles is None:
        return None
    return Candidates("col2im_rows", problem.layer, tiles, predict(problem, problem.layer, tiles, gpu), length(tiles))


@lru_cache(maxsize=4096)
def _best(problem: Problem, gpu: Gpu, channels_last: bool) -> tuple[Ranked[Col2imRowsTile], int] | None:
    considered = _candidates(problem, gpu, channels_last)
    return None if considered is None else (considered.first(1)[0], len(considered))


COL2IM_ROWS = _Col2imRows()
