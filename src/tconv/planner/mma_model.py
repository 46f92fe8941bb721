"""How long a tile of the `mma` family takes, predicted: what the planner ranks tiles by.

Counted from the shape of the kernel: products on the tensor cores, what warps issue beside them, memory, the L2 cache,
and the chain of steps that a block cannot overlap with itself. The constants are fitted to tiles of the layers of
benchmarks/cases.json, measured on one NVIDIA H200 with benchmarks/tiles.py: the order of the predictions is what
matters, and they are within some 15 % of what was measured. Nothing is fitted to fp64: its rate is the vendor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.mma_shape import (
    TURN_LEAST_BYTES,
    block_positions,
    boxes,
    chunk_channels,
    chunks,
    fragments_with_taps,
    halo_positions,
    halos,
    item_bytes,
    launch_mma,
    phase_tiles,
    planes,
    row_blocks,
    shift_bytes,
    shifts,
    thread_loads,
    thread_patches,
    turn_position_tiles,
    turn_row_tiles,
    vector_items,
    weight_bytes,
)
from tconv.planner.mma_tile import registers_wanted
from tconv.planner.plan import Kernel, MmaTile
from tconv.problem import Layer, Precision, Problem

_CLOCK = 1.75e9
#: Multiply-adds a cycle and multiprocessor of `mma.sync`, and how much longer they take where shifts are a loop, and
#: where sums leave the tensor core in between.
_RATES: dict[Precision, float] = {"fp32": 640, "tf32": 640, "tf32_rna": 640, "fp16": 1280, "bf16": 1280, "fp64": 128}
_LOOPED, _EXACT = 1.16, 1.22
_MOST_UNROLLED = 1024
#: Bytes a cycle that a multiprocessor gets from the L2 cache, and sectors of outputs and of inputs as multiples of a
#: weight's.
_CACHE = 49.9
_OUTPUT_SECTOR, _INPUT_SECTOR = 3.22, 2.48
#: Cycles of a warp's instructions: a load of fragments; a load of inputs, and their vectors' way to shared memory; a
#: fragment of weights that is brought; an output's way to shared memory; a sum given away; and the fields of `_Stores`.
_FRAGMENT, _LOAD, _PUT, _COPY, _OUTPUT, _JOIN = 4.75, 2.67, 7.32, 0.76, 1.11, 2.39
_PLACE, _STORE, _PART = 35.0, 3.06, 1.67
#: How much longer products and instructions take where few warps are there to fill each other's gaps.
_ALONE_PRODUCTS, _ALONE_INSTRUCTIONS, _ALONE_POWER = 0.368, 0.947, 2.02
#: Cycles that a chunk, a step and a block take at least.
_CHUNK, _STEP, _BLOCK = 292, 1440, 7330
_RESIDENT_CHUNK = 786
#: How much longer the loads of copied inputs' fragments take that come by words.
_BY_WORDS = 1.65
#: How much longer everything takes in a body of more products, for each of them; with more registers than a thread can
#: have or nearly so, for each of them; and in one block alone.
_FEW_PRODUCTS, _PRODUCT = 256, 0.000215
_FEW_REGISTERS, _REGISTER, _ONE_BLOCK = 218, 0.0034, 0.184
_NORM, _NORM_OF_ONE_BLOCK = 9.5, 2.29
#: Seconds of the preparing kernel, beside its bytes; a byte counts so often.
_PREPARING, _PREPARED = 3.4e-6, 1.36


@dataclass(frozen=True)
class MmaCost:
    """Predicted seconds of each limit, and of all together.

    The largest limit rules, the more sharply the higher `norm`; all of it takes `slower` times as long.
    """

    products: float
    instructions: float
    memory: float
    cache: float
    chain: float
    preparation: float
    norm: float
    slower: float

    @property
    def limits(self) -> dict[str, float]:
        return {name: seconds for name, seconds in vars(self).items() if name not in ("preparation", "norm", "slower")}

    @property
    def seconds(self) -> float:
        together = sum(limit**self.norm for limit in self.limits.values()) ** (1 / self.norm)
        return SHORTEST_SECONDS + self.preparation + self.slower * together


def predict_mma(problem: Problem, layer: Layer, tile: MmaTile, gpu: Gpu) -> MmaCost:
    """The cost of `problem` by a kernel of `layer` with `tile` on `gpu`."""
    grid = launch_mma(problem, Kernel("mma", layer, tile), gpu).grid
    warps = tile.threads // 32
    chunk_count = chunks(layer, tile)
    steps = chunk_count * tile.chunk_steps * tile.splits
    used = fragments_with_taps(layer, tile)  # of all shifts and of the row tiles of a block
    three = 3 if planes(layer) == 2 else 1
    multiplied = 16 * 8 * (32 // layer.item_bytes)
    products = used * tile.warps_wide * tile.position_tiles * steps * three * multiplied / _RATES[layer.precision]
    body = shifts(layer, tile) * tile.chunk_steps * tile.row_tiles * tile.position_tiles
    looped = three > 1 or body > _MOST_UNROLLED
    if looped:
        products *= _EXACT if three > 1 else _LOOPED

    of_set = tile.warps_high * tile.warps_wide
    columns_loaded = of_set * shifts(layer, tile) * tile.position_tiles / 2
    if tile.copied and item_bytes(layer) >= 4:
        columns_loaded *= _BY_WORDS
    fragments = columns_loaded + used * tile.warps_wide
    patches = thread_patches(layer, tile) * warps * chunk_count
    weights = chunk_count * shifts(layer, tile) * shift_bytes(layer, tile)
    outputs = 16 * tile.row_tiles * tile.warps_high * block_positions(tile) / 32  # of a lane
    stores, storing = _stores(problem, layer, tile), tile.warps_high * tile.warps_wide
    instructions = (
        _FRAGMENT * fragments * planes(layer) * steps
        + _LOAD * thread_loads(layer, tile) * warps * chunk_count
        + (0 if tile.copied else _PUT * tile.patch_columns * planes(layer) * patches)
        + (_OUTPUT + _JOIN * (tile.splits - 1)) * outputs
        + (_PLACE * stores.places + _STORE * stores.vectors + _PART * stores.parts) * storing
    )

    columns = tile.box_columns + halos(layer, tile)[2]
    rows = halo_positions(layer, tile) / columns * chunk_count * chunk_channels(layer, tile)
    input_bytes = rows * (columns * layer.item_bytes + 32)
    output_bytes = outputs * 32 * layer.item_bytes * (1 + (0 if stores.whole_sectors else 32 / stores.run_bytes))
    cached = _INPUT_SECTOR * input_bytes + _OUTPUT_SECTOR * output_bytes

    # So many blocks are worked at by a multiprocessor, some of them at once; each has some boxes.
    of_multiprocessor = math.ceil(grid / gpu.multiprocessors)
    waves = math.ceil(of_multiprocessor / tile.blocks)
    sets = layer.groups * row_blocks(layer, tile)
    rounds = -(-math.prod(boxes(problem, layer, tile)) // (grid // sets))
    turns = of_multiprocessor * rounds
    brought = weights * (of_multiprocessor if tile.resident else turns)
    alone = (4 / (min(tile.blocks, of_multiprocessor) * warps)) ** _ALONE_POWER
    shift_groups = -(-shifts(layer, tile) // tile.chunk_shifts)
    chunk = _RESIDENT_CHUNK if tile.resident else _CHUNK + shift_groups * _STEP
    chain = waves * (rounds * chunk_count * chunk + _BLOCK)
    is_one = min(tile.blocks, of_multiprocessor) == 1
    slower = 1 + (0 if looped else _PRODUCT * max(0, body - _FEW_PRODUCTS)) + (_ONE_BLOCK if is_one else 0)
    slower += _REGISTER * max(0, registers_wanted(layer, tile) - _FEW_REGISTERS)
    bandwidth = gpu.copy_bandwidth
    prepared = weight_bytes(layer, tile)
    return MmaCost(
        products * turns * (1 + _ALONE_PRODUCTS * alone) / _CLOCK,
        (instructions * turns + _COPY * brought / 512) * (1 + _ALONE_INSTRUCTIONS * alone) / _CLOCK,
        (problem.bytes_moved + prepared) / bandwidth,
        (cached * turns + brought) / _CACHE / _CLOCK,
        chain / _CLOCK,
        _PREPARING + _PREPARED * prepared / bandwidth,
        # One block alone goes through its boxes one thing after the other.
        _NORM_OF_ONE_BLOCK if tile.resident and is_one else _NORM,
        slower,
    )


@dataclass(frozen=True)
class _Stores:
    """How a warp brings its outputs to memory, after staging them.

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


