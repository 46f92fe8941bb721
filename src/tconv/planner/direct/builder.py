"""Tiles of the `direct` family: all fields from the few that are chosen. A choice may be an array of many."""

from __future__ import annotations

import functools
from dataclasses import replace

from tconv.planner.direct.shape import DirectShape, accumulator_words, is_vector, row_origin, window_steps
from tconv.planner.direct.tile import DirectTile
from tconv.planner.numbers import ceil_div, least, most, where
from tconv.problem import Layer

#: Threads of a warp.
LANES = 32
#: Accumulators of a thread of the tile for any size, in 32-bit words.
_ACCUMULATORS = 32
#: Layers with more column phases than this have them across a warp's lanes instead of in registers.
_MOST_PHASES_IN_REGISTERS = 16
#: Multiply-adds in one unrolled body. NVRTC's time grows faster than the body.
_MOST_UNROLLED = 1024
#: Accumulators of a thread, in 32-bit words, and outputs that it stores in one unrolled body.
_MOST_ACCUMULATORS = 96
_MOST_STORES = 512
#: Inputs that a thread asks for before it uses the first: enough to hide the cache, few enough not to spill. More only
#: where the taps of one channel need them, and then no more than these.
_MOST_LOADS = 16
_MOST_INPUTS = 32
#: Inputs that a thread has on their way to shared memory.
_MOST_STAGED = 12
#: Channels computed for nothing, so that several can be asked for at once: up to this many times those there are.
_MOST_PADDED = 1.15
#: Doublings that load one load to `_MOST_LOADS`.
_DOUBLINGS = 4
#: Weights of at most this size stay in shared memory, so that a block can go on to further positions.
_RESIDENT_BYTES = 44 * 1024
_STAGE_BYTES = 16 * 1024
#: Dynamic shared memory that every GPU from sm_75 on gives a block: a plan may travel in a file.
SHARED_BYTES = 64 * 1024


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
    may_stay: bool = True,
) -> DirectTile:
    """The tile of these choices.

    Args:
        columns: of a warp's run; ignored where phases lie across lanes.
        positions: of a thread, in each of its rows.
        rows: of positions of a thread, which then has all phases of height; 0 for one row phase at a time.
        splits: sets of warps that share the input channels.
        lanes: threads of one set.
        warps_wide: of a block's tile, whose inputs it loads to shared memory; 0 to read them through the L1 cache.
        ahead: 1 to ask for the inputs of the next channels before these are multiplied.
        may_stay: all weights of a block lie in shared memory, if they are few; else they come in stages.
    """
    axis = layer.axes[2]
    phase_lanes, phases = 1, axis.phases_with_taps
    if phases_on_lanes(layer):
        phase_lanes, phases, columns = LANES, min(2, -(-axis.stride // LANES)), 1
    origin = _origin(layer) if phase_lanes == 1 else 0
    own_taps = where(rows > 0, layer.kernel[1], 1)
    products = own_taps * most(1, rows) * phases * positions * channels
    most_taps = _MOST_UNROLLED // products if phase_lanes == 1 else 2
    # As many taps as have their inputs in registers.
    first, further = window_steps(axis, origin, phase_lanes, phases)
    most_taps = least(most_taps, (_MOST_INPUTS // positions - first) // further + 1)
    k_tile_taps = least(axis.taps_per_phase, most(1, most_taps))
    tile = DirectTile(
        position_lanes=lanes // phase_lanes,
        phase_lanes=phase_lanes,
        splits=splits,
        columns=columns,
        positions=positions,
        stacked=where(rows > 0, 1, 0),
        rows=most(1, rows),
        warps_wide=warps_wide,
        channels=channels,
        phases=phases,
        k_tile_rows=layer.kernel[0] * layer.kernel[1],
        k_tile_channels=layer.in_channels_per_group,
        k_tile_taps=k_tile_taps,
        unroll=1,
        ahead=ahead,
        origin=origin,
        row_origin=where(rows > 0, row_origin(layer.axes[1]), 0),
        blocks=1,
    )
    tile = replace(tile, unroll=_unroll(layer, tile, products * k_tile_taps))
    tile = _with_weights(layer, tile, may_stay)
    return replace(tile, blocks=DirectShape(layer, tile).blocks_that_fit())


def _unroll(layer: Layer, tile: DirectTile, products: int) -> int:
    """Input channels that are asked for at once: some latency's worth, and hardly more than there are."""
    shape = DirectShape(layer, tile)
    loads = where(tile.warps_wide > 0, tile.splits * shape.staged_loads, shape.input_loads)
    most_loads = where(tile.warps_wide > 0, _MOST_STAGED, _MOST_LOADS)
    in_channels, unroll, further = ceil_div(layer.in_channels_per_group, tile.splits), 1, True
    for doubled in (2**n for n in range(1, _DOUBLINGS + 1)):
        further = (
            further
            & (doubled * loads <= most_loads)
            & (doubled * products <= _MOST_UNROLLED)
            & (ceil_div(in_channels, doubled) * doubled <= _MOST_PADDED * in_channels)
        )
        unroll = where(further, doubled, unroll)
    return unroll


def _with_weights(layer: Layer, tile: DirectTile, may_stay: bool) -> DirectTile:
    """`tile` with all weights of a block in shared memory if they are few, else with stages of them."""
    groups = ceil_div(layer.in_channels_per_group, tile.unroll)
    tile = replace(tile, k_tile_channels=groups * tile.unroll)
    shape = DirectShape(layer, tile)
    stays = may_stay & shape.resident & (shape.weight_items * shape.accumulator_bytes <= _RESIDENT_BYTES)
    group = tile.unroll * tile.splits
    group_bytes = shape.own_row_taps * shape.channel_items * shape.accumulator_bytes * group
    stages = least(ceil_div(groups, tile.splits), most(1, _STAGE_BYTES // group_bytes))
    return replace(
        tile,
        k_tile_rows=where(stays, tile.k_tile_rows, shape.own_row_taps),
        k_tile_channels=where(stays, tile.k_tile_channels, stages * group),
    )


def default_tile(layer: Layer) -> DirectTile:
    """A tile for any size of `layer`, good for long rows."""
    phases, budget = layer.axes[2].phases_with_taps, _ACCUMULATORS // accumulator_words(layer)
    if phases_on_lanes(layer):
        phases = min(2, -(-layer.stride[2] // LANES))
        positions = max(1, _MOST_LOADS // (2 * phases))
    else:
        positions = max(1, min(2, budget // phases))
    channels = min(layer.out_channels_per_group, max(1, budget // (phases * positions)), 16)
    tile = direct_tile(layer, LANES, positions, 1 << (channels.bit_length() - 1))
    if DirectShape(layer, tile).shared_bytes <= SHARED_BYTES:
        return tile
    # With what warps exchange, weights that stay are too many.
    return direct_tile(layer, LANES, positions, 1 << (channels.bit_length() - 1), may_stay=False)


def phases_on_lanes(layer: Layer) -> bool:
    """Whether column phases are too many for the registers of a thread, and lie across the lanes of a warp."""
    return layer.stride[2] > _MOST_PHASES_IN_REGISTERS


def is_small(layer: Layer, tile: DirectTile) -> bool:
    """Whether a thread can hold the tile, and its code stays short: all of that is unrolled."""
    shape = DirectShape(layer, tile)
    rows = where(tile.stacked > 0, tile.rows * layer.stride[1], 1)
    columns = layer.stride[2] if tile.phase_lanes == 1 else tile.phases
    accumulators = shape.thread_accumulators * accumulator_words(layer)
    own_products = tile.rows * tile.k_tile_taps * tile.phases * tile.positions * tile.channels
    products = shape.own_row_taps * own_products * tile.unroll
    stores = rows * tile.channels * tile.positions * columns
    whole_taps = (tile.warps_wide == 0) | (tile.k_tile_taps >= layer.axes[2].taps_per_phase)
    return whole_taps & (accumulators <= _MOST_ACCUMULATORS) & (products <= _MOST_UNROLLED) & (stores <= _MOST_STORES)


@functools.lru_cache(maxsize=256)
def _origin(layer: Layer) -> int:
    """Where positions start: so that taps share most inputs, unless stores matter more.

    They do where a position's columns make one vector, or where each input is used by few products. Position 0 then
    starts at column 0, and rows of outputs mostly at a line of memory.
    """
    if is_vector(layer) or layer.in_channels_per_group == 1:
        return 0
    axis = layer.axes[2]

    def window(origin: int) -> int:
        first, further = window_steps(axis, origin, 1, axis.phases_with_taps)
        return first + (axis.taps_per_phase - 1) * further

    return min(range(min(axis.padding + 1, axis.stride)), key=window)
