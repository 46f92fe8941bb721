"""The tiles of the `wgmma` family that are worth a prediction."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tconv.planner.block_tiles import works
from tconv.planner.gpu import Gpu
from tconv.planner.input_order import has_vectors
from tconv.planner.numbers import Array, joined, length, taken
from tconv.planner.shifts import halo
from tconv.planner.wgmma.builder import (
    PRODUCT_ROWS,
    can_stack,
    can_stay,
    phase_choices,
    suits,
    wgmma_tile,
    with_resident_weights,
    with_stages,
)
from tconv.planner.wgmma.launch import launch_traits
from tconv.planner.wgmma.shape import CONSUMERS, TILE_POSITIONS, WgmmaShape, accumulated_phases, is_uniform
from tconv.planner.wgmma.tile import WgmmaTile
from tconv.problem import Layer, Problem

BlockTileSizes = tuple[int, int, int, int]

_POSITION_TILES = (1, 2, 4, 8)
_STEPS = (2, 4)
#: Block tiles of each number of positions that waste the least.
_BLOCK_TILES = 6
_MOST_ACCUMULATORS = 256
#: Stages of weights that stay: each has a barrier.
_MOST_RESIDENT = 128
#: Bytes of weights that a block prepares itself.
_MOST_OWN_BYTES = 96 * 1024
#: Neighbouring columns of a block tile that are tried.
_COLUMNS = (4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48, 52, 56, 64, 80, 96, 104, 112, 128, 256, 512)
#: Those that cut the fewest sectors; about as many outputs as are stored while two ends are, which cut one each.
_UNCUT_BLOCK_TILES, _CUT_OUTPUTS = 3, 75
#: Block tiles that share the columns of a row evenly.
_MOST_SHARES = 8


def candidates(
    problem: Problem, layer: Layer, gpu: Gpu, channels_last: bool = False, together: int = 1
) -> WgmmaTile | None:
    """Tiles with which a kernel of `layer` computes `problem`, with loads of up to `together` inputs, as arrays.

    None where none fits.
    """
    # Contiguous inputs may be prepared, where that gives whole vectors of channels.
    block_tiles = {
        (prepared, tiles, stacked): _block_tiles(
            problem,
            layer,
            tiles,
            stacked > 0,
            1 if channels_last or prepared else together,
            prepared > 0,
            not channels_last and problem.output_size[2] * layer.item_bytes % 32 > 0,
        )
        for prepared in ((0, 1) if has_vectors(layer) and not channels_last else (0,))
        for tiles in _POSITION_TILES
        for stacked in ((0, 1) if can_stack(layer) and tiles > 1 else (0,))
    }
    rows = [
        (prepared, tiles, stacked, channels, phases, *block_tile, patch)
        for (prepared, tiles, stacked), found in block_tiles.items()
        for phases, channels in _rows(layer)
        if tiles * accumulated_phases(layer, phases) * channels <= _MOST_ACCUMULATORS
        for block_tile, patch in found
    ]
    if not rows:
        return None
    prepared, position_tiles, stacked, channels, phases, *block_tile, patch = np.repeat(
        np.array(rows).T, len(_STEPS), axis=1
    )
    k_tile_steps: Array = np.tile(np.array(_STEPS), len(rows))
    tile = wgmma_tile(
        layer,
        block_tile=(block_tile[0], block_tile[1], block_tile[2], block_tile[3]),
        channels=channels,
        phases=phases,
        position_tiles=position_tiles,
        stacked=stacked,
        k_tile_steps=k_tile_steps,
        patch_columns=patch,
        channels_last=channels_last,
        prepared_inputs=prepared,
    )
    tile = taken(tile, np.flatnonzero(suits(WgmmaShape(layer, tile))))
    kinds = [tile]
    for may, own in ((_may_stay(problem, layer, tile, gpu), 0), (_may_be_own(layer, tile, gpu), 1)):
        if len(stay := np.flatnonzero(may)):
            kinds.append(with_resident_weights(layer, taken(tile, stay), own))
    tile = joined(kinds, list(map(length, kinds)))
    tile = with_stages(layer, tile, gpu.shared_bytes_per_block)
    # Beside weights that stay, inputs come while others are multiplied.
    enough = (tile.resident == 0) | (tile.input_stages > 1)
    fits = np.flatnonzero(enough & (WgmmaShape(layer, tile).shared_bytes <= gpu.shared_bytes_per_block))
    return taken(tile, fits) if len(fits) else None


def _may_stay(problem: Problem, layer: Layer, tile: WgmmaTile, gpu: Gpu) -> Array:
    """Where a block's weights may stay in shared memory, and are read more than once."""
    shape, kernel = WgmmaShape(layer, tile), launch_traits(layer, tile, gpu.multiprocessors)
    few = _are_few(shape, gpu) & (shape.set_bytes <= gpu.shared_bytes_per_block)
    return few & (works(problem, layer, kernel) > kernel.at_once)