def _stores(problem: Problem, layer: Layer, tile: MmaTile) -> _Stores:
    vector, stride, rows = vector_items(layer), layer.stride[2], turn_row_tiles(layer, tile)
    positions = turn_position_tiles(layer, tile, TURN_LEAST_BYTES)
    turns = tile.row_tiles // rows * (tile.position_tiles // positions)
    slots = rows * 16 // tile.channels
    if tile.channels_last:
        width = math.gcd(math.gcd(layer.out_channels_per_group, tile.channels), vector)
        places = turns * slots * -(-8 * positions // (32 * width // tile.channels))
        run_bytes = tile.channels * layer.item_bytes
        return _Stores(places, places, places * width, run_bytes, run_bytes % 32 == 0 and width > 1)
    is_row = rows == phase_tiles(layer, tile) or slots % stride == 0
    side_by_side = tile.box_columns * stride if is_row else slots if stride % slots == 0 else 1
    width = math.gcd(side_by_side, tile.origin, problem.output_size[2], vector)
    run = min(slots, stride)
    items = 8 * positions * run // width
    lanes = min(32, 1 << (items - 1).bit_length())
    places = turns * -(-slots // run) * -(-items // lanes)
    vectors = places * -(-tile.channels // (32 // lanes))
    run_bytes = (tile.box_columns * stride if is_row else run) * layer.item_bytes
    parts = vectors * (run if width % run == 0 else width)
    return _Stores(places, vectors, parts, run_bytes, run_bytes % 32 == 0 and width > 1)
