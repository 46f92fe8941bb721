"""How long a tile of the `col2im_wgmma` family takes, predicted: what the planner ranks tiles by.

The constants were fitted to 1,983 tiles of 51 layers, and are a little higher: where another family is about as fast,
that one is taken. Those of prepared inputs were fitted to 360 tiles of 40 layers. The order of the predictions is what
matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tconv.planner.col2im.inputs import LEAST_COPY
from tconv.planner.col2im.launch import grid
from tconv.planner.col2im.model import piece_cycles, taps_in_depth
from tconv.planner.col2im_wgmma.launch import launch_traits
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape
from tconv.planner.col2im_wgmma.tile import Col2imWgmmaTile
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.family import Cost
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil, least, where
from tconv.problem import Layer, Problem

_CLOCK = 1.75e9
_SECTOR_BYTES = 32


@dataclass(frozen=True)
class Constants:
    """What was fitted, in cycles where nothing else is said.

    Args:
        copy: of a block, for a warp's instruction that copies inputs. Copies of weights overlap the rest.
        product, positions: of a block, for a warpgroup's instruction, and for each 8 positions of it.
        weight: of a block, for 32 weights of 32 bits that are loaded from a stage.
        move, item: of a block, for 32 inputs of 32 bits that are moved, and for 32 items of 16 bits that are, of runs.
        step: of a warpgroup, for a step of a tile of rows where inputs were prepared: nothing is moved beside
            its products.
        k_tile, moved, shifted: of a set of warpgroups, for a k-tile; more for one whose inputs are moved and rounded;
            and for one of runs of 16 bits, which are moved.
        latency: the same, for one whose copies are waited for, shared by those on their way.
        loaded: the same, for each weight that a thread loads, where copies of weights have two bytes and no thread
            may ask for them ahead.
        result, output: of a block, for 32 results that are summed, and for 32 outputs, or vectors of them.
        stored: more for these, for each sector that they touch.
        alone: the same, for 32 outputs that are not summed position by position.
        tap: more for these, for each of `taps_in_depth`.
        block: of a block beside all else: from its launch to its first products, and from its last to its end.
        again: how much of that a block costs which follows another one.
        once: how often an output's byte counts more where all blocks run at once: all load, then all store.
        together: blocks that share a multiprocessor take so much longer, as a power of their number.
        sectors: how often a byte counts that blocks load, mostly from the L2 cache, in whole sectors; all blocks
            share its rate.
        memory: how often a byte of memory counts.
        partial: how often a byte of a sector counts of which a store in channels_last writes a part.
        ordering: seconds of the kernel that prepares inputs, beside its bytes.
        ordered: how often a byte of them counts.
    """

    copy: float = 5.27
    product: float = 24.0
    positions: float = 1.2
    weight: float = 1.39
    move: float = 2.0
    item: float = 4.3
    k_tile: float = 80.0
    moved: float = 310.0
    shifted: float = 300.0
    step: float = 6.0
    latency: float = 216.0
    loaded: float = 64.0
    result: float = 4.37
    output: float = 1.82
    stored: float = 0.411
    alone: float = 15.0
    tap: float = 6.0
    block: float = 5400.0
    again: float = 0.572
    once: float = 1.2
    together: float = 0.584
    sectors: float = 0.152
    memory: float = 0.904
    partial: float = 1.2
    ordering: float = 1.7e-6
    ordered: float = 2.5


FITTED = Constants()


@dataclass(frozen=True)
class Col2imWgmmaCost(Cost):
    """Predicted seconds of each part and of all together, the program included.

    Of all blocks of a multiprocessor. Little of a short kernel overlaps: all but memory add up.
    """

    copies: float
    products: float
    factors: float
    chain: float
    sums: float
    sectors: float
    memory: float
    preparation: float
    seconds: float


def predict(
    problem: Problem, layer: Layer, tile: Col2imWgmmaTile, gpu: Gpu, fitted: Constants = FITTED
) -> Col2imWgmmaCost:
    """The cost of `problem` by a kernel of `layer` with `tile`, or with many tiles, on `gpu`."""
    shape, warpgroups = Col2imWgmmaShape(layer, tile), tile.warpgroups
    blocks = 1.0 * grid(problem, layer, launch_traits(layer, tile, gpu.multiprocessors))
    of_multiprocessor = ceil(blocks / gpu.multiprocessors)
    waves = ceil(of_multiprocessor / tile.blocks)
    k_tiles = 1.0 * warpgroups.splits * shape.set_k_tiles
    channels = k_tiles * shape.k_tile_channels
    copies = channels * layer.item_bytes * shape.positions / shape.input_copy / 32
    instructions = k_tiles * tile.k_tile_steps * (shape.rows / 64) * warpgroups.wide
    weights = 0.0 if shape.factors_in_stages else channels * shape.rows * warpgroups.wide / 32
    shifted = where((tile.runs > 0) & shape.factors_in_stages, 1.0, 0.0)
    items = shifted * channels * shape.positions / 32
    moved = (not shape.factors_in_stages) * where(tile.prepared_inputs > 0, 0.0, 1.0)
    moves = moved * channels * shape.positions / 32
    outputs = problem.batch * layer.out_channels * math.prod(problem.output_size) / blocks / 32
    # Neighbouring threads store neighbouring positions: a sector for each, or several share one.
    touched = least(32, layer.stride[2] * layer.item_bytes)
    by_position = (fitted.output + fitted.stored * touched) / shape.vector
    alone = fitted.alone + fitted.tap * taps_in_depth(layer)
    stored = where(shape.sums_by_position, by_position, alone) * outputs
    # Neighbouring threads store neighbouring positions, each some of the channels.
    in_vectors = (tile.channels_last > 0) & shape.sums_by_position
    vectors = where(in_vectors, 32 * blocks * outputs / shape.channels_stored, 0.0)
    of_vectors = fitted.partial * vectors * _SECTOR_BYTES / gpu.copy_bandwidth
    results = 1.0 * warpgroups.splits * shape.rows * shape.all_positions / 32
    k_tile = fitted.k_tile + fitted.moved * moved + fitted.shifted * shifted + fitted.latency / shape.stages_ahead
    k_tile = k_tile + where(tile.prepared_inputs > 0, fitted.step * shape.row_tiles * tile.k_tile_steps, 0.0)
    loaded = 1.0 * shape.k_tile_channels * shape.block_rows / shape.set_threads
    k_tile = k_tile + where(shape.weight_copy < LEAST_COPY, fitted.loaded * loaded, 0.0)
    together = least(tile.blocks, of_multiprocessor)
    times = of_multiprocessor * together ** (fitted.together - 1) / _CLOCK
    parts = (
        times * (fitted.copy * copies + piece_cycles(shape, channels)),
        times * instructions * (fitted.product + fitted.positions * shape.product_rows / 8),
        times * (fitted.weight * weights + fitted.item * items + fitted.move * moves),
        times * shape.set_k_tiles * k_tile,
        times * (fitted.result * results + stored) + of_vectors,
        fitted.sectors * blocks * _sector_bytes(problem, shape, channels) / gpu.copy_bandwidth,
        fitted.memory * problem.bytes_moved / gpu.copy_bandwidth,
    )
    begun = (1 + fitted.again * (waves - 1)) * fitted.block / _CLOCK
    of_blocks = begun + parts[0] + parts[1] + parts[2] + parts[3] + parts[4] + parts[5]
    written = 32.0 * outputs * blocks * layer.item_bytes / gpu.copy_bandwidth
    at_end = (waves == 1) & shape.inputs_in_stages & (tile.prepared_inputs == 0)
    of_blocks = of_blocks + where(at_end, fitted.once * written, 0.0)
    seconds = (of_blocks**2 + parts[6] ** 2) ** 0.5
    inputs = 1.0 * problem.batch * math.prod(problem.input_size) * layer.in_channels * layer.item_bytes
    ordering = where(tile.prepared_inputs > 0, fitted.ordering + fitted.ordered * inputs / gpu.copy_bandwidth, 0.0)
    return Col2imWgmmaCost(*parts, ordering, SHORTEST_SECONDS + ordering + seconds + fused_seconds(problem, gpu))


def _sector_bytes(problem: Problem, shape: Col2imWgmmaShape, channels: Any) -> Any:
    """Bytes of the L2 cache's sectors that a block reads."""
    item_bytes, block_tile, tile = shape.item_bytes, shape.tile.block_tile, shape.tile
    _, height, width = problem.input_size
    # What lies together of a channel: part of a row, whole rows, or whole slabs.
    of_rows = where(block_tile.rows < height, block_tile.rows, block_tile.depths * block_tile.rows)
    run = where(block_tile.columns < width, block_tile.columns, of_rows * block_tile.columns)
    # A run begins anywhere.
    of_run = ceil(1.0 * run * item_bytes / _SECTOR_BYTES) * _SECTOR_BYTES + where(tile.runs > 0, _SECTOR_BYTES / 2, 0.0)
    inputs = where(tile.inputs_last > 0, 1.0 * shape.positions * item_bytes, shape.positions / run * of_run)
    weights = where(tile.phases > 0, tile.phases, tile.channels * shape.channel_run)
    of_weights = ceil(1.0 * weights * item_bytes / _SECTOR_BYTES) * _SECTOR_BYTES
    return channels * (inputs + shape.block_rows / weights * of_weights)
