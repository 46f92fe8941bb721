"""How long a tile of the `col2im_rows` family takes, predicted: what the planner ranks tiles by.

The constants were fitted to 738 tiles of 20 layers; that of a block is higher, as small layers want it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.col2im_rows.launch import grid, launch_traits
from tconv.planner.col2im_rows.shape import INPUTS, Col2imRowsShape
from tconv.planner.col2im_rows.tile import Col2imRowsTile
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.family import Cost
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil, least, most, where
from tconv.problem import Layer, Problem

_CLOCK = 1.75e9


@dataclass(frozen=True)
class Constants:
    """What was fitted, in cycles where nothing else is said.

    Args:
        latency: of a row, for a k-tile of inputs that go straight to registers.
        staged_latency, waiting: of a row, for a k-tile of others; the second by the square of the k-tiles on their way.
        load, copy, step, output: of a warp, in a row: for an instruction that loads inputs, or copies them to shared
            memory, a step of the product, and 32 outputs and each of their shifts.
        product: of a warpgroup, in a row, for each 8 columns of an instruction.
        weight: of a block, for 32 weights that a warp puts.
        block: of a block beside all else.
        narrow: how much longer rows take whose runs of copies have 64 bytes; with longer ones, by their square.
        memory: how often a byte of memory counts.
    """

    latency: float = 600.0
    staged_latency: float = 205.0
    waiting: float = 420.0
    load: float = 11.3
    copy: float = 10.8
    step: float = 10.4
    output: float = 7.7
    product: float = 4.3
    weight: float = 157.0
    block: float = 5700.0
    memory: float = 1.0
    narrow: float = 0.15


FITTED = Constants()


@dataclass(frozen=True)
class Col2imRowsCost(Cost):
    """Predicted seconds of each part and of all together, the program included.

    The parts of a row stand in series in a warpgroup, and the warpgroups of a multiprocessor share its rates.
    """

    latency: float
    instructions: float
    products: float
    weights: float
    memory: float
    seconds: float


def predict(
    problem: Problem, layer: Layer, tile: Col2imRowsTile, gpu: Gpu, fitted: Constants = FITTED
) -> Col2imRowsCost:
    """The cost of `problem` by a kernel of `layer` with `tile`, or with many tiles, on `gpu`."""
    shape = Col2imRowsShape(layer, tile)
    blocks = 1.0 * grid(problem, layer, launch_traits(layer, tile, gpu.multiprocessors))
    of_multiprocessor = ceil(blocks / gpu.multiprocessors)
    waves = ceil(of_multiprocessor / tile.blocks)
    together = of_multiprocessor / waves
    loads = shape.k_steps * shape.step_loads
    outputs = shape.output_rows * ceil(shape.width.phases / 2) * (1 + shape.width.shifts)
    waiting = fitted.staged_latency + fitted.waiting / most(1, tile.input_stages - 1) ** 2
    latency = where(shape.staged, waiting, fitted.latency)
    load = where(shape.staged, fitted.copy, fitted.load)
    instructions = load * loads + fitted.step * shape.k_steps + fitted.output * outputs
    turns = waves * shape.input_rows / _CLOCK
    sharing = together * tile.warpgroups
    run = tile.channels * math.prod(layer.kernel)
    weights = (
        fitted.weight
        * layer.in_channels_per_group
        * ceil(run / least(run, shape.threads))
        / most(1, shape.threads // run)
    )
    parts = (
        turns * latency * shape.k_tiles,
        turns * sharing * instructions,
        turns * sharing * fitted.product * shape.k_steps * shape.product_rows / 8,
        waves * (fitted.block + weights) / _CLOCK,
        fitted.memory * problem.bytes_moved / gpu.copy_bandwidth,
    )
    run_bytes = least(INPUTS, tile.columns) * layer.item_bytes
    rows = (parts[0] + parts[1] + parts[2]) * (1 + fitted.narrow * where(shape.staged, (64 / run_bytes) ** 2, 0))
    seconds = parts[3] + (rows**2 + parts[4] ** 2) ** 0.5
    return Col2imRowsCost(*parts, SHORTEST_SECONDS + seconds + fused_seconds(problem, gpu))
