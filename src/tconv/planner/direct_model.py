"""How long a tile of the `direct` family takes, predicted: what the planner ranks tiles by.

Five things can limit a kernel: instructions issued, the pipeline of loads and stores, memory, the L2 cache, and the
chain of steps that a block cannot overlap. Each is counted from the shape of the kernel; the constants were fitted to
5,500 measured tiles of 36 layers on one NVIDIA H200, where the tile that the model prefers takes 1.10 times as long as
the best one measured (geometric mean). Only the order of the predictions matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.direct_shape import (
    accumulator_bytes,
    block_runs,
    chained,
    channel_items,
    input_rows,
    launch_direct,
    parts,
    resident,
    row_phases,
    run_rows,
    runs,
    thread_sums,
    tile_items,
)
from tconv.planner.direct_tile import input_loads, registers, staged_loads, stored_bytes, vector
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.plan import DirectTile, Kernel
from tconv.problem import Problem

_WARP = 32
_CLOCK = 1.8e9
_SCHEDULERS = 4
_SHARED_BYTES = 227 * 1024
_THREADS = 2048

# What follows was fitted together: where the model says too little of one thing, another makes up for it.
#: Instructions: of a load through the L1 cache; of an input on its way to shared memory, and of reading it there.
_LOAD = 2.2
_STAGED = 2.8
_READ = 0.73
#: Of a group of channels, through L1 and from a tile; of 32 outputs stored, without and with phases that interleave; of
#: one row phase of a run; of 32 weights staged.
_GROUP = (8, 18)
_STORE = (2.5, 4.2)
_STEP = 47
_WEIGHTS = 83
#: Cycles of the load and store pipeline: of a load through L1, the more rows its lanes are in the more; of an input to
#: shared memory; of 32 outputs stored. And what one such cycle counts.
_L1_CYCLES = 0.7
_ROW_CYCLES = 0.62
_STAGED_CYCLES = 1.88
_STORE_CYCLES = 3.4
_CYCLE = 0.47
#: Instructions a cycle with very many warps; warps at which it is half of that, for 100 multiply-adds in a row, and a
#: part of them with loads ahead; how much slower a kernel gets that wants more registers than it may have.
_PEAK = 0.96
_HALF_SPEED_WARPS = 9.2
_AHEAD = 0.95
_SPILL = 0.33
#: How much of a copy's bandwidth kernels reach with very many warps; warps at which it is half of that; what the L2
#: cache gives in its place; and how much more rows cost it that start anywhere.
_REACHED = 0.85
_MEMORY_WARPS = 4.65
_CACHE = 2.8
_UNALIGNED = 1.38
#: Seconds that a group of channels takes at least, through L1, with loads ahead, and from a tile; and a stage of
#: weights for each that a thread brings.
_GROUP_SECONDS = (0.36e-6, 0.58e-6, 0.27e-6)
_WEIGHT_SECONDS = 0.064e-6
#: How sharply the largest limit rules.
_NORM = 2.0


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of each limit, and of all together."""

    issue: float
    pipeline: float
    memory: float
    cache: float
    chain: float

    @property
    def seconds(self) -> float:
        limits = (self.issue, self.pipeline, self.memory, self.cache, self.chain)
        return SHORTEST_SECONDS + sum(limit**_NORM for limit in limits) ** (1 / _NORM)


