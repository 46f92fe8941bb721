"""The tiles of the `mma` family that are worth a prediction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tconv.planner.block_tiles import grid
from tconv.planner.gpu import Gpu
from tconv.planner.mma.builder import (
    can_copy,
    can_stay,
    finished,
    holds_inputs,
    mma_tile,
    row_channels,
    row_tiles_of,
    suits_channels,
    with_more_stages,
    with_resident_weights,
)
from tconv.planner.mma.launch import launch_traits
from tconv.planner.mma.shape import MmaShape
from tconv.planner.mma.tile import MmaTile
from tconv.planner.numbers import Array, joined, taken
from tconv.planner.shifts import halo
from tconv.problem import Layer, Problem

BlockTileSizes = tuple[int, int, int, int]

#: Registers of a thread for accumulators.
_MOST_ACCUMULATORS = 128
_WARPS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2))
_POSITION_TILES = (8, 4, 2)
#: Positions that a block multiplies.
_POSITIONS = sorted({8 * wide * tiles for (_, wide), tiles in itertools.product(_WARPS, _POSITION_TILES)})
_STEPS = (1, 2, 4, 8)
_SPLITS = (2, 4)
_MOST_THREADS = 256
#: Shared memory of a block, of less than so many threads and of as many.
_SHARED_BYTES = (112 * 1024, 227 * 1024)
#: Warps of a multiprocessor up to which sharing input channels may pay.
_FEW_WARPS = 8
#: Candidates have block tiles that waste little more than the best.
_BLOCK_TILES = 4
#: The best block tiles of those are tried with copied inputs, too.
_COPIED_BLOCK_TILES = 2


def candidates(
    problem: Problem, layer: Layer, gpu: Gpu, channels_last: bool = False, together: int = 1
) -> MmaTile | None:
    """Tiles with which a kernel of `layer` computes `problem`, with loads of up to `together` inputs, as arrays.

    None where none fits.
    """
    found = _plain(problem, layer, gpu, channels_last)
    if found is None:
        return None
    plain, limits = found
    shape = MmaShape(layer, plain)
    tried = suits_channels(shape) & (shape.shifts_that_fit(limits.shared_bytes) > 0)
    copies = suits_channels(shape) & can_copy(layer, plain, together) & (limits.block_tile_number < _COPIED_BLOCK_TILES)
    keys, tiles = [], []
    for copied, of in enumerate((np.flatnonzero(tried), np.flatnonzero(copies))):
        if len(of) == 0:
            continue
        for variant, (numbers, made) in enumerate(
            _variants(problem, layer, taken(plain, of), taken(limits, of), gpu, together, copied=copied > 0)
        ):
            keys.append(8 * of[numbers] + 4 * copied + variant)
            tiles.append(made)
    lengths = [len(part) for part in keys]
    if sum(lengths) == 0:
        return None
    return taken(joined(tiles, lengths), np.argsort(np.concatenate(keys), kind="stable"))


@dataclass(frozen=True)
class _Limits:
    """Of each tile.

    Args:
        shared_bytes: what a block may have: of few warps, several blocks share a multiprocessor.
        block_tile_number: how many block tiles waste less.
    """

    shared_bytes: Array
    block_tile_number: Array


def _plain(problem: Problem, layer: Layer, gpu: Gpu, channels_last: bool) -> tuple[MmaTile, _Limits] | None:
    """Everything that is tried, in its plainest form."""
    block_tiles = {count: _block_tiles(problem, layer, count) for count in _POSITIONS}
    rows = [
        (high, wide, position_tiles, row_tiles, *block_tile, number)
        for (high, wide), position_tiles in itertools.product(_WARPS, _POSITION_TILES)
        for row_tiles in _row_tiles(layer, position_tiles)
        if high == 1 or row_tiles * (high - 1) < row_tiles_of(layer)
        for number, block_tile in enumerate(block_tiles[8 * wide * position_tiles])
    ]
    if not rows:
        return None
    width = layer.axes[2]
    further = list(itertools.product(sorted({0, width.padding % width.stride}), _STEPS))
    high, wide, position_tiles, row_tiles, *block_tile, number = np.repeat(np.array(rows).T, len(further), axis=1)
    origin, k_tile_steps = np.tile(np.array(further).T, len(rows))
    tile = mma_tile(
        layer,
        high=high,
        wide=wide,
        row_tiles=row_tiles,
        position_tiles=position_tiles,
        block_tile=(block_tile[0], block_tile[1], block_tile[2], block_tile[3]),
        k_tile_steps=k_tile_steps,
        origin=origin,
        channels_last=channels_last,
    )
    shared = [min(limit, gpu.shared_bytes_per_block) for limit in _SHARED_BYTES]
    return tile, _Limits(np.where(tile.threads == _MOST_THREADS, shared[1], shared[0]), number)


def _variants(
    problem: Problem, layer: Layer, plain: MmaTile, limits: _Limits, gpu: Gpu, together: int, copied: bool
) -> Iterator[tuple[Array, MmaTile]]:
    """Tiles with resident weights, as they are, and with several sets of warps, where each of them may pay.

    Of each kind the numbers of their plain tiles, and the tiles.
    """
    tiles = finished(layer, plain, together, limits.shared_bytes, copied)
    of = np.flatnonzero(holds_inputs(MmaShape(layer, tiles)))
    tiles, limits = taken(tiles, of), taken(limits, of)
    shape = MmaShape(layer, tiles)
    fits = shape.shared_bytes <= limits.shared_bytes
    blocks: Array = grid(problem, layer, launch_traits(layer, tiles, gpu.multiprocessors))

    stays = np.flatnonzero(can_stay(shape))
    resident, most_shared = with_resident_weights(layer, taken(tiles, stays)), limits.shared_bytes[stays]
    of_resident = MmaShape(layer, resident)
    fewer = grid(problem, layer, launch_traits(layer, resident, gpu.multiprocessors)) < blocks[stays]
    pays = (of_resident.shared_bytes <= most_shared) & fewer
    resident = taken(resident, pays)
    yield of[stays[pays]], with_more_stages(layer, resident, most_shared[pays]) if copied else resident
    yield of[fits], taken(tiles, fits)

    # So many warps that further ones would not shorten the work.
    busy = blocks * tiles.threads // 32 >= _FEW_WARPS * gpu.multiprocessors
    for splits in _SPLITS:
        may = np.flatnonzero(fits & ~busy & (tiles.threads * splits <= _MOST_THREADS))
        several, most_shared = taken(plain, of[may]), limits.shared_bytes[may]
        several = replace(several, warps=replace(several.warps, splits=splits))
        several = finished(layer, several, together, most_shared, copied)
        shape = MmaShape(layer, several)
        suits = suits_channels(shape) & holds_inputs(shape) & (shape.shared_bytes <= most_shared)
        yield of[may[suits]], taken(several, suits)


def _row_tiles(layer: Layer, position_tiles: int) -> list[int]:
    """Tiles of rows for a warp: with all phases of its channels where they fit, else some powers of two."""
    phases = -(-math.prod(layer.stride) * row_channels(layer) // 16)
    words = (
        2 if layer.precision in ("fp32", "fp64") else 1
    )  # exact products have accumulators of their own, fp64 long ones
    most = _MOST_ACCUMULATORS // words // (4 * position_tiles)
    whole = [phases * n for n in (1, 2, 4, 8) if phases * n <= most]
    if _every_phase_has_every_shift(layer):
        # Nothing is left out, so it does not matter whether the compiler knows a warp's phases: a row's are enough.
        columns = -(-layer.stride[2] * row_channels(layer) // 16)
        whole += [columns * n for n in (1, 2, 4, 8) if columns * n <= most and phases % columns == 0]
    # All rows, or an even part of them: no tile multiplies for nothing.
    every = row_tiles_of(layer)
    whole += [every // n for n in (1, 2, 3, 4) if every % (n * phases) == 0 and every // n <= most]
    counts = list(dict.fromkeys(whole)) or [n for n in (1, 2, 4, 8) if n <= most]
    return [n for n in counts if n < 2 * row_tiles_of(layer)]


def _every_phase_has_every_shift(layer: Layer) -> bool:
    return all(axis.dilation == 1 and axis.kernel % axis.stride == 0 for axis in layer.axes)


def _block_tiles(problem: Problem, layer: Layer, positions: int) -> list[BlockTileSizes]:
    """Block tiles of at most so many positions that waste little: within, at the map's border, around."""
    depth, height, width = (
        axis.positions(output + axis.padding % axis.stride)
        for axis, output in zip(layer.axes, problem.output_size, strict=True)
    )
    halos = [halo(axis) for axis in layer.axes]
    found: dict[BlockTileSizes, float] = {}
    for most_columns in {width, width + width % 2, *(2**n for n in range(1, 9) if 2**n < width)}:
        columns = min(most_columns, positions)
        rows = 1
        while rows <= min(height, positions // columns):
            depths = min(depth, positions // (columns * rows))
            for slabs in {depths, min(depth, max(1, round(depths**0.5)))}:
                images = min(problem.batch, positions // (columns * rows * slabs)) if slabs == depth else 1
                block_tile = (max(1, images), slabs, rows, columns)
                count = math.prod(
                    -(-n // b) for n, b in zip((problem.batch, depth, height, width), block_tile, strict=True)
                )
                around = math.prod((b + h) / b for b, h in zip(block_tile[1:], halos, strict=True))
                wasted = count * positions / (problem.batch * depth * height * width)
                # Short rows are parts of sectors of memory.
                short = 16 / (columns * layer.stride[2] * layer.item_bytes) + 16 / (columns * layer.item_bytes)
                found[block_tile] = wasted * (1 + 0.15 * around) * (1 + short) * (1.1 if columns % 2 else 1)
            rows = rows * 2 if rows * 2 <= height or rows >= height else height
    return sorted(found, key=lambda block_tile: found[block_tile])[:_BLOCK_TILES]
