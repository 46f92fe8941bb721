"""The tiles of the `col2im` family that are worth a prediction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tconv.planner.col2im.shape import Col2imShape, overlap, spans
from tconv.planner.col2im.tile import BlockTile, Col2imTile, Warps
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import Array, joined, least, length, most, taken
from tconv.problem import Layer, Problem

#: Positions of a block that are tried, its warps (in rows, in positions, sets of them), and blocks of a multiprocessor.
_POSITIONS = (8, 16, 32, 64, 128)
_WARPS = tuple(
    Warps(high, wide, splits)
    for high, wide, sets in ((1, 1, (1, 2, 4, 8, 16)), (1, 2, (2, 4)), (2, 1, (2, 4)), (2, 2, (1, 2, 4)))
    for splits in sets
)
_BLOCKS = (1, 2, 4)
#: Registers of a thread for accumulators, at least where warps share a step, and at most; and rows of a block.
_LEAST_SHARED_ACCUMULATORS, _MOST_ACCUMULATORS, _MOST_ROWS = 32, 128, 256
#: Of the inputs of block tiles that overlap, how many are multiplied for each that there is.
_MOST_REPEATED = 2.0
#: A thread divides numbers below this (`QuickDivisor` of the headers): outputs of a block.
_MOST_OUTPUTS = 2**21
#: Bytes of an asynchronous copy, at least.
_LEAST_COPY = 4
#: Shared memory of a multiprocessor, and what a block takes of it beside its own.
_SHARED_BYTES, _RESERVED = 227 * 1024, 1024


def col2im_tile(
    problem: Problem,
    block_tile: BlockTile,
    *,
    warps: Warps,
    channels: int,
    stages: int,
    channels_last: bool = False,
) -> Col2imTile:
    """The tile with these numbers, and the largest copies that the sizes of `problem` allow."""
    tile = Col2imTile(
        warps=warps,
        block_tile=block_tile,
        channels=channels,
        stages=stages,
        patch_positions=1,
        runs=0,
        inputs_last=int(channels_last or math.prod(problem.input_size) == 1),
        channels_last=int(channels_last),
        blocks=1,
    )
    if not tile.inputs_last:
        together = _patch_positions(problem, block_tile)
        alone = together * problem.layer.item_bytes < _LEAST_COPY and _lies_in_runs(problem, block_tile)
        tile = replace(tile, runs=1) if alone else replace(tile, patch_positions=together)
    return replace(tile, blocks=Col2imShape(problem.layer, tile).blocks_that_fit)


def candidates(problem: Problem, gpu: Gpu, channels_last: bool = False) -> Col2imTile | None:
    """Tiles that compute `problem`, as arrays; None where none fits."""
    layer = problem.layer
    block_tiles = list(dict.fromkeys(_block_tiles(problem)))
    copied = [
        col2im_tile(problem, each, warps=_WARPS[0], channels=1, stages=1, channels_last=channels_last)
        for each in block_tiles
    ]
    chosen = list(itertools.product(_channels(layer), _WARPS, copied))
    if not chosen:
        return None
    channels: Array = np.array([channels for channels, _, _ in chosen])
    tiles = joined([replace(tile, warps=warps) for _, warps, tile in chosen], [1] * len(chosen))
    tiles = replace(tiles, channels=channels)
    shape, warps = Col2imShape(layer, tiles), tiles.warps
    shared = warps.high * warps.wide > 1
    good: Array = (shape.accumulators <= _MOST_ACCUMULATORS) & shape.fits_registers & (warps.splits <= shape.steps)
    # Warps that share a step have tiles of some size, and others have no use for them.
    good &= ~shared | (shape.accumulators >= _LEAST_SHARED_ACCUMULATORS)
    good &= _outputs(problem, tiles) < _MOST_OUTPUTS
    tiles = taken(tiles, good)
    parts = list(_with_stages(layer, tiles, gpu)) if good.any() else []
    lengths = [length(part) for part in parts]
    return joined(parts, lengths) if sum(lengths) else None


def _with_stages(layer: Layer, tiles: Col2imTile, gpu: Gpu) -> Iterator[Col2imTile]:
    """The tiles with as many stages as leave room for so many blocks on a multiprocessor."""
    shape, before = Col2imShape(layer, tiles), 0
    for blocks in _BLOCKS:
        room = min(gpu.shared_bytes_per_block, _SHARED_BYTES // blocks - _RESERVED)
        stages: Array = least(room // (tiles.warps.splits * shape.stage_bytes), shape.set_steps)
        found = replace(tiles, stages=most(1, stages))
        found = replace(found, blocks=Col2imShape(layer, found).blocks_that_fit)
        fits = Col2imShape(layer, found).shared_bytes <= gpu.shared_bytes_per_block
        yield taken(found, fits & (stages >= least(2, shape.set_steps)) & (stages != before))
        before = stages


def copies_fit(problem: Problem, tile: Col2imTile) -> bool:
    """Whether the copies of `tile` suit the sizes of `problem`, and a block has all inputs of its outputs, and few."""
    sizes = (tile.block_tile.depths, tile.block_tile.rows, tile.block_tile.columns)
    alone = all(
        size > overlap(axis) or inputs <= size
        for axis, inputs, size in zip(problem.layer.axes, problem.input_size, sizes, strict=True)
    )
    alone = alone and _outputs(problem, tile) < _MOST_OUTPUTS
    if tile.inputs_last:
        return alone and (bool(tile.channels_last) or math.prod(problem.input_size) == 1)
    if tile.runs:
        return alone and _lies_in_runs(problem, tile.block_tile)
    return alone and _patch_positions(problem, tile.block_tile) % tile.patch_positions == 0


def _channels(layer: Layer) -> list[int]:
    """Output channels of a block: so many that rows fill tiles."""
    taps, most = math.prod(layer.kernel), layer.out_channels_per_group
    tried = [c for c in (1, 2, 4, 8, 16, 32, 64) if c < 2 * most and 32 <= c * taps <= _MOST_ROWS]
    return tried or [c for c in (min(most, _MOST_ROWS // taps),) if c]


def _block_tiles(problem: Problem) -> Iterator[BlockTile]:
    """Of about so many positions: whole images, whole rows, or parts of them."""
    depth, height, width = problem.input_size
    for positions in _POSITIONS:
        for columns in {min(width, limit) for limit in (positions, 8, 16, 32)}:
            rows = min(height, max(1, positions // columns))
            depths = min(depth, max(1, positions // (columns * rows))) if rows == height else 1
            whole = (depths, rows, columns) == problem.input_size
            images = min(problem.batch, max(1, positions // (depths * rows * columns))) if whole else 1
            block_tile = BlockTile(images, depths, rows, columns)
            if columns <= positions and _repeated(problem, block_tile) <= _MOST_REPEATED:
                yield block_tile


def _repeated(problem: Problem, block_tile: BlockTile) -> float:
    """How many inputs block tiles have for each that there is; infinite where one would lack inputs of its outputs."""
    repeated = -(-problem.batch // block_tile.images) * block_tile.images / problem.batch
    sizes = (block_tile.depths, block_tile.rows, block_tile.columns)
    for axis, inputs, size in zip(problem.layer.axes, problem.input_size, sizes, strict=True):
        if size <= overlap(axis) and size < inputs:
            return math.inf
        repeated *= spans(axis, inputs, size) * size / inputs
    return repeated


def _outputs(problem: Problem, tile: Col2imTile) -> Array:
    """Outputs of a block of one tile, or of many, at most: the last block has those behind its inputs, too."""
    count = tile.channels * tile.block_tile.images
    sizes = (tile.block_tile.depths, tile.block_tile.rows, tile.block_tile.columns)
    axes = zip(problem.layer.axes, problem.input_size, problem.output_size, sizes, strict=True)
    for axis, inputs, outputs, size in axes:
        count = count * least(outputs, (size + 1) * axis.stride + max(0, outputs - inputs * axis.stride))
    return count


def _patch_positions(problem: Problem, block_tile: BlockTile) -> int:
    """Neighbouring inputs that may be copied at once: 16 bytes at most, of one row, or of a whole image."""
    depth, height, width = problem.input_size
    whole = (block_tile.depths, block_tile.rows, block_tile.columns) == problem.input_size
    run = depth * height * width if whole else math.gcd(width, block_tile.columns)
    together = math.gcd(run, 16 // problem.layer.item_bytes)
    # Blocks begin at multiples of that, and the next one where this one's own inputs end.
    while not whole and block_tile.columns < width and block_tile.columns - overlap(problem.layer.axes[2]) < together:
        together //= 2
    return together


def _lies_in_runs(problem: Problem, block_tile: BlockTile) -> bool:
    """Whether a block's inputs of a channel of an image lie side by side: whole rows, whole slabs."""
    _, height, width = problem.input_size
    rows_alone = block_tile.columns == width and (block_tile.depths == 1 or block_tile.rows == height)
    return rows_alone or (block_tile.depths == 1 and block_tile.rows == 1)