def predict(problem: Problem, tile: DirectTile, gpu: Gpu) -> Cost:
    """The cost of `problem` with `tile` on `gpu`."""
    layer = problem.layer
    width = layer.axes[2]
    words = accumulator_bytes(layer) // 4
    plan = launch_direct(problem, Kernel("direct", layer, tile), gpu)
    on_lanes, stays, tiled = tile.phase_lanes > 1, resident(layer, tile), tile.warps_wide > 0
    warps = tile.position_lanes * tile.phase_lanes * tile.splits // _WARP

    # What one warp does for one input channel and row tap (or all of height's).
    row_taps = layer.kernel[1] if tile.stacked else 1
    weights = row_taps * tile.channels * (tile.phases * width.taps_per_phase if on_lanes else width.kernel) * words
    products = weights * tile.rows * tile.positions
    at_once = _weights_at_once(problem, tile)
    loads = input_loads(layer, tile)
    instructions = products + weights / at_once
    cycles = weights * {1: 1.0, 2: 0.75, 4: 0.5}[at_once]
    if tiled:
        staged = tile.splits * staged_loads(layer, tile)
        instructions += _READ * loads + _STAGED * staged + _GROUP[1] / tile.unroll
        cycles += loads * words + _STAGED_CYCLES * staged
    else:
        instructions += _LOAD * loads + _GROUP[0] / tile.unroll
        cycles += loads * (1 if on_lanes else max(_L1_CYCLES, _ROW_CYCLES * run_rows(tile)))

    # How often, over all warps.
    all_runs = runs(problem, tile)
    channel_parts = parts(layer, tile) // (1 if stays else row_phases(layer, tile))
    passes = layer.kernel[0] * (1 if tile.stacked else layer.kernel[1])
    channels = -(-layer.in_channels_per_group // tile.unroll) * tile.unroll
    times = all_runs * channel_parts * passes * channels
    rows = layer.stride[0] * layer.stride[1] * (tile.rows if tile.stacked else 1)
    columns = tile.phases if on_lanes else width.stride
    stores = all_runs * channel_parts * rows * columns * tile.positions * tile.channels
    interleaved = not on_lanes and width.stride > 1
    vectors = interleaved and vector(layer) and problem.output_size[2] % width.stride == 0
    if vectors:
        stores //= width.stride
    units = -(-all_runs // block_runs(tile)) * channel_parts
    stages = 1 if stays else -(-channels // tile.chunk_channels) * -(-width.taps_per_phase // tile.chunk_taps)
    staged_weights = tile.chunk_rows * tile.chunk_channels * channel_items(layer, tile) * stages
    staged_weights *= plan.grid if stays else units * passes
    joined = all_runs * channel_parts * (tile.splits - 1) * thread_sums(layer, tile)
    links = thread_sums(layer, tile) * row_taps * width.taps_per_phase / 64 if chained(layer, tile) else 0

    issued = times * (instructions + links) + stores * _STORE[interleaved] + 3 * joined
    issued += all_runs * channel_parts * row_phases(layer, tile) * _STEP + staged_weights / _WARP * _WEIGHTS
    piped = times * cycles + stores * _STORE_CYCLES + 2 * joined + 3 * staged_weights / _WARP

    # What shares a multiprocessor, and how evenly work is spread.
    spill = max(0.0, registers(layer, tile) / (65536 // (tile.blocks * warps * _WARP)) - 1)
    together = min(tile.blocks, _SHARED_BYTES // (plan.shared_bytes + 1024), _THREADS // (warps * _WARP))
    share = min(together, plan.grid / gpu.multiprocessors)
    half_speed = _HALF_SPEED_WARPS * (_AHEAD if tile.ahead else 1) * 100 / (40 + min(products * tile.unroll, 600))
    speed = _PEAK * share * warps / (share * warps + half_speed)
    rounds = -(-units // plan.grid) if stays else 1
    waves = plan.grid / (max(1, together) * gpu.multiprocessors)
    uneven = max(1.0, gpu.multiprocessors / plan.grid) if waves <= 1 else math.ceil(waves) / waves if waves < 4 else 1.0
    uneven *= max(1.0, rounds * plan.grid / units)

    bandwidth = gpu.copy_bandwidth * _REACHED
    if tiled:
        read = units * passes * channels * tile_items(layer, tile)
    elif on_lanes:
        read = 8 * times
    else:
        read = times * run_rows(tile) * input_rows(layer, tile) * (tile.columns * tile.positions + 2)
    # Rows that are exchanged start anywhere, and stores touch more of the cache than they fill.
    written: float = problem.batch * layer.out_channels * math.prod(problem.output_size)
    written *= _UNALIGNED if interleaved and not vectors else 1
    groups = channels / (tile.unroll * tile.splits)
    chain = rounds * math.ceil(waves) * max(passes, row_phases(layer, tile) if stays else 1) * groups
    if not stays:
        chain /= row_phases(layer, tile)
    chain_seconds = chain * _GROUP_SECONDS[2 if tiled else tile.ahead]
    if not stays:
        each = staged_weights / units / (warps * _WARP)
        chain_seconds += math.ceil(waves) * each / row_phases(layer, tile) * _WEIGHT_SECONDS
    return Cost(
        issued * uneven * (1 + _SPILL * spill) / (gpu.multiprocessors * _SCHEDULERS * _CLOCK * speed),
        piped * uneven * _CYCLE / (gpu.multiprocessors * _CLOCK),
        problem.bytes_moved / bandwidth * (1 + _MEMORY_WARPS / (share * warps)),
        (read + written) * stored_bytes(layer) / (bandwidth * _CACHE / _REACHED),
        chain_seconds,
    )


def _weights_at_once(problem: Problem, tile: DirectTile) -> int:
    """Weights that one load from shared memory brings."""
    if tile.phase_lanes == 1 and channel_items(problem.layer, tile) <= 16:
        together = 4
    else:
        together = tile.phases * tile.channels if tile.channels < 4 and tile.phase_lanes == 1 else tile.channels
    return math.gcd(4, together)
