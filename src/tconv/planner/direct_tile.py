"""Tiles of the `direct` family: all fields from the few that are chosen."""

from __future__ import annotations

from dataclasses import replace

from tconv.planner.direct_shape import (
    accumulator_bytes,
    chained,
    channel_items,
    moved,
    resident,
    run_rows,
    thread_sums,
    tile_items,
    window,
)
from tconv.planner.plan import DirectTile
from tconv.problem import Axis, Layer

_WARP = 32
#: Sums of a thread of the tile for any size, in 32-bit words.
_SUMS = 32
#: Layers with more column phases than this have them across a warp's lanes instead of in registers.
_MOST_PHASES_IN_REGISTERS = 16
#: Multiply-adds in one unrolled body. NVRTC's time grows faster than the body.
_MOST_UNROLLED = 1024
#: Sums of a thread, in 32-bit words, and outputs that it stores in one unrolled body.
_MOST_SUMS = 96
_MOST_STORES = 512
#: Inputs that a thread asks for before it uses the first: enough to hide the cache, few enough not to spill. More only
#: where the taps of one channel need them, and then no more than these.
_MOST_LOADS = 16
_MOST_INPUTS = 32
#: Inputs that a thread has on their way to shared memory.
_MOST_STAGED = 12
#: Channels computed for nothing, so that several can be asked for at once: up to this many times those there are.
_MOST_PADDED = 1.15
#: The most that a thread stores at once; bytes of an output where they are not four.
_VECTOR_BYTES = 16
_STORED_BYTES = {"fp16": 2, "bf16": 2, "fp64": 8}
#: Weights of at most this size stay in shared memory, so that a block can go on to further positions.
_RESIDENT_BYTES = 44 * 1024
_STAGE_BYTES = 16 * 1024
#: Registers of a multiprocessor, and what a thread may have of them where a block has 128 threads or fewer.
_REGISTERS = 64 * 1024
_REGISTER_LIMITS = (48, 64, 80, 96, 128, 168, 255)


