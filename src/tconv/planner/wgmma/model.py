"""How long a tile of the `wgmma` family takes, predicted from what it makes the GPU do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tconv.planner.block_tiles import covered, rounds, works
from tconv.planner.epilogue_cost import fused_seconds
from tconv.planner.family import Cost
from tconv.planner.gpu import SHORTEST_SECONDS, Gpu
from tconv.planner.numbers import ceil_div, gcd, least, most, where
from tconv.planner.wgmma.launch import launch_traits
from tconv.planner.wgmma.shape import CONSUMERS, LINE_BYTES, WgmmaShape
from tconv.planner.wgmma.tile import WgmmaTile
from tconv.problem import Layer, Problem

#: Cycles a second of a multiprocessor while its tensor cores are busy.
_CLOCK = 1.7e9


@dataclass(frozen=True)
class Constants:
    """What cannot be counted.

    Args:
        product: how much longer products take than the tensor core alone.
        narrow: cycles that a product of few rows takes.
        fragment: cycles of shared memory for a warpgroup's fragment of a step.
        batch: cycles of a warpgroup from one batch of products to the next, beside the products.
        promotion: the same of an exact accumulator that leaves the tensor core.
        visit: the same from one visit to the next.
        matrices: the same where fragments come by ldmatrix.
        k-tile: the same from one k-tile to the next.
        copy: cycles of a loading warp for what its threads load at once.
        register: the same, of a patch that goes through registers.
        eight: cycles of a loading warp to transpose eight places of 32 channels.
        unaligned: the same of rows that begin anywhere.
        latency: cycles from asking for inputs to having them.
        weights: the same of the weights of a visit.
        subtile: cycles of a warpgroup to stage outputs once and store them.
        store: cycles of a multiprocessor for a warp's store of some neighbours each.
        own: the same of neighbours that come from a thread's own accumulators.
        sector: cycles of a multiprocessor to store a sector of memory.
        part: bytes of memory that outputs which lie together cost more if they begin and end within sectors.
        part_deep: the same where phases along the depth are stored in between.
        scattered: cycles of a multiprocessor for a sector of memory of which a run is a part.
        overlapped: the part of storing that products do not hide.
        cache: bytes of inputs a cycle that a multiprocessor gets from the L2 cache.
        same: the same of weights, which many multiprocessors read at the same time.
        half: how much longer inputs take that come half a line of the cache at a time.
        apart: how much longer memory takes, for the share of works without taps. Their rows of outputs lie between
            those of others, which are stored at another time.
        work: cycles that a block tile takes at least, beside its products.
        launch: seconds of a kernel's start.
        norm: how sharply the largest limit rules.
        preparing: seconds of the preparing kernel, beside its bytes.
        prepared: how often a byte that it writes counts.
        own_weights: seconds of a block that prepares its own weights, beside their units.
        unit: cycles for one weight of a unit of each thread.
        ordering: seconds of the kernel that prepares inputs, beside its bytes.
        ordered: how often a byte that it writes counts.
    """

    product: float = 0.7034
    narrow: float = 22.58
    fragment: float = 19.96
    batch: float = 14.15
    promotion: float = 18
    visit: float = 231.8
    matrices: float = 132.6
    k_tile: float = 26.79
    copy: float = 23.15
    register: float = 568
    eight: float = 97.96
    unaligned: float = 385.1
    latency: float = 956.7
    weights: float = 906.6
    subtile: float = 607.5
    store: float = 1.06
    own: float = 2.667
    sector: float = 0.01139
    part: float = 125
    part_deep: float = 250
    scattered: float = 2.2
    overlapped: float = 0.03269
    cache: float = 25.57
    same: float = 85.88
    half: float = 1.15
    apart: float = 0.55
    work: float = 606.9
    launch: float = 2.09e-06
    norm: float = 2.146
    preparing: float = 2.829e-06
    prepared: float = 2.078
    own_weights: float = 0.75e-06
    unit: float = 110
    ordering: float = 2.2e-06
    ordered: float = 2.933


FITTED = Constants()


@dataclass(frozen=True)
class WgmmaCost(Cost):
    """Predicted seconds of each limit, of preparing the weights, and of all together, the program included."""

    products: float
    shared: float
    loading: float
    memory: float
    cache: float
    chain: float
    ring: float
    preparation: float
    seconds: float


def predict(problem: Problem, layer: Layer, tile: WgmmaTile, gpu: Gpu, fitted: Constants = FITTED) -> WgmmaCost:
    """The cost of `problem` by a kernel of `layer` with `tile`, or with many tiles, on `gpu`."""
    shape = WgmmaShape(layer, tile)
    kernel = launch_traits(layer, tile, gpu.multiprocessors)
    block_tiles = 1.0 * works(problem, layer, kernel)
    of_block = 1.0 * rounds(problem, layer, kernel)

    # Of a block tile, in cycles. A product of N rows takes the tensor core N / 2 of them.
    visits = 1.0 * shape.k_tiles * shape.visits / shape.row_visits
    steps = visits * tile.k_tile_steps
    rows = (
        1.0 * shape.k_tile_pieces * tile.channels * tile.k_tile_steps * shape.k_tiles * tile.position_tiles * CONSUMERS
    )
    rows = rows * (3 if shape.exact else 1)
    products = fitted.product * rows * most(0.5, fitted.narrow / shape.product_rows)
    input_bytes = 1.0 * shape.k_tiles * shape.halo_all_rows * shape.row_places * shape.k_tile_bytes
    shared = fitted.fragment * steps * shape.fragments * CONSUMERS + rows / 4 + input_bytes / 128
    # A warpgroup waits for these while the other one's products go on.
    visit = where(shape.by_channel & (shape.item_bytes == 4), fitted.visit, fitted.matrices)
    waits = fitted.batch * steps / shape.batch_steps + visit * visits + fitted.k_tile * shape.k_tiles
    if shape.exact:  # accumulators of a batch are added, and begin anew
        waits = waits + fitted.promotion * shape.accumulators / 2 * steps / shape.batch_steps

    patches = 1.0 * shape.halo_patches * shape.k_tiles
    vectors = 1.0 * shape.halo_all_rows * shape.row_places * (shape.k_tile_bytes // 16) * shape.k_tiles
    one_by_one = shape.by_channel | shape.transposed
    copies = where(one_by_one, patches * shape.k_tile_channels, vectors) / 32
    by_register = fitted.register * patches * (shape.k_tile_bytes // 16) / 32
    loading = where(one_by_one | shape.by_place, fitted.copy * copies, by_register)
    transposing = where(shape.unaligned, fitted.unaligned, fitted.eight) * vectors / 32
    loading = (loading + where(shape.transposed, transposing, 0.0)) / 3
    # One stage is copied to, and then transposed from.
    loading = loading + where(tile.raw_stages == 1, fitted.latency * shape.k_tiles, 0.0)
    deep = where(shape.transposed, 1.0 * tile.raw_stages, tile.input_stages - 0.5)
    arriving = fitted.latency * shape.k_tiles / deep
    ring = fitted.weights * shape.k_tiles * shape.visits / (tile.weight_stages - 0.5)
    ring = ring / where(tile.resident > 0, of_block, 1.0)

    outputs = 1.0 * shape.block_positions * tile.phases * tile.channels
    last, inputs_last = tile.channels_last > 0, shape.inputs_last
    side_by_side = where(
        last, tile.channels, where(shape.run == layer.stride[2], tile.block_tile.columns, 1) * shape.run
    )
    run_bytes = side_by_side * layer.item_bytes
    row_bytes = problem.output_size[2] * layer.item_bytes
    whole = (run_bytes % 32 == 0) & (last | (row_bytes % 32 == 0))
    runs = outputs * layer.item_bytes / run_bytes
    own = shape.by_runs & (problem.output_size[2] % shape.run == 0)
    turns = where(last | own, 0.0, outputs * shape.share_staged / (CONSUMERS * 2048))
    stores = fitted.sector * runs * ceil_div(run_bytes, 32) + fitted.subtile * turns
    neighbours = where(last, shape.vector_items, where(own, shape.run, _width(problem, shape)))
    of_own = fitted.own * shape.share_staged + fitted.store * (1 - shape.share_staged)
    stores = stores + where(own, of_own, fitted.store) * outputs / 32 / neighbours
    # Whole rows lie behind each other, and one block stores both parts of a sector that two rows share. Other runs end
    # within sectors whose rest another block stores at another time: memory reads them to write a part. That costs
    # less of runs that are longer than a line of the cache.
    all_rows = (run_bytes >= row_bytes) & (tile.phases % (layer.stride[1] * layer.stride[2]) == 0)
    together = where(all_rows, tile.block_tile.rows * layer.stride[1], 1)
    part = (fitted.part_deep if layer.stride[0] > 1 else fitted.part) * least(1, LINE_BYTES / run_bytes)
    parts = where(whole | (run_bytes < 32), 0.0, part * runs / together) * block_tiles
    # Runs of less than a sector lie a stride apart: each has a sector alone, or shares one.
    sectors = runs * min(32, layer.stride[2] * layer.item_bytes) / 32
    scattered = where(run_bytes < 32, fitted.scattered * sectors, 0.0)
    weights = shape.set_bytes / where(tile.resident > 0, of_block, 1.0)
    # Of contiguous rows, the sectors of memory in which they lie.
    sectors = 16.0 * shape.halo_all_rows * shape.k_tiles * shape.k_tile_channels
    # Of what a halo has, only inputs come.
    maps = 1.0 * tile.block_tile.images * math.prod(problem.input_size) * layer.in_channels_per_group * layer.item_bytes
    from_cache = least(input_bytes + where(inputs_last, 0.0, sectors), maps)
    half_lines = where(shape.by_place & (shape.k_tile_bytes < LINE_BYTES), fitted.half, 1.0)
    # Sets of weights that few multiprocessors read at the same time come as inputs do.
    of_group = block_tiles / layer.groups
    groups_at_once = where(shape.group_by_group, least(layer.groups, 1 + gpu.multiprocessors // of_group), layer.groups)
    alone_share = least(1, groups_at_once * shape.weight_sets / layer.groups / gpu.multiprocessors)
    of_weights = 1 / (alone_share / fitted.cache + (1 - alone_share) / fitted.same)
    loaded = weights / of_weights + half_lines * from_cache / fitted.cache

    alone = products / CONSUMERS + waits  # of one warpgroup, were it alone
    # Works without a tap are only stored. Blocks take turns at the others.
    with_taps = of_block * shape.share_with_taps
    apart = 1 + fitted.apart * (1 - shape.share_with_taps)
    storing = fitted.overlapped * stores + scattered + fitted.work
    limits = (
        (most(products, alone) * with_taps + storing * of_block) / _CLOCK,
        (shared * with_taps + stores * of_block) / _CLOCK,
        loading * with_taps / _CLOCK,
        (problem.bytes_moved + shape.weight_bytes + parts) * apart / gpu.copy_bandwidth,
        loaded * with_taps / _CLOCK,
        (arriving * with_taps + fitted.work * of_block) / _CLOCK,
        ring * with_taps / _CLOCK,
    )
    together = sum(limit**fitted.norm for limit in limits) ** (1 / fitted.norm)
    first = (fitted.latency + least(input_bytes, most(1, shape.input_stage_bytes)) / fitted.cache) / _CLOCK
    preparation = fitted.preparing + fitted.prepared * shape.weight_bytes / gpu.copy_bandwidth
    units = ceil_div(shape.block_units, 128 * CONSUMERS) * shape.weights_together
    preparation = where(tile.own_weights > 0, fitted.own_weights + fitted.unit * units / _CLOCK, preparation)
    input_size = 1.0 * problem.batch * math.prod(problem.input_size) * layer.in_channels * layer.item_bytes
    ordering = fitted.ordering + fitted.ordered * input_size / gpu.copy_bandwidth
    preparation = preparation + where(tile.prepared_inputs > 0, ordering, 0.0)
    program = fused_seconds(problem, gpu, covered(problem, layer, kernel))
    seconds = SHORTEST_SECONDS + fitted.launch + preparation + first + together + program
    return WgmmaCost(*limits, preparation, seconds)


def _width(problem: Problem, shape: WgmmaShape) -> int:
    """Neighbouring outputs of a row that a lane stores at once."""
    run = shape.run
    side_by_side = where(run == shape.layer.stride[2], shape.tile.block_tile.columns * run, run)
    width = gcd(side_by_side, shape.vector_items)
    return gcd(width, problem.output_size[2])