def _may_be_own(layer: Layer, tile: WgmmaTile, gpu: Gpu) -> Array:
    """Where a block may prepare the weights that stay: all blocks do, where another kernel would do it once."""
    shape = WgmmaShape(layer, tile)
    return _are_few(shape, gpu) & (shape.phase_sets == 1) & (shape.set_bytes <= _MOST_OWN_BYTES)


def _are_few(shape: WgmmaShape, gpu: Gpu) -> Array:
    few = (shape.k_tiles * shape.visits <= _MOST_RESIDENT) & (shape.weight_sets <= gpu.multiprocessors)
    return few & can_stay(shape)


def _rows(layer: Layer) -> list[tuple[int, int]]:
    """Phases and channels of a block, where little of its rows is padding."""
    found = []
    for phases, rows in itertools.product(phase_choices(layer), PRODUCT_ROWS):
        together = phases if is_uniform(layer) else 1
        channels = rows // together
        if rows % together or channels % 8:
            continue
        blocks = -(-layer.out_channels_per_group // channels)
        if blocks * channels < 2 * layer.out_channels_per_group or channels == 8:
            found.append((phases, channels))
    return found


def _block_tiles(
    problem: Problem, layer: Layer, tiles: int, stacked: bool, together: int, shared: bool, cuts: bool
) -> list[tuple[BlockTileSizes, int]]:
    """Block tiles of at most so many positions that waste little: within, at the map's border, around.

    Each with the neighbours that are loaded at once. `shared` ones may share the columns of a row evenly: nothing asks
    for block tiles that begin at multiples of several columns. Where rows of outputs begin within sectors of memory,
    `cuts`, block tiles that have few rows, or a part of them, cut many sectors in two: some that do not are there as
    well.
    """
    depth, height, width = (
        axis.positions(output) for axis, output in zip(layer.axes, problem.output_size, strict=True)
    )
    halos = [halo(axis) for axis in layer.axes]
    numbers = CONSUMERS * TILE_POSITIONS * (1 if stacked else tiles)
    of_row = tiles if stacked else 1
    found: dict[tuple[BlockTileSizes, int], float] = {}
    uncut: dict[tuple[BlockTileSizes, int], float] = {}
    shares = {-(-width // count) for count in range(2, _MOST_SHARES + 1)} if shared else set()
    for columns in sorted({*(c for c in _COLUMNS if c < width), *shares, width, width + width % 2, width + -width % 4}):
        if columns > numbers:
            continue
        patch = math.gcd(columns, together)
        most_rows = max(1, numbers // columns)
        enough = -(-height // of_row)
        full = min(most_rows, enough)
        for rows in {full, max(1, full // 2), min(most_rows, -(-enough // 2)), min(full, 4), min(full, 2), 1}:
            left = numbers // (columns * rows)
            slabs = min(depth, left)
            for depths in {slabs, max(1, min(depth, round(slabs**0.5)))}:
                images = max(1, min(problem.batch, left // depths))
                block_tile = (images, depths, rows * of_row, columns)
                sizes = (problem.batch, depth, height, width)
                count = math.prod(-(-n // b) for n, b in zip(sizes, block_tile, strict=True))
                around = math.prod((b + h) / b for b, h in zip(block_tile[1:], halos, strict=True))
                wasted = count * numbers * of_row / math.prod(sizes)
                found[block_tile, patch] = wasted * (1 + 0.1 * around) * (1 + 0.5 / patch) * (1 + 2 / columns)
                behind = rows * of_row * layer.stride[1] if columns >= width else 1
                uncut[block_tile, patch] = found[block_tile, patch] * (
                    1 + _CUT_OUTPUTS / (behind * columns * layer.stride[2])
                )
    kept = sorted(found, key=lambda key: found[key])[:_BLOCK_TILES]
    return list(dict.fromkeys([*kept, *sorted(uncut, key=lambda key: uncut[key])[: _UNCUT_BLOCK_TILES * cuts]]))
