"""How long a tile of the `wgmma` family takes, predicted from what it makes the GPU do."""

from __future__ import annotations

from dataclasses import dataclass

from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil_div, least, most, where
from tconv.planner.wgmma.launching import grid, launching, works
from tconv.planner.wgmma.shape import CONSUMERS, WgmmaShape
from tconv.planner.wgmma.tile import WgmmaTile
from tconv.problem import Layer, Problem

#: Cycles a second of a multiprocessor while its tensor cores are busy.
_CLOCK = 1.7e9


@dataclass(frozen=True)
class Constants:
    """What cannot be counted.

    Args:
        product: how much longer products take than the tensor core alone.
        fragment: cycles of shared memory for a warpgroup's fragment of a step.
        batch: cycles that a batch of products takes at least, between those of both warpgroups.
        copy: cycles of a loading warp for what its threads bring at once.
        turn: the same, of a patch that goes through registers.
        eight: cycles of a loading warp to turn eight places of 32 channels.
        output: cycles of a warp to store 32 outputs.
        overlapped: the part of storing that the other warpgroup's products do not hide.
        cache: bytes a cycle that a multiprocessor gets from the L2 cache.
        latency: cycles from asking for inputs to having them.
        work: cycles that a box takes at least, beside its products.
        launch: seconds of a kernel's start.
        norm: how sharply the largest limit rules.
        preparing: seconds of the preparing kernel, beside its bytes.
        prepared: how often a byte that it writes counts.
    """

    product: float = 1.08
    fragment: float = 16.0
    batch: float = 60.0
    copy: float = 10.0
    turn: float = 90.0
    eight: float = 25.0
    output: float = 5.0
    overlapped: float = 0.7
    cache: float = 24.0
    latency: float = 1500.0
    work: float = 1200.0
    launch: float = 2.5e-6
    norm: float = 6.0
    preparing: float = 2.5e-6
    prepared: float = 2.0


FITTED = Constants()


@dataclass(frozen=True)
class WgmmaCost:
    """Predicted seconds of each limit, of preparing the weights, and of all together."""

    products: float
    shared: float
    loading: float
    memory: float
    cache: float
    chain: float
    preparation: float
    seconds: float

    @property
    def limits(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if name not in ("preparation", "seconds")}


def predict(problem: Problem, layer: Layer, tile: WgmmaTile, gpu: Gpu, fitted: Constants = FITTED) -> WgmmaCost:
    """The cost of `problem` by a kernel of `layer` with `tile`, or with many tiles, on `gpu`."""
    shape = WgmmaShape(layer, tile)
    kernel = launching(layer, tile, gpu.multiprocessors)
    turns = 1.0 * ceil_div(works(problem, layer, kernel), grid(problem, layer, kernel))

    # Of a box, in cycles. A product of N rows takes the tensor core N / 2 of them.
    steps = 1.0 * shape.chunks * tile.chunk_steps * shape.visits / shape.row_visits
    batches = steps / shape.batch_steps
    pieces = 1.0 * where(shape.uniform | shape.known, shape.chunk_pieces, shape.visits)
    of_chunk = pieces * tile.channels * tile.chunk_steps  # rows, steps
    rows = of_chunk * shape.chunks * tile.position_tiles * CONSUMERS
    products = fitted.product * rows / 2
    fragments = steps * shape.fragments * CONSUMERS
    input_bytes = 1.0 * shape.chunks * shape.halo_all_rows * shape.row_places * shape.chunk_bytes
    shared = fitted.fragment * fragments + rows / 4 + input_bytes / 128
    one_by_one = shape.halo_patches * shape.chunk_channels * shape.chunks / 32
    vectors = shape.halo_all_rows * shape.row_places * (shape.chunk_bytes // 16) * shape.chunks / 32
    copied = fitted.copy * where(shape.by_channel | shape.turned, one_by_one, vectors)
    direct = shape.by_channel | shape.turned | shape.by_place
    loading = where(direct, copied, fitted.turn * shape.halo_patches * (shape.chunk_bytes // 16) * shape.chunks / 32)
    loading = (loading + where(shape.turned, fitted.eight * vectors / 4, 0)) / 3
    outputs = shape.block_positions * tile.phases * tile.channels / 32
    stores = fitted.output * outputs
    weights = 1.0 * shape.chunks * shape.chunk_pieces * shape.piece_bytes
    brought = (weights + input_bytes) / fitted.cache
    in_flight = tile.input_stages - 1 + 0.5
    chain = fitted.batch * batches + fitted.latency * shape.chunks / in_flight

    limits = (
        (products + fitted.overlapped * stores + fitted.work) * turns / _CLOCK,
        (shared + stores) * turns / _CLOCK,
        loading * turns / _CLOCK,
        (problem.bytes_moved + shape.weight_bytes) / gpu.copy_bandwidth,
        brought * turns / _CLOCK,
        (chain + fitted.work) * turns / _CLOCK,
    )
    together = sum(limit**fitted.norm for limit in limits) ** (1 / fitted.norm)
    first = (fitted.latency + least(input_bytes, most(1, shape.input_stage_bytes)) / fitted.cache) / _CLOCK
    preparation = fitted.preparing + fitted.prepared * shape.weight_bytes / gpu.copy_bandwidth
    return WgmmaCost(*limits, preparation, SHORTEST_SECONDS + fitted.launch + preparation + first + together)
