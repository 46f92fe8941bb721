"""The tiles of the `direct` family that are worth a prediction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tconv.planner.direct.builder import LANES, SHARED_BYTES, default_tile, direct_tile, is_small, phases_on_lanes
from tconv.planner.direct.launch import launch_traits, runs
from tconv.planner.direct.shape import DirectShape
from tconv.planner.direct.tile import DirectTile
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import Array, equals, joined, length, taken
from tconv.problem import Layer, Problem

#: What is tried. A column or row of positions that lies outside the map is work for nothing: so much of it is allowed.
_COLUMNS = (32, 16, 8, 4, 2, 1)
_POSITIONS = (1, 2, 4)
_ROWS = (0, 1, 2, 4)
_CHANNELS = (1, 2, 3, 4, 8, 16)
_LANES = (128, 64)
_SPLITS = np.array((1, 2, 4, 8))
_MOST_WASTE = 1.35
_LEAST_ACCUMULATORS = 4
#: Threads of a block, and input channels of a set of warps that is worth its own.
_MOST_THREADS = 512
_LEAST_CHANNELS = 4
#: Warps of a multiprocessor up to which sharing input channels may pay.
_FEW_WARPS = 24
#: Registers are estimated, and the compiler is asked whether it can do with less: a tile is also tried with so much.
_OPTIMISM = 1.06


def candidates(problem: Problem, gpu: Gpu) -> DirectTile:
    """Tiles for `problem`, all of which compute it, as arrays; the one that serves any size is the first."""
    layer = problem.layer
    first = default_tile(layer)
    column: Array = np.array([first.columns])
    default = replace(first, columns=column)
    chosen = [] if phases_on_lanes(layer) else list(_choices(problem))
    if not chosen:
        return default
    columns, positions, channels, rows, lanes, warps_wide, ahead = np.array(chosen).T
    tiles = direct_tile(layer, columns, positions, channels, rows, 1, lanes, warps_wide, ahead)
    shape = DirectShape(layer, tiles)
    good: Array = is_small(layer, tiles) & (shape.thread_accumulators >= _LEAST_ACCUMULATORS)
    # Of few warps, several sets share the input channels.
    warps = runs(problem, layer, launch_traits(layer, tiles, gpu.multiprocessors)) * shape.parts
    few: Array = warps < _FEW_WARPS * gpu.multiprocessors
    splits: Array = np.where(few[:, None], _SPLITS, 1)
    tried = good[:, None] & (few[:, None] | (np.arange(len(_SPLITS)) == 0))
    tried &= splits <= max(1, layer.in_channels_per_group // _LEAST_CHANNELS)
    tried &= splits * lanes[:, None] <= _MOST_THREADS
    of, split = np.nonzero(tried)
    if len(of) == 0:
        return default
    columns, positions, channels, rows, lanes, warps_wide, ahead = (values[of] for values in np.array(chosen).T)
    tiles = direct_tile(layer, columns, positions, channels, rows, splits[of, split], lanes, warps_wide, ahead)
    tiles = taken(tiles, DirectShape(layer, tiles).shared_bytes <= min(SHARED_BYTES, gpu.shared_bytes_per_block))
    tiles = _with_hopeful_blocks(layer, tiles)
    # The first of all may be among them.
    others = ~equals(tiles, first)
    return joined([default, taken(tiles, others)], [1, int(others.sum())])


def _with_hopeful_blocks(layer: Layer, tiles: DirectTile) -> DirectTile:
    """Each tile, and behind it with more blocks on a multiprocessor where fewer registers would let them."""
    count = length(tiles)
    hopeful = DirectShape(layer, tiles).blocks_that_fit(_OPTIMISM)
    both = taken(tiles, np.repeat(np.arange(count), 2))
    blocks: Array = np.stack([np.broadcast_to(tiles.blocks, count), hopeful], axis=1)
    differs = np.stack([np.ones(count, bool), blocks[:, 0] != blocks[:, 1]], axis=1)
    return taken(replace(both, blocks=blocks.reshape(-1)), differs.reshape(-1))


def _choices(problem: Problem) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """Columns, positions, channels, rows, lanes, warps side by side and whether inputs are asked for ahead."""
    layer = problem.layer
    width = layer.axes[2].positions(problem.output_size[2])
    channels = [c for c in _CHANNELS if c < 2 * layer.out_channels_per_group]
    if layer.out_channels_per_group != 3:
        channels = [c for c in channels if c & (c - 1) == 0]
    for columns, positions in _runs_that_fit(width):
        for rows, count, lanes in itertools.product(_ROWS, channels, _LANES):
            for warps_wide, ahead in _ways_of_reading(layer, rows, lanes, width / (columns * positions)):
                yield columns, positions, count, rows, lanes, warps_wide, ahead


def _runs_that_fit(width: int) -> Iterator[tuple[int, int]]:
    """Columns and positions of runs that waste little of rows of `width` positions, and are as wide as that allows."""
    for positions in _POSITIONS:
        best = 2.0
        # The lanes of a warp would else read many rows, each a little.
        for columns in (c for c in _COLUMNS if c >= min(8 if positions == 1 else 16, width // 2)):
            run = columns * positions
            waste = -(-width // run) * run / width
            if waste < 0.92 * best:
                best = min(best, waste)
                if waste <= _MOST_WASTE or columns == 1:
                    yield columns, positions


def _ways_of_reading(layer: Layer, rows: int, lanes: int, runs_a_row: float) -> Iterator[tuple[int, int]]:
    """Warps side by side in a block's tile, or 0 for reading through the L1 cache; and whether that is done ahead."""
    flat = layer.axes[1].is_trivial
    warps = lanes // LANES
    if not rows or not flat:
        yield from ((0, 0), (0, 1))
    if rows > 1 and flat:
        return
    if rows:
        wide = (warps,) if flat else (1, 2, 4)
        yield from ((w, 0) for w in wide if w <= warps and (w == 1 or flat or w < 2 * runs_a_row))
