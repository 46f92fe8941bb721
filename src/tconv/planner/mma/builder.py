"""Tiles of the `mma` family: all fields from the few that are chosen. A choice may be an array of many."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from tconv.planner.mma.shape import MmaShape
from tconv.planner.mma.tile import BlockTile, MmaTile, Pipeline, Warps
from tconv.planner.numbers import ceil_div, gcd, least, most, where
from tconv.planner.shifts import shift_count
from tconv.problem import Axis, Layer

#: What every GPU from sm_80 on gives a block of shared memory.
LEAST_SHARED_BYTES = 99 * 1024
#: Products that an unrolled body may have: a longer one takes long to compile.
MOST_PRODUCTS = 1024
#: Registers of inputs that a thread holds on their way to shared memory; patches, of which it has a bit each; and
#: instructions with which it loads or copies them.
_MOST_HELD, _MOST_PATCHES, _MOST_LOADS = 40, 32, 64
#: Stages of copied inputs.
_MOST_STAGES = 4
#: Taps of a filter for a thread that prepares weights, and threads that a GPU wants.
_MOST_TAPS = 16
_LEAST_THREADS = 65536
#: Prepared weights of which not everything is loaded.
_GAPS_FROM = 2**26
#: Groups of shifts that are tried before stages of one shift.
_MOST_GROUPS = 32
#: Steps beyond which a k-tile has few shifts, and no exact accumulators: those leave the tensor core sooner.
_MOST_STEPS, _FEW_SHIFTS = 4, 2


def mma_tile(
    layer: Layer,
    *,
    high: int,
    wide: int,
    row_tiles: int,
    position_tiles: int,
    block_tile: tuple[int, int, int, int],
    k_tile_steps: int,
    origin: int,
    channels_last: bool = False,
    splits: int = 1,
) -> MmaTile:
    """The plainest tile of ``high * wide`` warps and a `block_tile` of (images, slabs, rows, columns).

    Its stages hold weights of one shift, inputs are loaded one by one, and it has a multiprocessor for itself.
    """
    depth_origin, row_origin = (axis.padding % axis.stride for axis in layer.axes[:2])
    return MmaTile(
        warps=Warps(high, wide, splits, row_tiles, position_tiles),
        block_tile=BlockTile(*block_tile, depth_origin=depth_origin, row_origin=row_origin, origin=origin),
        pipeline=Pipeline(k_tile_steps=k_tile_steps, k_tile_shifts=1, patch_columns=1, copied=0, resident=0),
        channels=row_channels(layer),
        channels_last=int(channels_last),
        taps_together=taps_together(layer),
        gaps=0,
        blocks=1,
    )


def finished(
    layer: Layer, tile: MmaTile, together: int = 1, most_shared: int = LEAST_SHARED_BYTES, copied: bool = False
) -> MmaTile:
    """`tile` with larger stages and loads.

    A stage holds weights of as many shifts as fit into `most_shared` bytes and as the compiler bears, in groups of
    about one size. Where rows of inputs begin at multiples of so many, up to `together` are loaded at once: as many as
    make the fewest loads. Inputs that are `copied`, which `can_copy` must allow, have as many stages as there is memory
    for.
    """
    shape = MmaShape(layer, tile)
    if copied:
        patch = gcd(tile.block_tile.columns, min(together, shape.vector_items))
        tile = with_pipeline(tile, patch_columns=patch, copied=least(2, shape.k_tiles))
    elif not tile.channels_last:
        tile = with_pipeline(tile, patch_columns=_patch_columns(shape, together))
    tile = with_pipeline(tile, k_tile_shifts=_k_tile_shifts(MmaShape(layer, tile), most_shared))
    shape = MmaShape(layer, tile)
    tile = replace(tile, gaps=where(has_gaps(shape), 1, 0), blocks=shape.blocks_that_fit)
    return with_more_stages(layer, tile, most_shared) if copied else tile


def with_pipeline(tile: MmaTile, **changes: int) -> MmaTile:
    """`tile` with these changes of its pipeline."""
    return replace(tile, pipeline=replace(tile.pipeline, **changes))


def _patch_columns(shape: MmaShape, together: int) -> int:
    """As many neighbours at once as make the fewest loads, of those that a thread can hold; one where it cannot."""
    columns, fewest = 1, math.inf
    for width in (width for width in (1, 2, 4, 8) if width <= min(together, shape.vector_items)):
        patched = MmaShape(shape.layer, with_pipeline(shape.tile, patch_columns=width))
        loads = patched.thread_loads
        better = (shape.tile.block_tile.columns % width == 0) & holds_inputs(patched) & (loads < fewest)
        columns, fewest = where(better, width, columns), where(better, loads, fewest)
    return columns


def _k_tile_shifts(shape: MmaShape, most_shared: int) -> int:
    """Shifts of a stage: all of them, or the fewest groups of about one size that fit; 1 where nothing fits."""
    count = shape.shifts
    of_body = most(1, least(count, MOST_PRODUCTS // shape.step_products))
    most_shifts = count if shape.planes == 2 else of_body
    fit = shape.shifts_that_fit(most_shared)
    # All weights of a block at once need one stage, others two.
    at_once = (shape.k_tiles == 1) & (most_shifts == count) & (fit >= count)
    groups = ceil_div(count, most(1, least(most_shifts, fit // 2)))
    in_groups = where((fit >= 2) & (groups <= _MOST_GROUPS), ceil_div(count, groups), 1)
    return where(at_once, count, in_groups)


def can_copy(layer: Layer, tile: MmaTile, together: int) -> bool:
    """Whether inputs of rows that begin at multiples of `together` can be copied to shared memory as they lie.

    They must be multiplied as they are, by words: exact products take two numbers for each. Of 16-bit types eight
    neighbours are read at once, and a shift along the row would move them.
    """
    shape = MmaShape(layer, tile)
    if shape.planes > 1 or tile.channels_last:
        return False
    if layer.item_bytes >= 4:
        return True
    width = shape.moved[2]
    stays = (shape.halos[2] == 0) & (width.shift_of(0) % shape.vector_items == 0)
    return stays & (together == 8) & (tile.block_tile.columns % 8 == 0)


def with_more_stages(layer: Layer, tile: MmaTile, most_shared: int) -> MmaTile:
    """`tile` with as many stages of copied inputs as do not keep a block from its multiprocessor."""
    stages = tile.pipeline.copied
    k_tiles = MmaShape(layer, tile).k_tiles
    most_stages = where(tile.pipeline.resident > 0, _MOST_STAGES, least(_MOST_STAGES, k_tiles))
    for count in range(2, _MOST_STAGES + 1):
        deeper = MmaShape(layer, with_pipeline(tile, copied=count))
        fits = (deeper.shared_bytes <= most_shared) & (deeper.blocks_that_fit == tile.blocks)
        stages = where(fits & (count > stages) & (count <= most_stages), count, stages)
    return with_pipeline(tile, copied=stages)


def has_gaps(shape: MmaShape, least_bytes: int = _GAPS_FROM) -> bool:
    """Whether some tiles of rows have no tap at some shifts, and weights are so large that these are left out.

    Smaller ones stay in the L2 cache, from which one large copy comes sooner than many small ones.
    """
    without = shape.fragments_with_taps < shape.shifts * shape.block_row_tiles
    return without & (shape.weight_bytes >= least_bytes)


@lru_cache(maxsize=256)
def taps_together(layer: Layer, least_threads: int = _LEAST_THREADS) -> int:
    """Neighbouring taps that a thread prepares: as many as leave enough threads for a GPU."""
    if row_channels(layer) < 16:
        return 1
    steps = -(-layer.in_channels_per_group * layer.item_bytes // 32)
    filters = 32 * layer.groups * -(-layer.out_channels_per_group // 16) * steps
    taps = math.prod(layer.kernel)
    several = (n for n in range(_MOST_TAPS, 1, -1) if taps % n == 0 and filters * (taps // n) >= least_threads)
    return next(several, 1)


def can_stay(shape: MmaShape) -> bool:
    """Whether weights can have a stage for each k-tile, so that a block loads them once."""
    return (shape.tile.warps.splits == 1) & ((shape.planes == 2) | (shape.body_products <= MOST_PRODUCTS))


def with_resident_weights(layer: Layer, tile: MmaTile) -> MmaTile:
    """`tile` with weights that stay, as `can_stay` must allow."""
    copied = where(tile.pipeline.copied > 0, 2, 0)
    tile = with_pipeline(tile, k_tile_shifts=MmaShape(layer, tile).shifts, resident=1, copied=copied)
    return replace(tile, blocks=MmaShape(layer, tile).blocks_that_fit)


def suits_channels(shape: MmaShape) -> bool:
    """Whether k-tiles are as long as the compiler bears, and no channels of them mostly padding."""
    few_steps = shape.tile.pipeline.k_tile_steps <= _MOST_STEPS
    if shape.planes == 1:
        few_steps = few_steps | (shape.shifts <= _FEW_SHIFTS)
    return few_steps & ((shape.stage_steps == 1) | (shape.k_tile_channels < 2 * shape.layer.in_channels_per_group))


def holds_inputs(shape: MmaShape) -> bool:
    """Whether a thread has registers for its part of a k-tile of inputs, and loads it in few instructions."""
    few = (shape.held <= _MOST_HELD) & (shape.thread_patches <= _MOST_PATCHES)
    return few & (shape.thread_loads <= _MOST_LOADS)


@lru_cache(maxsize=256)
def row_channels(layer: Layer) -> int:
    """Output channels in a tile of 16 rows: 16, or fewer with several phases where less is multiplied for nothing."""
    axes = (Axis(a.kernel, a.stride, a.padding - a.padding % a.stride, a.dilation) for a in layer.axes)
    pairs = math.prod(axis.stride * shift_count(axis) for axis in axes)
    with_taps = math.prod(layer.kernel) / pairs

    def multiplied(channels: int) -> float:
        # A tile of one phase leaves out the shifts at which the phase has no tap.
        return _tiles(layer, channels) * (with_taps if channels == 16 else 1)

    return min((16, 8, 4, 2, 1), key=lambda channels: (multiplied(channels), -channels))


def row_tiles_of(layer: Layer) -> int:
    """Tiles of 16 rows of one group."""
    return _tiles(layer, row_channels(layer))


def _tiles(layer: Layer, channels: int) -> int:
    return -(-math.prod(layer.stride) * channels // 16) * -(-layer.out_channels_per_group // channels)
