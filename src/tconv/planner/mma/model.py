"""How long a tile of the `mma` family takes, predicted: what the planner ranks tiles by.

Counted from the shape of the kernel: products on the tensor cores, what warps issue beside them, memory, the L2 cache,
and the chain of steps that a block cannot overlap with itself. `benchmarks/fit.py` fits the constants to measured
tiles: the order of the predictions is what matters. Nothing is fitted to fp64: its rate is the vendor's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tconv.planner.block_tiles import covered, grid, works
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.family import Cost
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.mma.builder import MOST_PRODUCTS
from tconv.planner.mma.launch import launch_traits
from tconv.planner.mma.shape import MmaShape
from tconv.planner.mma.tile import MmaTile
from tconv.planner.numbers import ceil, ceil_div, gcd, least, most, where
from tconv.problem import Layer, Precision, Problem

_CLOCK = 1.75e9
#: Multiply-adds a cycle and multiprocessor of `mma.sync`.
_RATES: Mapping[Precision, float] = MappingProxyType(
    {"fp32": 640, "tf32": 640, "tf32_rna": 640, "fp16": 1280, "bf16": 1280, "fp64": 128}
)
#: Products of a body, and registers of a thread, up to which nothing gets slower.
_FEW_PRODUCTS, _FEW_REGISTERS = 256, 218
#: Shifts up to which resident weights save little.
_FEW_SHIFTS = 4


@dataclass(frozen=True)
class Constants:
    """What was fitted.

    Args:
        looped: how much longer products take where shifts are a loop.
        exact: the same where accumulators leave the tensor core in between.
        cache: bytes a cycle that a multiprocessor gets from the L2 cache.
        output_sector, input_sector: bytes of outputs and of inputs, as multiples of a weight's.
        fragment: cycles of a warp to load operands.
        load: cycles of a warp for a load of inputs.
        put: cycles of a warp for a vector's way to shared memory.
        copy: cycles of a warp for 512 bytes of weights that are loaded.
        output: cycles of a warp for 32 outputs' way to shared memory.
        join: cycles of a warp for 32 accumulators given away.
        place, store, part: cycles of a warp for each of `_Stores`.
        alone_products, alone_instructions: how much longer these take where four warps are alone.
        alone_power: how fast that vanishes with more warps.
        k-tile, step, block: cycles that each of them takes at least.
        resident_k_tile: the same of a k-tile where weights are resident.
        by_words: how much longer operands take of copied inputs, which come by words.
        product: how much longer everything takes, for each product more in a body than `_FEW_PRODUCTS`.
        register: the same for each register more than `_FEW_REGISTERS`.
        one_block: how much longer everything takes in one block alone.
        short_rows: bytes of memory that count beside each row of a block tile's inputs.
        norm: how sharply the largest limit rules.
        norm_of_one_block: the same where one block with resident weights goes through its block tiles alone.
        norm_of_memory: the same of memory beside all else, where several blocks have resident weights, and inputs that
            come by way of registers.
        by_registers: how much shorter everything takes, where inputs come by way of registers, and weights of more than
            `_FEW_SHIFTS` are resident.
        preparing: seconds of the preparing kernel, beside its bytes.
        prepared: how often a byte that it writes counts.
    """

    looped: float = 1.23
    exact: float = 1.14
    cache: float = 79.8
    output_sector: float = 3.64
    input_sector: float = 2.69
    fragment: float = 2.97
    load: float = 3.13
    put: float = 11.7
    copy: float = 0.813
    output: float = 2.15
    join: float = 7.17
    place: float = 22.7
    store: float = 1.32
    part: float = 0.634
    alone_products: float = 0.152
    alone_instructions: float = 1.18
    alone_power: float = 1.51
    k_tile: float = 189
    step: float = 1250
    block: float = 2440
    resident_k_tile: float = 796
    by_words: float = 1.61
    product: float = 8.47e-05
    register: float = 0.00117
    one_block: float = 0.0807
    short_rows: float = 16.0
    norm: float = 3.17
    norm_of_one_block: float = 2.6
    norm_of_memory: float = 3.0
    by_registers: float = 0.9
    preparing: float = 5.4e-06
    prepared: float = 0.813


FITTED = Constants()


@dataclass(frozen=True)
class MmaCost(Cost):
    """Predicted seconds of each limit, of preparing the weights, and of all together, the program included."""

    products: float
    instructions: float
    cache: float
    chain: float
    memory: float
    preparation: float
    seconds: float


def predict(problem: Problem, layer: Layer, tile: MmaTile, gpu: Gpu, fitted: Constants = FITTED) -> MmaCost:
    """The cost of `problem` by a kernel of `layer` with `tile`, or with many tiles, on `gpu`."""
    shape = MmaShape(layer, tile)
    kernel = launch_traits(layer, tile, gpu.multiprocessors)
    blocks = 1.0 * grid(problem, layer, kernel)
    warps = tile.threads // 32
    steps = shape.k_tiles * shape.stage_steps
    used = shape.fragments_with_taps
    resident, copied = tile.pipeline.resident > 0, tile.pipeline.copied > 0
    three = 3 if shape.planes == 2 else 1
    multiplied = 16 * 8 * (32 // layer.item_bytes)
    products = 1.0 * used * tile.warps.wide * tile.warps.position_tiles * steps
    products = products * three * multiplied / _RATES[layer.precision]
    looped = shape.body_products > MOST_PRODUCTS if three == 1 else True
    products = products * where(looped, fitted.exact if three > 1 else fitted.looped, 1.0)

    columns_loaded = shape.warps * shape.shifts * tile.warps.position_tiles / 2
    if layer.item_bytes >= 4:
        columns_loaded = columns_loaded * where(copied, fitted.by_words, 1.0)
    fragments = columns_loaded + used * tile.warps.wide
    puts = tile.pipeline.patch_columns * shape.planes * shape.thread_patches
    outputs = 16 * tile.warps.row_tiles * tile.warps.high * shape.block_positions / 32  # of a lane
    stores = _stores(problem, shape)
    instructions = (
        fitted.fragment * fragments * shape.planes * steps
        + fitted.load * shape.thread_loads * warps * shape.k_tiles
        + where(copied, 0.0, fitted.put * puts * warps * shape.k_tiles)
        + (fitted.output + fitted.join * (tile.warps.splits - 1)) * outputs
        + (fitted.place * stores.places + fitted.store * stores.vectors + fitted.part * stores.parts) * shape.warps
    )

    rows = 1.0 * shape.halo_all_rows * shape.k_tiles * shape.k_tile_channels
    input_bytes = rows * (shape.halo_columns * layer.item_bytes + 32)
    output_bytes = outputs * 32 * layer.item_bytes * (1 + where(stores.whole_sectors, 0.0, 32 / stores.run_bytes))
    cached = fitted.input_sector * input_bytes + fitted.output_sector * output_bytes

    # So many blocks are worked at by a multiprocessor, some of them at once; each has some block tiles.
    of_multiprocessor = ceil(blocks / gpu.multiprocessors)
    at_once = least(tile.blocks, of_multiprocessor)
    waves = ceil(of_multiprocessor / tile.blocks)
    rounds = ceil_div(works(problem, layer, kernel), blocks)
    turns = of_multiprocessor * rounds
    weights = 1.0 * shape.k_tiles * shape.shifts * shape.shift_bytes
    loaded = weights * where(resident, of_multiprocessor, turns)
    alone = (4 / (at_once * warps)) ** fitted.alone_power
    k_tile = where(resident, fitted.resident_k_tile, fitted.k_tile + shape.shift_groups * fitted.step)
    chain = waves * (rounds * shape.k_tiles * k_tile + fitted.block)
    slower = 1 + where(looped, 0.0, fitted.product * most(0, shape.body_products - _FEW_PRODUCTS))
    slower = slower + where(at_once == 1, fitted.one_block, 0.0)
    slower = slower + fitted.register * most(0, shape.registers_wanted - _FEW_REGISTERS)
    norm = where(resident & (at_once == 1), fitted.norm_of_one_block, fitted.norm)
    others = (
        products * turns * (1 + fitted.alone_products * alone) / _CLOCK,
        (instructions * turns + fitted.copy * loaded / 512) * (1 + fitted.alone_instructions * alone) / _CLOCK,
        (cached * turns + loaded) / fitted.cache / _CLOCK,
        chain / _CLOCK,
    )
    own = sum(limit**norm for limit in others) ** (1 / norm)
    # Short rows of inputs come at less than the rate of a copy.
    of_rows = 1 + fitted.short_rows / (tile.block_tile.columns * layer.item_bytes)
    memory = (of_rows * problem.bytes_moved + shape.weight_bytes) / gpu.copy_bandwidth
    in_turn = resident & (tile.pipeline.copied == 0) & (at_once > 1)
    norm = where(in_turn, fitted.norm_of_memory, norm)
    together = (own**norm + memory**norm) ** (1 / norm)
    preparation = fitted.preparing + fitted.prepared * shape.weight_bytes / gpu.copy_bandwidth
    program = fused_seconds(problem, gpu, covered(problem, layer, kernel))
    by_registers = resident & (tile.pipeline.copied == 0) & (shape.shifts > _FEW_SHIFTS)
    together = together * where(by_registers, fitted.by_registers, 1.0)
    seconds = SHORTEST_SECONDS + preparation + slower * together + program
    return MmaCost(*others, memory, preparation, seconds)


class _Stores(NamedTuple):
    """How a warp loads its outputs to memory, after staging them.

    Args:
        places: how often its lanes look up where some outputs of theirs lie.
        vectors: instructions that store.
        parts: loads from shared memory that fill what they store.
        run_bytes: what lies side by side in memory.
        whole_sectors: whether that is whole sectors of memory, stored by vectors.
    """

    places: int
    vectors: int
    parts: int
    run_bytes: int
    whole_sectors: bool


def _stores(problem: Problem, shape: MmaShape) -> _Stores:
    layer, tile = shape.layer, shape.tile
    vector, stride, rows = shape.vector_items, layer.stride[2], shape.subtile_row_tiles
    positions = shape.position_tiles_within()
    turns = tile.warps.row_tiles // rows * (tile.warps.position_tiles // positions)
    slots = rows * 16 // tile.channels
    if tile.channels_last:
        width = math.gcd(math.gcd(layer.out_channels_per_group, tile.channels), vector)
        places = turns * slots * ceil_div(8 * positions, 32 * width // tile.channels)
        run_bytes = tile.channels * layer.item_bytes
        return _Stores(places, places, places * width, run_bytes, run_bytes % 32 == 0 and width > 1)
    is_row = (rows == shape.phase_tiles) | (slots % stride == 0)
    side_by_side = where(is_row, tile.block_tile.columns * stride, where(stride % slots == 0, slots, 1))
    width = gcd(gcd(side_by_side, tile.block_tile.origin), math.gcd(problem.output_size[2], vector))
    run = least(slots, stride)
    items = 8 * positions * run // width
    lanes = 1
    for power in (2, 4, 8, 16, 32):
        lanes = where(items > power // 2, power, lanes)
    places = turns * ceil_div(slots, run) * ceil_div(items, lanes)
    vectors = places * ceil_div(tile.channels, 32 // lanes)
    run_bytes = where(is_row, tile.block_tile.columns * stride, run) * layer.item_bytes
    parts = vectors * where(width % run == 0, run, width)
    return _Stores(places, vectors, parts, run_bytes, (run_bytes % 32 == 0) & (width > 1))
