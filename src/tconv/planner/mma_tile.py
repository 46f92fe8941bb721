"""A tile of the `mma` family from the few choices that make it up."""

from __future__ import annotations

import math
from dataclasses import replace

from tconv.planner.mma_shape import (
    chunk_channels,
    chunks,
    fragments_with_taps,
    halos,
    item_bytes,
    moved_axes,
    planes,
    shared_bytes,
    shift_count,
    shifts,
    sum_bytes,
    thread_loads,
    thread_patches,
    vector_items,
    weight_bytes,
)
from tconv.planner.plan import MmaTile
from tconv.problem import Axis, Layer

_REGISTERS = 65536
#: Of a multiprocessor; and what every GPU from sm_80 on gives a block.
_SHARED_BYTES = 227 * 1024
LEAST_SHARED_BYTES = 99 * 1024
#: Products that an unrolled body may have: a longer one takes long to compile.
_MOST_PRODUCTS = 1024
#: Registers of inputs that a thread holds on their way to shared memory.
_MOST_HELD = 40
#: Instructions with which it loads or copies them.
_MOST_LOADS = 64
#: Stages of copied inputs.
_MOST_STAGES = 4
_MOST_BLOCKS = 8
#: Taps of a filter for a thread that prepares weights.
_MOST_TAPS = 16
#: Prepared weights of which not everything is brought.
_GAPS_FROM = 2**26
#: Groups of shifts that are tried before stages of one shift.
_MOST_GROUPS = 32
#: Steps beyond which a chunk has few shifts, and no exact sums: those leave the tensor core sooner.
_MOST_STEPS, _FEW_SHIFTS = 4, 2


