"""How long a tile of the `col2im` family takes, predicted: what the planner ranks tiles by.

The constants were fitted to 1,275 tiles of 30 layers (`benchmarks/fit.py`), and are a fifth higher: where another
family is about as fast, that one is taken. Those of resident weights are as they were fitted, to 1,009 tiles of 59
layers. The order of the predictions is what matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tconv.planner.col2im.block import COPY_BYTES, Col2imBlock
from tconv.planner.col2im.launch import grid, launch_traits, works
from tconv.planner.col2im.shape import Col2imShape
from tconv.planner.col2im.tile import Col2imTile
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.family import Cost
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil, most, nowhere, where
from tconv.problem import Layer, Problem

_CLOCK = 1.75e9
#: Cycles of a block for a tap's weights, where these lie together, and more for each copy of less than 16 bytes.
_PIECE, _NARROW_COPY = 1.0, 2.5
#: Taps of an output to which sums were fitted where a kernel has a depth.
_FEW_TAPS = 4


@dataclass(frozen=True)
class Constants:
    """What was fitted, in cycles where nothing else is said.

    Args:
        copy: of a multiprocessor, for a warp's instruction that copies.
        item: of a multiprocessor, for a warp's operands that come item by item from runs.
        result, output: of a multiprocessor, for a warp's 32 results that are summed, and for its 32 outputs.
        tap: of a multiprocessor, more for 32 outputs and each of `taps_in_depth`.
        block: of a block beside all else: from its launch to its first products, and from its last to its end.
        step: of a set of warps, for a step.
        product: of a warp, for a product.
        memory: how often a byte of memory counts.
    """

    copy: float = 7.8
    item: float = 2.6
    result: float = 2.4
    output: float = 17.6
    tap: float = 6.0
    block: float = 6200.0
    step: float = 266.0
    product: float = 15.3
    memory: float = 1.15


@dataclass(frozen=True)
class ResidentConstants:
    """The same of blocks with resident weights, whose block tiles overlap each other.

    Args:
        copy, product, operand, result, output: of a multiprocessor, for a warp's instruction that copies; for a
            product; for 128 bytes of operands; for 32 results that are summed; for 32 outputs that are stored.
        block: of all, once: from the launch to the first products, and from the last ones to the end.
        weights: of the same, for each copy of resident weights of a thread.
        block_tile, k_tile, chain: of each, and of a warp's product, which follow each other.
        memory: how often a byte of memory counts.
        norm: how sharply the largest limit rules.
    """

    copy: float = 10.1
    product: float = 0.904
    operand: float = 1.31
    result: float = 1.67
    output: float = 0.729
    block: float = 6840.0
    weights: float = 303.0
    block_tile: float = 2530.0
    k_tile: float = 125.0
    chain: float = 4.46
    memory: float = 0.596
    norm: float = 2.36


FITTED, RESIDENT = Constants(), ResidentConstants()


@dataclass(frozen=True)
class Col2imCost(Cost):
    """Predicted seconds of each part and of all together, the program included.

    Little of a short kernel overlaps, so its parts add up; those of resident weights limit each other. ``operands`` are
    those that come item by item; of resident weights all, with the products.
    """

    copies: float
    operands: float
    sums: float
    chain: float
    memory: float
    seconds: float


def predict(
    problem: Problem,
    layer: Layer,
    tile: Col2imTile,
    gpu: Gpu,
    fitted: Constants = FITTED,
    resident: ResidentConstants = RESIDENT,
) -> Col2imCost:
    """The cost of `problem` by a kernel of `layer` with `tile`, or with many tiles, on `gpu`."""
    if nowhere(tile.resident > 0):
        return _at_once(problem, layer, tile, gpu, fitted)
    streamed = _resident(problem, layer, tile, gpu, resident)
    if nowhere(tile.resident == 0):
        return streamed
    at_once = _at_once(problem, layer, tile, gpu, fitted)
    both = zip(vars(at_once).items(), vars(streamed).values(), strict=True)
    return Col2imCost(**{name: where(tile.resident > 0, theirs, own) for (name, own), theirs in both})


def _at_once(problem: Problem, layer: Layer, tile: Col2imTile, gpu: Gpu, fitted: Constants) -> Col2imCost:
    """Of a block with one block tile."""
    shape, warps = Col2imShape(layer, tile), tile.warps
    blocks = 1.0 * grid(problem, layer, launch_traits(layer, tile, gpu.multiprocessors))
    of_multiprocessor = ceil(blocks / gpu.multiprocessors)
    waves = ceil(of_multiprocessor / tile.blocks)
    steps = 1.0 * warps.splits * shape.set_steps
    copied = shape.block_rows / shape.weight_copy + shape.positions / shape.input_copy
    copies = steps * copied * shape.step_channels * layer.item_bytes / 32
    pieces = piece_cycles(shape, steps * shape.step_channels)
    items = where(tile.runs > 0, 4.0 * steps * shape.position_tiles * warps.high, 0.0)
    outputs = problem.batch * layer.out_channels * math.prod(problem.output_size) / blocks / 32
    # Outputs of small maps have fewer taps than are tried.
    results = warps.splits * most(shape.row_tiles * 16 * shape.position_tiles * 8 / 32, outputs * layer.taps_per_output)
    tiles = shape.warp_row_tiles * shape.warp_position_tiles
    parts = (
        of_multiprocessor * (fitted.copy * copies + pieces) / _CLOCK,
        of_multiprocessor * fitted.item * items / _CLOCK,
        of_multiprocessor
        * (
            fitted.result * results
            + fitted.tap * taps_in_depth(layer) * outputs
            + fitted.output * outputs / (shape.threads / 32) ** 0.5
        )
        / _CLOCK,
        waves * (fitted.block + shape.set_k_tiles * fitted.step + shape.set_steps * fitted.product * tiles) / _CLOCK,
        fitted.memory * problem.bytes_moved / gpu.copy_bandwidth,
    )
    return Col2imCost(*parts, SHORTEST_SECONDS + sum(parts) + fused_seconds(problem, gpu))


def _resident(problem: Problem, layer: Layer, tile: Col2imTile, gpu: Gpu, fitted: ResidentConstants) -> Col2imCost:
    """Of a block that goes through its block tiles with resident weights."""
    shape, warps = Col2imShape(layer, tile), tile.warps
    traits = launch_traits(layer, tile, gpu.multiprocessors)
    blocks = 1.0 * grid(problem, layer, traits)
    turns = ceil(works(problem, layer, traits) / blocks)
    at_once = ceil(blocks / gpu.multiprocessors)
    waves = ceil(at_once / tile.blocks)
    steps = 1.0 * warps.splits * shape.set_steps
    copies = steps * shape.positions / shape.input_copy * shape.step_channels * layer.item_bytes / 32
    products = steps * shape.row_tiles * shape.position_tiles
    operands = steps * (4 * shape.row_tiles * warps.wide + 2 * shape.position_tiles * warps.high)
    results = warps.splits * (4.0 * shape.row_tiles * shape.position_tiles + shape.block_rows * shape.positions / 32)
    outputs = tile.channels * shape.positions * math.prod(layer.stride) / 32 / shape.vector
    weights = steps * shape.step_channels * shape.block_rows * layer.item_bytes / shape.weight_copy / shape.threads
    tiles = shape.warp_row_tiles * shape.warp_position_tiles
    chain = fitted.block_tile + shape.set_k_tiles * fitted.k_tile + shape.set_steps * fitted.chain * tiles
    all_turns = at_once * turns / _CLOCK
    parts = (
        all_turns * fitted.copy * copies,
        all_turns * (fitted.product * products + fitted.operand * operands),
        all_turns * (fitted.result * results + fitted.output * outputs),
        waves * turns * chain / _CLOCK,
        fitted.memory * problem.bytes_moved / gpu.copy_bandwidth,
    )
    limits = (parts[0] + parts[1] + parts[2], parts[3], parts[4])
    together = sum(limit**fitted.norm for limit in limits) ** (1 / fitted.norm)
    fixed = waves * (fitted.block + fitted.weights * weights) / _CLOCK
    return Col2imCost(*parts, SHORTEST_SECONDS + fixed + together + fused_seconds(problem, gpu))


def taps_in_depth(layer: Layer) -> int:
    """Taps of an output that cost more than a result: those of kernels with a depth, whose sums are a loop of loops."""
    return max(0, layer.taps_per_output - _FEW_TAPS) if layer.kernel[0] > 1 else 0


def piece_cycles(shape: Col2imBlock, channels: Any) -> Any:
    """Cycles of a block, for so many channels of weights in channels_last, beyond those of contiguous weights."""
    if not shape.layer.weights_last:
        return 0.0
    copies = channels * shape.block_rows * shape.item_bytes / shape.weight_copy
    return _PIECE * channels * shape.taps + where(shape.weight_copy < COPY_BYTES, _NARROW_COPY * copies, 0.0)
