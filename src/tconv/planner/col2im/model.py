"""How long a tile of the `col2im` family takes, predicted: what the planner ranks tiles by.

The constants were fitted to 1,275 tiles of 30 layers (`benchmarks/fit.py`), and are a tenth higher: where another
family is about as fast, that one is taken. The order of the predictions is what matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.col2im.launch import grid, launch_traits
from tconv.planner.col2im.shape import Col2imShape
from tconv.planner.col2im.tile import Col2imTile
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil, where
from tconv.problem import Layer, Problem

_CLOCK = 1.75e9


@dataclass(frozen=True)
class Constants:
    """What was fitted, in cycles where nothing else is said.

    Args:
        copy: of a multiprocessor, for a warp's instruction that copies.
        item: of a multiprocessor, for a warp's operands that come item by item from runs.
        result, output: of a multiprocessor, for a warp's 32 results that are summed, and for its 32 outputs.
        block: of a block beside all else: from its launch to its first products, and from its last to its end.
        step: of a set of warps, for a step.
        product: of a warp, for a product.
        memory: how often a byte of memory counts.
    """

    copy: float = 7.1
    item: float = 2.4
    result: float = 2.2
    output: float = 16.0
    block: float = 5640.0
    step: float = 242.0
    product: float = 13.9
    memory: float = 1.05


FITTED = Constants()


@dataclass(frozen=True)
class Col2imCost:
    """Predicted seconds of each part and of all together, the program included: little of a short kernel overlaps."""

    copies: float
    items: float
    sums: float
    chain: float
    memory: float
    seconds: float

    @property
    def limits(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if name != "seconds"}


def predict(problem: Problem, layer: Layer, tile: Col2imTile, gpu: Gpu, fitted: Constants = FITTED) -> Col2imCost:
    """The cost of `problem` by a kernel of `layer` with `tile`, or with many tiles, on `gpu`."""
    shape, warps = Col2imShape(layer, tile), tile.warps
    blocks = 1.0 * grid(problem, layer, launch_traits(layer, tile, gpu.multiprocessors))
    of_multiprocessor = ceil(blocks / gpu.multiprocessors)
    waves = ceil(of_multiprocessor / tile.blocks)
    steps = 1.0 * warps.splits * shape.set_steps
    copied = shape.block_rows / shape.weight_copy + shape.positions / shape.input_copy
    copies = steps * copied * shape.step_channels * layer.item_bytes / 32
    items = where(tile.runs > 0, 4.0 * steps * shape.position_tiles * warps.high, 0.0)
    results = warps.splits * shape.row_tiles * 16 * shape.position_tiles * 8 / 32
    outputs = tile.channels * shape.positions * math.prod(layer.stride) / 32
    tiles = shape.warp_row_tiles * shape.warp_position_tiles
    parts = (
        of_multiprocessor * fitted.copy * copies / _CLOCK,
        of_multiprocessor * fitted.item * items / _CLOCK,
        of_multiprocessor * (fitted.result * results + fitted.output * outputs / (shape.threads / 32) ** 0.5) / _CLOCK,
        waves * (fitted.block + shape.set_steps * (fitted.step + fitted.product * tiles)) / _CLOCK,
        fitted.memory * problem.bytes_moved / gpu.copy_bandwidth,
    )
    return Col2imCost(*parts, SHORTEST_SECONDS + sum(parts) + fused_seconds(problem, gpu))
