"""The tiles of the `col2im` family that are worth a prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tconv.planner.col2im.block import COPY_BYTES
from tconv.planner.col2im.inputs import (
    LEAST_COPY,
    MOST_IN_VAIN,
    block_tiles,
    copies_fit,
    copies_of,
    has_few_outputs,
    in_vain,
    overlaps,
)
from tconv.planner.col2im.shape import Col2imShape, spans, together
from tconv.planner.col2im.tile import BlockTile, Col2imTile, Warps
from tconv.planner.gpu import RESERVED_SHARED_BYTES, SHARED_BYTES, Gpu
from tconv.planner.numbers import Array, crossed, every, joined, least, length, most, taken
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
    # Runs of 32-bit items cost little more than patches do, those of 16-bit items several loads for one.
    shortest = COPY_BYTES if resident and problem.layer.item_bytes == 4 else LEAST_COPY
    copies = copies_of(problem, block_tile, _aligned(problem, resident, channels_last), channels_last, shortest)
    tile = Col2imTile(
        warps=warps,
        block_tile=block_tile,
        channels=channels,
        k_tile_steps=1,
        stages=stages,
        **vars(copies),
        channels_last=int(channels_last),
        resident=int(resident),
        blocks=1,
    )
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
    if not resident and in_vain(problem) > MOST_IN_VAIN:
        return f"an output of so small a map has one of {in_vain(problem):.0f} taps that are tried"
    return None


def _of_kind(problem: Problem, gpu: Gpu, channels_last: bool, kind: _Kind) -> Iterator[Col2imTile]:
    layer, resident = problem.layer, kind.resident
    if why_none(problem, resident):
        return
    copied = [
        col2im_tile(problem, each, warps=_ALONE, channels=1, stages=2, channels_last=channels_last, resident=resident)
        for each in dict.fromkeys(
            block_tiles(
                problem,
                kind.positions,
                _aligned(problem, resident, channels_last),
                long_rows=resident,
                many=resident,
            )
        )
    ]
    if resident:
        copied = [each for tile in copied for each in _less_overlap(problem, tile)]
    channels, counts = _channels(layer, resident), _k_tile_steps(layer)
    if not copied or not channels:
        return
    count, channel, warp, block_tile = crossed(len(counts), len(channels), len(kind.warps), len(copied))
    tiles = replace(
        taken(joined(copied, [1] * len(copied)), block_tile),
        warps=taken(joined(kind.warps, [1] * len(kind.warps)), warp),
        channels=every(channels, channel),
        k_tile_steps=every(counts, count),
    )
    shape, warps = Col2imShape(layer, tiles), tiles.warps
    good: Array = (
        shape.fits_registers & (warps.splits <= shape.k_tiles) & (shape.accumulators <= kind.most_accumulators)
    )
    good &= (warps.high * warps.wide == 1) | (shape.accumulators >= kind.least_accumulators)
    good &= has_few_outputs(problem, tiles)
    # No k-tile has a step of zeros alone.
    good &= tiles.k_tile_steps * shape.step_channels < layer.in_channels_per_group + shape.step_channels
    if resident:  # rows and positions fill the tiles of the warps
        good &= (2 * shape.block_rows > 16 * shape.row_tiles) | (shape.row_tiles == 1)
        good &= 4 * shape.positions >= 3 * 8 * shape.position_tiles
    if good.any():
        yield from _with_stages(layer, taken(tiles, good), gpu, kind)


def _with_stages(layer: Layer, tiles: Col2imTile, gpu: Gpu, kind: _Kind) -> Iterator[Col2imTile]:
    """The tiles with as many stages as leave room for so many blocks on a multiprocessor."""
    shape, before = Col2imShape(layer, tiles), 0
    # Sums lie behind stages, or in their place.
    fixed = Col2imShape(layer, replace(tiles, stages=0)).shared_bytes if kind.resident else 0
    least_stages = 3 if kind.resident else least(2, shape.set_k_tiles)
    for blocks in kind.blocks:
        room = min(gpu.shared_bytes_per_block, SHARED_BYTES // blocks - RESERVED_SHARED_BYTES)
        stages: Array = least(
            (room - fixed) // (tiles.warps.splits * shape.stage_bytes),
            _MOST_STAGES if kind.resident else shape.set_k_tiles,
        )
        found = replace(tiles, stages=most(1, stages))
        found = replace(found, blocks=Col2imShape(layer, found).blocks_that_fit)
        fits = Col2imShape(layer, found).shared_bytes <= gpu.shared_bytes_per_block
        yield taken(found, fits & (stages >= least_stages) & (stages != before))
        before = stages


def fits(problem: Problem, tile: Col2imTile) -> bool:
    """Whether a kernel with `tile` runs `problem`."""
    aligned = _aligned(problem, bool(tile.resident), bool(tile.channels_last))
    return copies_fit(problem, tile, aligned) and bool(tile.resident or not why_none(problem, resident=False))


def _aligned(problem: Problem, resident: bool, channels_last: bool) -> bool:
    """Whether outputs of a position begin at a multiple of the stride: where several are stored at once."""
    return resident and not channels_last and together(problem.layer) > 1


def _channels(layer: Layer, resident: bool) -> list[int]:
    """Output channels of a block: so many that rows fill tiles."""
    taps, most = math.prod(layer.kernel), layer.out_channels_per_group
    if resident:
        return sorted({c for c in (most, 1, 2, 4) if c <= most and c * taps <= _MOST_RESIDENT_ROWS})
    tried = [c for c in (1, 2, 4, 8, 16, 32, 64) if c < 2 * most and 32 <= c * taps <= _MOST_ROWS]
    return tried or [c for c in (min(most, _MOST_ROWS // taps),) if c]


def _k_tile_steps(layer: Layer) -> list[int]:
    """Steps of a k-tile with resident weights: a few, or all."""
    steps = -(-layer.in_channels_per_group * layer.item_bytes // _STEP_BYTES)
    return sorted({steps for steps in (*_K_TILE_STEPS, steps) if steps <= _MOST_K_TILE_STEPS})


def _less_overlap(problem: Problem, tile: Col2imTile) -> Iterator[Col2imTile]:
    """The tile, and one with smaller copies, where block tiles then overlap less."""
    yield tile
    width = problem.layer.axes[2]
    shared = overlaps(problem, _aligned(problem, bool(tile.resident), bool(tile.channels_last)))[2]
    inputs, columns, copied = problem.input_size[2], tile.block_tile.columns, tile.patch_positions
    if copied * problem.layer.item_bytes > LEAST_COPY and (
        spans(width, inputs, columns, copied // 2, shared) < spans(width, inputs, columns, copied, shared)
    ):
        yield replace(tile, patch_positions=copied // 2)