def direct_tile(
    layer: Layer,
    columns: int,
    positions: int,
    channels: int,
    rows: int = 0,
    splits: int = 1,
    lanes: int = 128,
    warps_wide: int = 0,
    ahead: int = 0,
) -> DirectTile:
    """The tile of these choices.

    Args:
        columns: of a warp's run; ignored where phases lie across lanes.
        positions: of a thread, in each of its rows.
        rows: of positions of a thread, which then has all phases of height; 0 for one row phase at a time.
        splits: sets of warps that share the input channels.
        lanes: threads of one set.
        warps_wide: of a block's tile, whose inputs it brings to shared memory; 0 to read them through the L1 cache.
        ahead: 1 to ask for the inputs of the next channels before these are multiplied.
    """
    axis = layer.axes[2]
    phase_lanes, phases = 1, axis.phases_with_taps
    if phases_on_lanes(layer):
        phase_lanes, phases, columns = _WARP, min(2, -(-axis.stride // _WARP)), 1
    origin = _origin(layer) if phase_lanes == 1 else 0
    own_taps = layer.kernel[1] if rows else 1
    products = own_taps * max(1, rows) * phases * positions * channels
    most_taps = _MOST_UNROLLED // products if phase_lanes == 1 else 2
    chunk_taps = min(axis.taps_per_phase, max(1, most_taps))
    while chunk_taps > 1 and positions * window(axis, origin, chunk_taps, phase_lanes, phases) > _MOST_INPUTS:
        chunk_taps -= 1
    tile = DirectTile(
        position_lanes=lanes // phase_lanes,
        phase_lanes=phase_lanes,
        splits=splits,
        columns=columns,
        positions=positions,
        stacked=1 if rows else 0,
        rows=max(1, rows),
        warps_wide=warps_wide,
        channels=channels,
        phases=phases,
        chunk_rows=layer.kernel[0] * layer.kernel[1],
        chunk_channels=layer.in_channels_per_group,
        chunk_taps=chunk_taps,
        unroll=1,
        ahead=ahead,
        origin=origin,
        row_origin=_row_origin(layer.axes[1]) if rows else 0,
        blocks=1,
    )
    tile = replace(tile, unroll=_unroll(layer, tile, products * chunk_taps))
    tile = _with_weights(layer, tile)
    return replace(tile, blocks=blocks_that_fit(layer, tile))


def _unroll(layer: Layer, tile: DirectTile, products: int) -> int:
    """Input channels that are asked for at once: some latency's worth, and hardly more than there are."""
    loads, most = input_loads(layer, tile), _MOST_LOADS
    if tile.warps_wide:
        loads, most = tile.splits * staged_loads(layer, tile), _MOST_STAGED
    in_channels, unroll = -(-layer.in_channels_per_group // tile.splits), 1
    while (
        2 * unroll * loads <= most
        and 2 * unroll * products <= _MOST_UNROLLED
        and -(-in_channels // (2 * unroll)) * 2 * unroll <= _MOST_PADDED * in_channels
    ):
        unroll *= 2
    return unroll


def _with_weights(layer: Layer, tile: DirectTile) -> DirectTile:
    """`tile` with all weights of a block in shared memory if they are few, else with stages of them."""
    groups = -(-layer.in_channels_per_group // tile.unroll)
    tile = replace(tile, chunk_channels=groups * tile.unroll)
    channel_bytes = channel_items(layer, tile) * accumulator_bytes(layer)
    if resident(layer, tile) and tile.chunk_rows * tile.chunk_channels * channel_bytes <= _RESIDENT_BYTES:
        return tile
    own_taps = layer.kernel[1] if tile.stacked else 1
    group = tile.unroll * tile.splits
    stages = min(-(-groups // tile.splits), max(1, _STAGE_BYTES // (own_taps * channel_bytes * group)))
    return replace(tile, chunk_rows=own_taps, chunk_channels=stages * group)


def default_tile(layer: Layer) -> DirectTile:
    """A tile for any size of `layer`, good for long rows."""
    phases, budget = layer.axes[2].phases_with_taps, _SUMS // accumulator_words(layer)
    if phases_on_lanes(layer):
        phases = min(2, -(-layer.stride[2] // _WARP))
        positions = max(1, _MOST_LOADS // (2 * phases))
    else:
        positions = max(1, min(2, budget // phases))
    channels = min(layer.out_channels_per_group, max(1, budget // (phases * positions)), 16)
    return direct_tile(layer, _WARP, positions, 1 << (channels.bit_length() - 1))


def phases_on_lanes(layer: Layer) -> bool:
    """Whether column phases are too many for the registers of a thread, and lie across the lanes of a warp."""
    return layer.stride[2] > _MOST_PHASES_IN_REGISTERS


def accumulator_words(layer: Layer) -> int:
    """Registers of a sum."""
    return accumulator_bytes(layer) // 4


def is_small(layer: Layer, tile: DirectTile) -> bool:
    """Whether a thread can hold the tile, and its code stays short: all of that is unrolled."""
    own_taps, rows = (layer.kernel[1], tile.rows * layer.stride[1]) if tile.stacked else (1, 1)
    sums = thread_sums(layer, tile) * accumulator_words(layer)
    products = own_taps * tile.rows * tile.chunk_taps * tile.phases * tile.positions * tile.channels * tile.unroll
    stores = rows * tile.channels * tile.positions * (layer.stride[2] if tile.phase_lanes == 1 else tile.phases)
    if tile.warps_wide and tile.chunk_taps < layer.axes[2].taps_per_phase:
        return False
    return sums <= _MOST_SUMS and products <= _MOST_UNROLLED and stores <= _MOST_STORES


def staged_loads(layer: Layer, tile: DirectTile) -> int:
    """Loads of inputs that a thread does for one channel of its block's tile."""
    return -(-tile_items(layer, tile) // (tile.position_lanes * tile.splits))


def input_loads(layer: Layer, tile: DirectTile) -> int:
    """Loads of inputs that a thread does for one channel and one stage of taps."""
    rows = 1
    if tile.stacked:
        shifts = [moved(layer.axes[1], tile.row_origin).shift_of(tap) for tap in range(layer.kernel[1])]
        rows = len({row - shift for row in range(tile.rows) for shift in shifts})
    in_row = window(layer.axes[2], tile.origin, tile.chunk_taps, tile.phase_lanes, tile.phases)
    return rows * in_row * tile.positions


def registers(layer: Layer, tile: DirectTile) -> int:
    """Registers that a thread wants, estimated from what NVRTC 13 took for sm_90; others take some fewer or more."""
    words = accumulator_words(layer)
    count = 33 + 1.27 * thread_sums(layer, tile) * words * (2 if chained(layer, tile) else 1)
    loads = input_loads(layer, tile) * words
    if tile.warps_wide:
        count += 0.4 * loads + 2.1 * tile.unroll * tile.splits * staged_loads(layer, tile)
    else:
        count += loads * tile.unroll * (1.65 if tile.ahead else 1.1)
    if tile.phase_lanes > 1:
        count += 5 * tile.phases
    elif layer.stride[2] > 1 and not vector(layer):
        count += 4 if run_rows(tile) == 1 else 22
    count += 0 if resident(layer, tile) else 36
    count += 17 if layer.spatial_dims == 3 else 0
    return int(count + (4 if tile.splits > 1 else 0))


def blocks_that_fit(layer: Layer, tile: DirectTile, optimism: float = 1.0) -> int:
    """Blocks for each multiprocessor that registers allow, if the estimate is `optimism` times too high."""
    threads = tile.position_lanes * tile.phase_lanes * tile.splits
    wanted = min(255, registers(layer, tile) / optimism)
    allowed = next(limit for limit in _REGISTER_LIMITS if limit >= wanted)
    return max(1, min(16, _REGISTERS // (allowed * threads)))


def vector(layer: Layer) -> bool:
    """Whether the columns of a position make one vector, where rows allow it."""
    stride = layer.stride[2]
    return stride & (stride - 1) == 0 and stride * stored_bytes(layer) <= _VECTOR_BYTES


def stored_bytes(layer: Layer) -> int:
    """Bytes of an element."""
    return _STORED_BYTES.get(layer.precision, 4)


def _origin(layer: Layer) -> int:
    """Where positions start: so that taps share most inputs, unless stores matter more.

    They do where a position's columns make one vector, or where each input is used by few products. Position 0 then
    starts at column 0, and rows of outputs mostly at a line of memory.
    """
    if vector(layer) or layer.in_channels_per_group == 1:
        return 0
    axis = layer.axes[2]
    origins = range(min(axis.padding + 1, axis.stride))
    return min(origins, key=lambda origin: window(axis, origin, axis.taps_per_phase, 1, axis.phases_with_taps))


def _row_origin(axis: Axis) -> int:
    """Where rows of positions start: so that taps share most inputs."""

    spans = {}
    for origin in range(min(axis.padding + 1, axis.stride)):
        height = moved(axis, origin)
        spans[origin] = height.shift_of(axis.kernel - 1) - height.shift_of(0)
    return min(spans, key=lambda origin: spans[origin])
