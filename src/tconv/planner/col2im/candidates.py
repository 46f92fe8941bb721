"""The tiles of the `col2im` family that are worth a prediction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tconv.planner.col2im.shape import Col2imShape, overlap, spans, together
from tconv.planner.col2im.tile import BlockTile, Col2imTile, Warps
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import Array, joined, least, length, most, taken
from tconv.problem import Layer, Problem


@dataclass(frozen=True)
class _Kind:
    """What is tried for tiles that all have resident weights, or none of which has.

    Args:
        positions: of a block, about.
        warps: how a block's warps may share its tile.
        blocks: of a multiprocessor, for which shared memory is divided.
        least_accumulators: registers of a thread for them where warps share a step: others have no use for such warps.
        most_accumulators: the same at most.
    """

    resident: bool
    positions: tuple[int, ...]
    warps: tuple[Warps, ...]
    blocks: tuple[int, ...]
    least_accumulators: int
    most_accumulators: int


#: The warps of a tile while its copies are chosen, which do not depend on them.
_ALONE = Warps(1, 1, 1)


def _warps(*layouts: tuple[int, int, tuple[int, ...]]) -> tuple[Warps, ...]:
    """Of some layouts (in rows, in positions), each with these numbers of sets."""
    return tuple(Warps(high, wide, splits) for high, wide, sets in layouts for splits in sets)


_KINDS = (
    _Kind(
        resident=False,
        positions=(8, 16, 32, 64, 128),
        warps=_warps((1, 1, (1, 2, 4, 8, 16)), (1, 2, (2, 4)), (2, 1, (2, 4)), (2, 2, (1, 2, 4))),
        blocks=(1, 2, 4),
        least_accumulators=32,
        most_accumulators=128,
    ),
    _Kind(
        resident=True,
        positions=(32, 64, 128, 256, 512),
        warps=_warps(
            *((1, 1, (2, 4, 8)), (1, 2, (1, 2, 4)), (2, 1, (2, 4)), (1, 4, (1, 2)), (2, 2, (1, 2)), (4, 1, (1, 2))),
            *((1, 8, (1,)), (2, 4, (1,)), (4, 2, (1,)), (8, 1, (1,)), (1, 16, (1,)), (2, 8, (1,)), (4, 4, (1,))),
        ),
        blocks=(1, 2, 3, 4),
        least_accumulators=16,
        most_accumulators=96,
    ),
)
#: Output channels of a group up to which resident weights pay: with more, `mma` and `wgmma` sum taps in registers.
_FEW_CHANNELS = 8
#: Rows of a block, without resident weights and with them; there, stages at most, bytes of a step, steps of a k-tile.
_MOST_ROWS, _MOST_RESIDENT_ROWS, _MOST_STAGES = 256, 512, 16
_STEP_BYTES, _K_TILE_STEPS, _MOST_K_TILE_STEPS = 32, (1, 2, 4), 8
#: Inputs of a channel, over the batch, beyond which weights that pass by again and again cost more than preparing them.
_MOST_INPUTS = 4096
#: How many taps of an output are tried for each that has an input, where maps are smaller than kernels.
_MOST_IN_VAIN = 4
#: Of the inputs of block tiles that overlap, how many are multiplied for each that there is.
_MOST_REPEATED = 2.5
#: A thread divides numbers below this (`QuickDivisor` of the headers): outputs of a block.
_MOST_OUTPUTS = 2**21
#: Bytes of an asynchronous copy, at least and at most.
_LEAST_COPY, _COPY_BYTES = 4, 16
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
    resident: bool = False,
) -> Col2imTile:
    """The tile with these numbers, and the largest copies that the sizes of `problem` allow."""
    tile = Col2imTile(
        warps=warps,
        block_tile=block_tile,
        channels=channels,
        k_tile_steps=1,
        stages=stages,
        patch_positions=1,
        runs=0,
        inputs_last=int(channels_last or math.prod(problem.input_size) == 1),
        channels_last=int(channels_last),
        resident=int(resident),
        blocks=1,
    )
    if not tile.inputs_last:
        columns = _patch_positions(problem, tile)
        # Runs of 32-bit items cost little more than patches do, those of 16-bit items several loads for one.
        shortest = _COPY_BYTES if resident and problem.layer.item_bytes == 4 else _LEAST_COPY
        alone = columns * problem.layer.item_bytes < shortest and _lies_in_runs(problem, block_tile)
        tile = replace(tile, runs=1) if alone else replace(tile, patch_positions=columns)
    return replace(tile, blocks=Col2imShape(problem.layer, tile).blocks_that_fit)


def candidates(problem: Problem, gpu: Gpu, channels_last: bool = False) -> Col2imTile | None:
    """Tiles that compute `problem`, as arrays; None where none fits."""
    parts = [part for kind in _KINDS for part in _of_kind(problem, gpu, channels_last, kind) if length(part)]
    return joined(parts, [length(part) for part in parts]) if parts else None


def why_none(problem: Problem, resident: bool) -> str | None:
    """Why there are no tiles that all have resident weights, or none of which has; None where there may be."""
    inputs, channels = problem.batch * math.prod(problem.input_size), problem.layer.out_channels_per_group
    if resident and channels > _FEW_CHANNELS:
        return f"{channels} output channels are more than {_FEW_CHANNELS}"
    if not resident and inputs > _MOST_INPUTS:
        return f"{inputs} inputs of a channel are more than {_MOST_INPUTS}"
    axes = zip(problem.layer.axes, problem.input_size, strict=True)
    in_vain = math.prod(axis.taps_per_phase / min(axis.taps_per_phase, size) for axis, size in axes)
    if not resident and in_vain > _MOST_IN_VAIN:
        return f"an output of so small a map has one of {in_vain:.0f} taps that are tried"
    return None


def _of_kind(problem: Problem, gpu: Gpu, channels_last: bool, kind: _Kind) -> Iterator[Col2imTile]:
    layer, resident = problem.layer, kind.resident
    if why_none(problem, resident):
        return
    copied = [
        col2im_tile(problem, each, warps=_ALONE, channels=1, stages=2, channels_last=channels_last, resident=resident)
        for each in dict.fromkeys(_block_tiles(problem, kind, channels_last))
    ]
    if resident:
        copied = [each for tile in copied for each in _less_overlap(problem, tile)]
    chosen = list(itertools.product(_channels(layer, resident), kind.warps, copied))
    if not chosen:
        return
    channels: Array = np.array([channels for channels, _, _ in chosen])
    tiles = joined([replace(tile, warps=warps) for _, warps, tile in chosen], [1] * len(chosen))
    counts = _k_tile_steps(layer) if resident else [1]
    tiles = replace(tiles, channels=channels)
    tiles = joined([replace(tiles, k_tile_steps=count) for count in counts], [len(chosen)] * len(counts))
    shape, warps = Col2imShape(layer, tiles), tiles.warps
    good: Array = (
        shape.fits_registers & (warps.splits <= shape.k_tiles) & (shape.accumulators <= kind.most_accumulators)
    )
    good &= (warps.high * warps.wide == 1) | (shape.accumulators >= kind.least_accumulators)
    good &= _outputs(problem, tiles) < _MOST_OUTPUTS
    if resident:  # rows and positions fill the tiles of the warps, and no k-tile has zeros alone
        good &= (2 * shape.block_rows > 16 * shape.row_tiles) | (shape.row_tiles == 1)
        good &= 4 * shape.positions >= 3 * 8 * shape.position_tiles
        good &= tiles.k_tile_steps * shape.step_channels < layer.in_channels_per_group + shape.step_channels
    if good.any():
        yield from _with_stages(layer, taken(tiles, good), gpu, kind)


def _with_stages(layer: Layer, tiles: Col2imTile, gpu: Gpu, kind: _Kind) -> Iterator[Col2imTile]:
    """The tiles with as many stages as leave room for so many blocks on a multiprocessor."""
    shape, before = Col2imShape(layer, tiles), 0
    # Sums lie behind stages, or in their place.
    fixed = Col2imShape(layer, replace(tiles, stages=0)).shared_bytes if kind.resident else 0
    least_stages = 3 if kind.resident else least(2, shape.set_k_tiles)
    for blocks in kind.blocks:
        room = min(gpu.shared_bytes_per_block, _SHARED_BYTES // blocks - _RESERVED)
        stages: Array = least(
            (room - fixed) // (tiles.warps.splits * shape.stage_bytes),
            _MOST_STAGES if kind.resident else shape.set_k_tiles,
        )
        found = replace(tiles, stages=most(1, stages))
        found = replace(found, blocks=Col2imShape(layer, found).blocks_that_fit)
        fits = Col2imShape(layer, found).shared_bytes <= gpu.shared_bytes_per_block
        yield taken(found, fits & (stages >= least_stages) & (stages != before))
        before = stages


def copies_fit(problem: Problem, tile: Col2imTile) -> bool:
    """Whether the copies of `tile` suit the sizes of `problem`, and a block has all inputs of its outputs, and few."""
    sizes = (tile.block_tile.depths, tile.block_tile.rows, tile.block_tile.columns)
    alone = all(
        size > shared or inputs <= size
        for shared, inputs, size in zip(_overlaps(problem, tile), problem.input_size, sizes, strict=True)
    )
    alone = alone and _outputs(problem, tile) < _MOST_OUTPUTS
    if not tile.resident and why_none(problem, resident=False):
        return False
    if tile.inputs_last:
        return alone and (bool(tile.channels_last) or math.prod(problem.input_size) == 1)
    if tile.runs:
        return alone and _lies_in_runs(problem, tile.block_tile)
    return alone and _patch_positions(problem, tile) % tile.patch_positions == 0


def _channels(layer: Layer, resident: bool) -> list[int]:
    """Output channels of a block: so many that rows fill tiles."""
    taps, most = math.prod(layer.kernel), layer.out_channels_per_group
    if resident:
        return sorted({c for c in (most, 1, 2, 4) if c <= most and c * taps <= _MOST_RESIDENT_ROWS})
    tried = [c for c in (1, 2, 4, 8, 16, 32, 64) if c < 2 * most and 32 <= c * taps <= _MOST_ROWS]
    return tried or [c for c in (min(most, _MOST_ROWS // taps),) if c]


def _block_tiles(problem: Problem, kind: _Kind, channels_last: bool) -> Iterator[BlockTile]:
    """Of about so many positions: whole images, whole rows, or parts of them."""
    (depth, height, width), resident = problem.input_size, kind.resident
    for positions in kind.positions:
        for columns in {min(width, limit) for limit in (positions, 8, 16, 32, 64)}:
            if columns > positions or (columns == 64 < min(width, positions) and not resident):
                continue
            whole_rows = min(height, max(1, positions // columns))
            for rows in {whole_rows, min(whole_rows, 4), min(whole_rows, 8)} if resident else {whole_rows}:
                depths = min(depth, max(1, positions // (columns * rows))) if resident or rows == height else 1
                whole = (depths, rows, columns) == problem.input_size
                images = min(problem.batch, max(1, positions // (depths * rows * columns))) if whole else 1
                block_tile = BlockTile(images, depths, rows, columns)
                if _repeated(problem, block_tile, resident and not channels_last) <= _MOST_REPEATED:
                    yield block_tile


def _k_tile_steps(layer: Layer) -> list[int]:
    """Steps of a k-tile with resident weights: a few, or all."""
    steps = -(-layer.in_channels_per_group * layer.item_bytes // _STEP_BYTES)
    return sorted({steps for steps in (*_K_TILE_STEPS, steps) if steps <= _MOST_K_TILE_STEPS})


def _less_overlap(problem: Problem, tile: Col2imTile) -> Iterator[Col2imTile]:
    """The tile, and one with smaller copies, where block tiles then overlap less."""
    yield tile
    width, shared = problem.layer.axes[2], _overlaps(problem, tile)[2]
    inputs, columns, together = problem.input_size[2], tile.block_tile.columns, tile.patch_positions
    if together * problem.layer.item_bytes > _LEAST_COPY and (
        spans(width, inputs, columns, together // 2, shared) < spans(width, inputs, columns, together, shared)
    ):
        yield replace(tile, patch_positions=together // 2)


def _overlaps(problem: Problem, tile: Col2imTile) -> tuple[int, int, int]:
    """Inputs that neighbouring block tiles have in common on each axis."""
    depth, height, width = problem.layer.axes
    aligned = bool(tile.resident and not tile.channels_last and together(problem.layer) > 1)
    return overlap(depth), overlap(height), overlap(width, aligned)


def _repeated(problem: Problem, block_tile: BlockTile, aligned: bool) -> float:
    """How many inputs block tiles have for each that there is; infinite where one would lack inputs of its outputs."""
    repeated = -(-problem.batch // block_tile.images) * block_tile.images / problem.batch
    sizes = (block_tile.depths, block_tile.rows, block_tile.columns)
    for axis, inputs, size in zip(problem.layer.axes, problem.input_size, sizes, strict=True):
        shared = overlap(axis, aligned and axis is problem.layer.axes[2] and together(problem.layer) > 1)
        if size <= shared and size < inputs:
            return math.inf
        repeated *= spans(axis, inputs, size, 1, shared) * size / inputs
    return repeated


def _outputs(problem: Problem, tile: Col2imTile) -> Array:
    """Outputs of a block of one tile, or of many, at most: the last block has those behind its inputs, too."""
    count = tile.channels * tile.block_tile.images
    sizes = (tile.block_tile.depths, tile.block_tile.rows, tile.block_tile.columns)
    axes = zip(problem.layer.axes, problem.input_size, problem.output_size, sizes, strict=True)
    for axis, inputs, outputs, size in axes:
        count = count * least(outputs, (size + 1) * axis.stride + max(0, outputs - inputs * axis.stride))
    return count


def _patch_positions(problem: Problem, tile: Col2imTile) -> int:
    """Neighbouring inputs that may be copied at once: 16 bytes at most, of one row, or of a whole image."""
    depth, height, width = problem.input_size
    block_tile, shared = tile.block_tile, _overlaps(problem, tile)[2]
    whole = (block_tile.depths, block_tile.rows, block_tile.columns) == problem.input_size
    run = depth * height * width if whole else math.gcd(width, block_tile.columns)
    together = math.gcd(run, 16 // problem.layer.item_bytes)
    # Blocks begin at multiples of that, and the next one where this one's own inputs end.
    while not whole and block_tile.columns < width and block_tile.columns - shared < together:
        together //= 2
    return together


def _lies_in_runs(problem: Problem, block_tile: BlockTile) -> bool:
    """Whether a block's inputs of a channel of an image lie side by side: whole rows, whole slabs."""
    _, height, width = problem.input_size
    rows_alone = block_tile.columns == width and (block_tile.depths == 1 or block_tile.rows == height)
    return rows_alone or (block_tile.depths == 1 and block_tile.rows == 1)