def mma_tile(
    layer: Layer,
    warps: tuple[int, int],
    row_tiles: int,
    position_tiles: int,
    box: tuple[int, int, int, int],
    chunk_steps: int,
    origin: int,
    channels_last: int = 0,
    splits: int = 1,
    together: int = 1,
    most_shared: int = LEAST_SHARED_BYTES,
    copied: bool = False,
) -> MmaTile:
    """The tile of `warps` (rows, positions) and a `box` of (images, slabs, rows, columns).

    A stage holds weights of as many shifts as fit into `most_shared` bytes and as the compiler bears, in groups of
    about one size. Where rows of inputs begin at multiples of so many, up to `together` are loaded at once: as many as
    make the fewest loads. Inputs that are `copied`, which `can_copy` must allow, have as many stages as there is memory
    for.
    """
    depth_origin, row_origin = (axis.padding % axis.stride for axis in layer.axes[:2])
    tile = MmaTile(
        *(*warps, splits, row_tiles, position_tiles, row_channels(layer), *box, chunk_steps, 1),
        *(depth_origin, row_origin, origin, channels_last, 1, 0, 0, taps_together(layer), 0, 1),
    )
    if not channels_last:
        widths = (n for n in (1, 2, 4, 8) if n <= min(together, vector_items(layer)) and tile.box_columns % n == 0)
        patched = [replace(tile, patch_columns=width) for width in widths]
        patched = [one for one in patched if holds_inputs(layer, one)] or patched[:1]
        tile = min(patched, key=lambda one: thread_loads(layer, one))
    if copied:
        tile = replace(tile, patch_columns=_widest_patch(layer, tile, together), copied=min(2, chunks(layer, tile)))
    count = shifts(layer, tile)
    most = (
        count
        if planes(layer) == 2
        else max(1, min(count, _MOST_PRODUCTS // (chunk_steps * row_tiles * position_tiles)))
    )
    sizes = dict.fromkeys(-(-count // groups) for groups in range(-(-count // most), min(count, _MOST_GROUPS) + 1))
    stages = (replace(tile, chunk_shifts=size) for size in (*sizes, 1))
    tile = next((tile for tile in stages if shared_bytes(layer, tile) <= most_shared), tile)
    tile = replace(tile, gaps=int(has_gaps(layer, tile)), blocks=blocks_that_fit(layer, tile))
    return with_more_stages(layer, tile, most_shared) if tile.copied else tile


def can_copy(layer: Layer, tile: MmaTile, together: int) -> bool:
    """Whether inputs of rows that begin at multiples of `together` can be copied to shared memory as they lie.

    They must be multiplied as they are, by words: exact products take two numbers for each. Of 16-bit types eight
    neighbours are read at once, and a shift along the row would move them.
    """
    if planes(layer) > 1 or tile.channels_last:
        return False
    width = moved_axes(layer, tile)[2]
    is_moved = halos(layer, tile)[2] > 0 or width.shift_of(0) % vector_items(layer) != 0
    in_eights = together == 8 and tile.box_columns % 8 == 0
    return item_bytes(layer) >= 4 or (in_eights and not is_moved)


def _widest_patch(layer: Layer, tile: MmaTile, together: int) -> int:
    return math.gcd(tile.box_columns, min(together, vector_items(layer)))


def with_more_stages(layer: Layer, tile: MmaTile, most_shared: int) -> MmaTile:
    """`tile` with as many stages of copied inputs as do not keep a block from its multiprocessor."""
    most = _MOST_STAGES if tile.resident else min(_MOST_STAGES, chunks(layer, tile))
    deeper = (replace(tile, copied=stages) for stages in range(most, tile.copied, -1))
    fit = (one for one in deeper if shared_bytes(layer, one) <= most_shared)
    return next((one for one in fit if blocks_that_fit(layer, one) == tile.blocks), tile)


def has_gaps(layer: Layer, tile: MmaTile, least_bytes: int = _GAPS_FROM) -> bool:
    """Whether some tiles of rows have no tap at some shifts, and weights are so large that these are left out.

    Smaller ones stay in the L2 cache, from which one large copy comes sooner than many small ones.
    """
    rows = tile.warps_high * tile.row_tiles
    with_taps = fragments_with_taps(layer, tile)
    return with_taps < shifts(layer, tile) * rows and weight_bytes(layer, tile) >= least_bytes


def taps_together(layer: Layer, least_threads: int = 65536) -> int:
    """Neighbouring taps that a thread prepares: as many as leave enough threads for a GPU."""
    if row_channels(layer) < 16:
        return 1
    steps = -(-layer.in_channels_per_group * layer.item_bytes // 32)
    filters = 32 * layer.groups * -(-layer.out_channels_per_group // 16) * steps
    taps = math.prod(layer.kernel)
    several = (n for n in range(_MOST_TAPS, 1, -1) if taps % n == 0 and filters * (taps // n) >= least_threads)
    return next(several, 1)


def with_resident_weights(layer: Layer, tile: MmaTile) -> MmaTile | None:
    """`tile` with a stage for the weights of each chunk, so that a block brings them once; None if it cannot be."""
    count = shifts(layer, tile)
    products = count * tile.chunk_steps * tile.row_tiles * tile.position_tiles
    if tile.splits > 1 or (planes(layer) == 1 and products > _MOST_PRODUCTS):
        return None
    tile = replace(tile, chunk_shifts=count, resident=1, copied=2 if tile.copied else 0)
    return replace(tile, blocks=blocks_that_fit(layer, tile))


def suits_threads(layer: Layer, tile: MmaTile) -> bool:
    """Whether a thread holds what it must on the way to shared memory, and no channels are mostly padding."""
    if tile.chunk_steps > _MOST_STEPS and (planes(layer) == 2 or shifts(layer, tile) > _FEW_SHIFTS):
        return False
    steps = tile.chunk_steps * tile.splits
    if steps > 1 and chunk_channels(layer, tile) >= 2 * layer.in_channels_per_group:
        return False
    return holds_inputs(layer, tile)


def holds_inputs(layer: Layer, tile: MmaTile) -> bool:
    """Whether a thread has registers for its part of a chunk of inputs, and brings it in few instructions."""
    return held(layer, tile) <= _MOST_HELD and thread_loads(layer, tile) <= _MOST_LOADS


def held(layer: Layer, tile: MmaTile) -> int:
    """Registers of a thread's part of a chunk of inputs."""
    if tile.copied:
        return 0
    items = vector_items(layer)
    in_vectors = tile.channels_last and layer.in_channels_per_group % items == 0
    words = 4 if in_vectors else items * max(1, tile.patch_columns * layer.item_bytes // 4)
    return thread_patches(layer, tile) * words


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


def registers(layer: Layer, tile: MmaTile) -> int:
    """Registers of a thread, estimated; a compiler may take fewer."""
    return min(255, registers_wanted(layer, tile))


def registers_wanted(layer: Layer, tile: MmaTile) -> int:
    """Registers that a thread would take if it could have any number."""
    sums = tile.row_tiles * tile.position_tiles * sum_bytes(layer)
    columns = 2 * tile.position_tiles * planes(layer)
    return sums * planes(layer) + columns + held(layer, tile) + thread_patches(layer, tile) + 56


def blocks_that_fit(layer: Layer, tile: MmaTile) -> int:
    """Blocks that a multiprocessor holds, by shared memory and by the registers that threads are expected to want."""
    threads = tile.threads
    by_registers = _REGISTERS // (registers(layer, tile) * threads)
    return max(1, min(by_registers, _SHARED_BYTES // (shared_bytes(layer, tile) + 1024), _MOST_BLOCKS))
