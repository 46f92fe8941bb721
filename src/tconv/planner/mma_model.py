"""How long a tile of the `mma` family takes, predicted: what the planner ranks tiles by.

Counted from the shape of the kernel: products on the tensor cores, the pipeline of shared memory, memory, the L2 cache,
and the chain of steps that a block cannot overlap with itself. The rates are those of the hardware's description and of
general experience with it; nothing here is fitted to measured tiles yet. Only the order of the predictions matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.mma_shape import (
    block_positions,
    chunk_channels,
    chunks,
    fragments_with_taps,
    halo_positions,
    launch_mma,
    planes,
    shift_bytes,
    shifts,
    weight_bytes,
)
from tconv.planner.plan import Kernel, MmaTile
from tconv.problem import Layer, Precision, Problem

_CLOCK = 1.75e9
#: Multiply-adds a cycle and multiprocessor of `mma.sync`.
_RATES: dict[Precision, float] = {"fp32": 640, "tf32": 640, "tf32_rna": 640, "fp16": 1280, "bf16": 1280}
#: Bytes a second and multiprocessor, where nobody measured the bandwidth; how much of it kernels reach; bytes a cycle
#: that a multiprocessor gets from the L2 cache.
_BANDWIDTH = 30e9
_REACHED = 0.85
_CACHE = 22.0
#: Cycles of the shared-memory pipeline: of a vector of inputs on its way there, for each item loaded; of one output;
#: of one sum that a set of warps gives to the first.
_INPUT_CYCLES = 1.5
_OUTPUT_CYCLES = 4.0
_JOIN_CYCLES = 2.0
#: Cycles that a step takes at least: a load from memory, a barrier. What a block takes to start and to end.
_STEP = 900
_BLOCK = 2500
_NORM = 3.0


@dataclass(frozen=True)
class MmaCost:
    """Predicted seconds of each limit, and of all together."""

    products: float
    pipeline: float
    memory: float
    cache: float
    chain: float
    preparation: float

    @property
    def seconds(self) -> float:
        limits = (self.products, self.pipeline, self.memory, self.cache, self.chain)
        return SHORTEST_SECONDS + self.preparation + sum(limit**_NORM for limit in limits) ** (1 / _NORM)


def predict_mma(problem: Problem, layer: Layer, tile: MmaTile, gpu: Gpu) -> MmaCost:
    """The cost of `problem` by a kernel of `layer` with `tile` on `gpu`."""
    plan = launch_mma(problem, Kernel("mma", layer, tile))
    warps = tile.threads // 32
    steps = chunks(layer, tile) * tile.chunk_steps * tile.splits
    used = fragments_with_taps(layer, tile)  # of all shifts and of the row tiles of a block
    three = 3 if planes(layer) == 2 else 1
    multiplied = 16 * 8 * (32 // layer.item_bytes)

    products = used * tile.warps_wide * tile.position_tiles * steps * three * multiplied / _RATES[layer.precision]
    of_set = tile.warps_high * tile.warps_wide
    fragments = of_set * shifts(layer, tile) * tile.position_tiles / 2 + used * tile.warps_wide
    loads = 4 * planes(layer) * steps * fragments
    brought = halo_positions(layer, tile) * chunks(layer, tile) * chunk_channels(layer, tile)
    outputs = 16 * tile.row_tiles * tile.warps_high * block_positions(tile)
    piped = loads + brought / 32 * _INPUT_CYCLES * planes(layer) + outputs / 32 * _OUTPUT_CYCLES
    piped += (tile.splits - 1) * outputs / 32 * _JOIN_CYCLES
    weights = chunks(layer, tile) * shifts(layer, tile) * shift_bytes(layer, tile)
    cached = brought * layer.item_bytes + weights

    together = tile.blocks
    waves = math.ceil(plan.grid / (gpu.multiprocessors * together))
    # So many blocks are worked at by a multiprocessor one after the other, or at once.
    turns = plan.grid / gpu.multiprocessors if waves > 4 else max(1.0, min(together, plan.grid / gpu.multiprocessors))
    turns *= 1 if waves > 4 else waves
    shift_groups = -(-shifts(layer, tile) // tile.chunk_shifts)
    chain = waves * (chunks(layer, tile) * shift_groups * _STEP + _BLOCK)
    # A warp's products wait for its loads, and other warps fill the gaps.
    alone = 1 + 1.5 / max(1, min(together, math.ceil(plan.grid / gpu.multiprocessors)) * warps / 4) ** 2
    bandwidth = (gpu.bandwidth or _BANDWIDTH * gpu.multiprocessors) * _REACHED
    prepared = weight_bytes(layer, tile)
    return MmaCost(
        products * turns * alone / _CLOCK,
        piped * turns / _CLOCK,
        (problem.bytes_moved + weight_bytes(layer, tile)) / bandwidth,
        cached * turns / _CACHE / _CLOCK,
        chain / _CLOCK,
        2.5e-6 + 3 * prepared / bandwidth,
    )
