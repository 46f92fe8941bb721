"""How long a tile of the `col2im_wgmma` family takes, predicted: what the planner ranks tiles by.

The constants were fitted to 1,584 tiles of 36 layers, and are 8 % higher: where another family is about as fast, that
one is taken. The order of the predictions is what matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.col2im.launch import grid
from tconv.planner.col2im_wgmma.launch import launch_traits
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape
from tconv.planner.col2im_wgmma.tile import Col2imWgmmaTile
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil, least, where
from tconv.problem import Layer, Problem

_CLOCK = 1.75e9


@dataclass(frozen=True)
class Constants:
    """What was fitted, in cycles where nothing else is said.

    Args:
        copy: of a block, for a warp's instruction that copies inputs. Copies of weights overlap the rest.
        product, positions: of a block, for a warpgroup's instruction, and for each 8 positions of it.
        weight: of a block, for 32 weights of 32 bits that are loaded from a stage.
        item: of a block, for 32 items of runs that are moved.
        k_tile, moved: of a set of warpgroups, for a k-tile; and more for one whose inputs are moved and rounded.
        latency: the same, for one whose copies are waited for, shared by those on their way.
        result, output: of a block, for 32 results that are summed, and for 32 outputs, or vectors of them.
        alone: the same, for 32 outputs that are not summed position by position.
        block: of a block beside all else: from its launch to its first products, and from its last to its end.
        together: blocks that share a multiprocessor take so much longer, as a power of their number.
        memory: how often a byte of memory counts.
    """

    copy: float = 8.5
    product: float = 32.9
    positions: float = 1.26
    weight: float = 1.86
    item: float = 6.34
    k_tile: float = 142.0
    moved: float = 258.0
    latency: float = 540.0
    result: float = 3.81
    output: float = 8.06
    alone: float = 16.0
    block: float = 5030.0
    together: float = 0.6
    memory: float = 0.78


FITTED = Constants()


@dataclass(frozen=True)
class Col2imWgmmaCost:
    """Predicted seconds of each part and of all together, the program included.

    Of all blocks of a multiprocessor. Little of a short kernel overlaps: all but memory add up.
    """

    copies: float
    products: float
    factors: float
    chain: float
    sums: float
    memory: float
    seconds: float

    @property
    def limits(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if name != "seconds"}


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
    items = where(tile.runs > 0, channels * shape.positions / 32, 0.0)
    outputs = problem.batch * layer.out_channels * math.prod(problem.output_size) / blocks / 32
    stored = fitted.output * outputs / shape.vector if shape.sums_by_position else fitted.alone * outputs
    results = 1.0 * warpgroups.splits * shape.rows * shape.all_positions / 32
    k_tile = fitted.k_tile + fitted.moved * (not shape.factors_in_stages) + fitted.latency / shape.stages_ahead
    together = least(tile.blocks, of_multiprocessor)
    times = of_multiprocessor * together ** (fitted.together - 1) / _CLOCK
    parts = (
        times * fitted.copy * copies,
        times * instructions * (fitted.product + fitted.positions * shape.product_rows / 8),
        times * (fitted.weight * weights + fitted.item * items),
        times * shape.set_k_tiles * k_tile,
        times * (fitted.result * results + stored),
        fitted.memory * problem.bytes_moved / gpu.copy_bandwidth,
    )
    of_blocks = waves * fitted.block / _CLOCK + parts[0] + parts[1] + parts[2] + parts[3] + parts[4]
    seconds = (of_blocks**2 + parts[5] ** 2) ** 0.5
    return Col2imWgmmaCost(*parts, SHORTEST_SECONDS + seconds + fused_seconds(problem, gpu))
