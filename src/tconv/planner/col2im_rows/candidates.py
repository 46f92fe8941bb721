"""The tiles of the `col2im_rows` family that are worth a prediction."""

from __future__ import annotations

import math
from dataclasses import replace

from tconv.planner.col2im_rows.shape import INPUTS, WARP_INPUTS, Col2imRowsShape
from tconv.planner.col2im_rows.tile import Col2imRowsTile
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import crossed, every, taken, where
from tconv.planner.shifts import uncropped_positions
from tconv.problem import Problem

#: What is tried: warpgroups of a block; inputs of a line; steps of a k-tile; stages of inputs, or none; blocks that
#: share the output channels of a group; parts of the height.
_WARPGROUPS = (1, 2, 3, 4)
_COLUMNS = (WARP_INPUTS, 2 * WARP_INPUTS, *(INPUTS * warpgroups for warpgroups in _WARPGROUPS))
_K_TILE_STEPS = (1, 2, 3, 4, 5, 6, 7, 8)
_INPUT_STAGES = (0, 2, 3, 4)
MOST_CHANNEL_BLOCKS = 4
_RANGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_MOST_ROWS = 2048


def candidates(problem: Problem, gpu: Gpu, channels_last: bool = False) -> Col2imRowsTile | None:
    """Tiles that compute `problem`, as arrays; None where none fits."""
    layer = problem.layer
    positions = uncropped_positions(layer.axes[1], problem.output_size[1])
    rows = sorted({min(_MOST_ROWS, -(-positions // ranges)) for ranges in _RANGES if ranges <= positions})
    channels = sorted({-(-layer.out_channels_per_group // parts) for parts in range(1, MOST_CHANNEL_BLOCKS + 1)})
    copied = copied_inputs(problem)
    stages = _INPUT_STAGES if copied and not channels_last else (0,)
    pairs = problem.input_size[2] % 2 == 0 and not channels_last
    places = crossed(len(_WARPGROUPS), len(_COLUMNS), len(rows), len(channels), len(_K_TILE_STEPS), len(stages))
    warpgroup, column, row, channel, step, stage = places
    input_stages = every(stages, stage)
    tiles = Col2imRowsTile(
        warpgroups=every(_WARPGROUPS, warpgroup),
        columns=every(_COLUMNS, column),
        rows=every(rows, row),
        channels=every(channels, channel),
        k_tile_steps=every(_K_TILE_STEPS, step),
        vector=where(input_stages > 0, copied, 2 if pairs else 1),
        input_stages=input_stages,
        channels_last=int(channels_last),
        blocks=1,
    )
    shape = Col2imRowsShape(layer, tiles)
    good = shape.fits_products & shape.fits_registers & (shape.shared_bytes <= gpu.shared_bytes_per_block)
    good &= tiles.warpgroups * INPUTS % shape.team_inputs == 0
    # K-tiles are whole, or there is one.
    good &= (shape.k_steps % tiles.k_tile_steps == 0) | (shape.k_tiles == 1)
    good &= tiles.k_tile_steps <= shape.k_steps
    # Narrow copies go through the L1 cache, to which many stages leave little.
    good &= (input_stages < _INPUT_STAGES[-1]) | (shape.loaded_bytes == 16)
    if not good.any():
        return None
    tiles = taken(tiles, good)
    return replace(tiles, blocks=Col2imRowsShape(layer, tiles).blocks_that_fit)


def copied_inputs(problem: Problem) -> int:
    """Neighbouring inputs that a copy to shared memory may have; 0 where rows have none of 4 bytes or more."""
    item_bytes = problem.layer.item_bytes
    found = math.gcd(16, problem.input_size[2] * item_bytes)
    return found // item_bytes if found >= 4 else 0


def fits(problem: Problem, tile: Col2imRowsTile) -> bool:
    """Whether a kernel with `tile` runs `problem`: its rows have whole loads, or copies."""
    return problem.input_size[2] % tile.vector == 0
