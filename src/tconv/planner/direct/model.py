"""How long a tile of the `direct` family takes, predicted: what the planner ranks tiles by.

Five things can limit a kernel: instructions issued, the pipeline of loads and stores, memory, the L2 cache, and the
chain of steps that a block cannot overlap. Each is counted from the shape of the kernel. `benchmarks/fit.py` fits the
constants to measured tiles. Only the order of the predictions matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.direct.launch import grid, launch_traits, runs
from tconv.planner.direct.shape import DirectShape, accumulator_words, is_vector
from tconv.planner.direct.tile import DirectTile
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.family import Cost
from tconv.planner.gpu import REGISTERS, RESERVED_SHARED_BYTES, SHARED_BYTES, SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil, ceil_div, gcd, least, most, where
from tconv.problem import Problem

_WARP = 32
_CLOCK = 1.8e9
_SCHEDULERS = 4
_THREADS = 2048


@dataclass(frozen=True)
class Constants:
    """What was fitted, all of it together: where the model says too little of one thing, another makes up for it.

    Args:
        load: instructions of a load through the L1 cache.
        staged: instructions of an input on its way to shared memory.
        read: instructions of reading an input there.
        group_through_l1, group_of_tile: instructions of a group of channels.
        store, store_interleaved: instructions of 32 outputs stored, the latter with phases that interleave.
        step: instructions of one row phase of a run.
        weights: instructions of 32 weights staged.
        l1_cycles: of the load and store pipeline, for a load through L1.
        row_cycles: the same for each row that its lanes are in.
        staged_cycles: the same for an input to shared memory.
        store_cycles: the same for 32 outputs stored.
        cycle: what a cycle of that pipeline counts.
        peak: instructions a cycle and scheduler with very many warps.
        half_speed_warps: warps of a multiprocessor at which it is half of that, for 100 multiply-adds in a row.
        ahead: what share of those is needed with loads ahead.
        spill: how much slower a kernel gets, for each time as many registers that it wants more than it may have.
        reached: share of a copy's bandwidth that kernels reach with very many warps.
        memory_warps: warps of a multiprocessor at which it is half of that.
        cache: bandwidth of the L2 cache, as a multiple of a copy's.
        unaligned: how much more rows cost it that start anywhere.
        group_seconds, group_seconds_ahead, group_seconds_of_tile: that a group of channels takes at least: through L1,
            with loads ahead, from a tile.
        weight_seconds: that a stage of weights takes at least, for each weight that a thread loads.
        norm: how sharply the largest limit rules.
        launch: seconds from the launch to the first loads, and from the last products to the end; beside all else.
        gathered: seconds more where an output has several input channels.
    """

    load: float = 2.2
    staged: float = 2.8
    read: float = 0.73
    group_through_l1: float = 8
    group_of_tile: float = 18
    store: float = 2.5
    store_interleaved: float = 4.2
    step: float = 47
    weights: float = 83
    l1_cycles: float = 0.7
    row_cycles: float = 0.62
    staged_cycles: float = 1.88
    store_cycles: float = 3.4
    cycle: float = 0.47
    peak: float = 0.96
    half_speed_warps: float = 9.2
    ahead: float = 0.95
    spill: float = 0.33
    reached: float = 0.85
    memory_warps: float = 4.65
    cache: float = 2.8
    unaligned: float = 1.38
    group_seconds: float = 0.36e-6
    group_seconds_ahead: float = 0.58e-6
    group_seconds_of_tile: float = 0.27e-6
    weight_seconds: float = 0.064e-6
    norm: float = 2.0
    launch: float = 2.8e-6
    gathered: float = 1e-6


FITTED = Constants()


@dataclass(frozen=True)
class DirectCost(Cost):
    """Predicted seconds of each limit, and of all together, the program included."""

    issue: float
    pipeline: float
    memory: float
    cache: float
    chain: float
    seconds: float


def predict(problem: Problem, tile: DirectTile, gpu: Gpu, fitted: Constants = FITTED) -> DirectCost:
    """The cost of `problem` with `tile`, or of many tiles, on `gpu`."""
    layer = problem.layer
    width = layer.axes[2]
    shape = DirectShape(layer, tile)
    words = accumulator_words(layer)
    kernel = launch_traits(layer, tile, gpu.multiprocessors)
    blocks = 1.0 * grid(problem, layer, kernel)
    stays, tiled = shape.resident, tile.warps_wide > 0
    on_lanes = tile.phase_lanes > 1  # all tiles of a layer, or none
    warps = tile.position_lanes * tile.phase_lanes * tile.splits // _WARP

    # What one warp does for one input channel and row tap (or all of height's).
    taps = tile.phases * width.taps_per_phase if on_lanes else width.kernel
    weights = shape.own_row_taps * tile.channels * taps * words
    products = weights * tile.rows * tile.positions
    at_once = _weights_at_once(shape)
    loads = shape.input_loads
    staged = tile.splits * shape.staged_loads
    instructions = (products + weights / at_once) + where(
        tiled,
        fitted.read * loads + fitted.staged * staged + fitted.group_of_tile / tile.unroll,
        fitted.load * loads + fitted.group_through_l1 / tile.unroll,
    )
    load_cycles = 1 if on_lanes else most(fitted.l1_cycles, fitted.row_cycles * shape.run_rows)
    cycles = weights * where(at_once == 4, 0.5, where(at_once == 2, 0.75, 1.0)) + where(
        tiled, loads * words + fitted.staged_cycles * staged, loads * load_cycles
    )

    # How often, over all warps.
    all_runs = 1.0 * runs(problem, layer, kernel)
    channel_parts = shape.parts // where(stays, 1, shape.row_phases)
    passes = layer.kernel[0] * where(tile.stacked > 0, 1, layer.kernel[1])
    channels = ceil_div(layer.in_channels_per_group, tile.unroll) * tile.unroll
    times = all_runs * channel_parts * passes * channels
    rows = layer.stride[0] * layer.stride[1] * where(tile.stacked > 0, tile.rows, 1)
    columns = tile.phases if on_lanes else width.stride
    stores = all_runs * channel_parts * rows * columns * tile.positions * tile.channels
    interleaved = not on_lanes and width.stride > 1
    vectors = interleaved and is_vector(layer) and problem.output_size[2] % width.stride == 0
    if vectors:
        stores = stores // width.stride
    units = ceil_div(all_runs, shape.block_runs) * channel_parts
    tap_stages = ceil_div(width.taps_per_phase, tile.k_tile_taps)
    stages = where(stays, 1, ceil_div(channels, tile.k_tile_channels) * tap_stages)
    staged_weights = 1.0 * tile.k_tile_rows * tile.k_tile_channels * shape.channel_items * stages
    staged_weights = staged_weights * where(stays, blocks, units * passes)
    joined = all_runs * channel_parts * (tile.splits - 1) * shape.thread_accumulators
    links = where(shape.chained, shape.thread_accumulators * shape.own_row_taps * width.taps_per_phase / 64, 0)

    store = fitted.store_interleaved if interleaved else fitted.store
    issued = times * (instructions + links) + stores * store + 3 * joined
    issued = issued + all_runs * channel_parts * shape.row_phases * fitted.step
    issued = issued + staged_weights / _WARP * fitted.weights
    piped = times * cycles + stores * fitted.store_cycles + 2 * joined + 3 * staged_weights / _WARP

    # What shares a multiprocessor, and how evenly work is spread.
    spill = most(0.0, shape.registers / (REGISTERS // (tile.blocks * warps * _WARP)) - 1)
    by_memory = SHARED_BYTES // (shape.shared_bytes + RESERVED_SHARED_BYTES)
    together = least(least(tile.blocks, by_memory), _THREADS // (warps * _WARP))
    share = least(together, blocks / gpu.multiprocessors)
    half_speed = fitted.half_speed_warps * where(tile.ahead > 0, fitted.ahead, 1.0)
    half_speed = half_speed * 100 / (40 + least(products * tile.unroll, 600))
    speed = fitted.peak * share * warps / (share * warps + half_speed)
    rounds = where(stays, ceil_div(units, blocks), 1)
    waves = blocks / (most(1, together) * gpu.multiprocessors)
    uneven = where(
        waves <= 1,
        most(1.0, gpu.multiprocessors / blocks),
        where(waves < 4, ceil(waves) / waves, 1.0),
    )
    uneven = uneven * most(1.0, rounds * blocks / units)

    bandwidth = gpu.copy_bandwidth * fitted.reached
    of_rows = shape.run_rows * shape.input_rows * (shape.run_columns + 2)
    of_tiles = units * passes * channels * shape.tile_items
    read = where(tiled, of_tiles, 8 * times if on_lanes else times * of_rows)
    # Rows that are exchanged start anywhere, and stores touch more of the cache than they fill.
    written = 1.0 * problem.batch * layer.out_channels * math.prod(problem.output_size)
    written *= fitted.unaligned if interleaved and not vectors else 1.0
    groups = channels / (tile.unroll * tile.splits)
    chain = rounds * ceil(waves) * most(passes, where(stays, shape.row_phases, 1)) * groups
    chain = chain / where(stays, 1, shape.row_phases)
    at_least = where(tile.ahead > 0, fitted.group_seconds_ahead, fitted.group_seconds)
    chain_seconds = chain * where(tiled, fitted.group_seconds_of_tile, at_least)
    each = staged_weights / units / (warps * _WARP)
    chain_seconds = chain_seconds + where(stays, 0.0, ceil(waves) * each / shape.row_phases * fitted.weight_seconds)
    limits = (
        issued * uneven * (1 + fitted.spill * spill) / (gpu.multiprocessors * _SCHEDULERS * _CLOCK * speed),
        piped * uneven * fitted.cycle / (gpu.multiprocessors * _CLOCK),
        problem.bytes_moved / bandwidth * (1 + fitted.memory_warps / (share * warps)),
        (read + written) * layer.item_bytes / (bandwidth * fitted.cache / fitted.reached),
        chain_seconds,
    )
    together_seconds = sum(limit**fitted.norm for limit in limits) ** (1 / fitted.norm)
    seconds = SHORTEST_SECONDS + fitted.launch + together_seconds
    seconds = seconds + (fitted.gathered if layer.in_channels_per_group > 1 else 0.0)
    return DirectCost(*limits, seconds + fused_seconds(problem, gpu))


def _weights_at_once(shape: DirectShape) -> int:
    """Weights that one load from shared memory loads."""
    tile = shape.tile
    if tile.phase_lanes > 1:
        return gcd(4, tile.channels)
    few = shape.channel_items <= 16
    return gcd(4, where(few, 4, where(tile.channels < 4, tile.phases * tile.channels, tile.channels)))
