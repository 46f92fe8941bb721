"""Plans of the `direct` family: tile, grid and shared memory. `kernels/direct.cuh` has the same formulas."""

from __future__ import annotations

import math

from tconv.planner.gpu import Gpu
from tconv.planner.plan import DirectTile, Kernel, Plan, Unplannable
from tconv.problem import Layer, Problem

_WARP = 32
_INT_LIMIT = 2**31
#: Sums that a thread keeps in registers, in 32-bit words. Few where weights are resident, since such layers are limited
#: by memory and want many warps; more where weights pass through shared memory, so that each load serves many products.
_RESIDENT_SUMS = 24
_STAGED_SUMS = 32
#: Column phases beyond this many lie across a warp's lanes instead of in registers.
_MOST_PHASES_IN_REGISTERS = 16
#: Multiply-adds in one unrolled body. NVRTC's time grows faster than the body.
_MOST_UNROLLED = 512
#: Inputs that a thread asks for before it uses the first: enough to hide the cache, few enough not to spill.
_MOST_LOADS = 16
_STAGE_BYTES = 16 * 1024
#: Weights of at most this size stay in shared memory, so that a block can go on to further positions.
_RESIDENT_BYTES = 40 * 1024
#: A block with resident weights walks over the row phases; over so many at most, or most of the GPU would be idle.
_MOST_WALKED_ROW_PHASES = 64
#: Blocks that the grid has for each multiprocessor when they go on to further positions.
_BLOCKS_PER_MULTIPROCESSOR = 32
_THREADS = 128
#: Longer sums than this are taken in chains.
_CHAIN = 64
#: Registers of a multiprocessor.
_REGISTERS = 64 * 1024


def plan_direct(problem: Problem, gpu: Gpu) -> Plan:
    """The plan of `problem` on `gpu`.

    Raises:
        Unplannable: a size passes what the family can address; the message names it.
    """
    layer = problem.layer
    for axis, size in zip(layer.axes, problem.output_size, strict=True):
        if max(size, axis.dilation * (axis.kernel - 1)) + axis.stride + axis.padding >= _INT_LIMIT:
            raise Unplannable(f"an axis of {size} outputs is longer than the direct family's 2^31")
    positions = _positions(problem)
    few = positions <= _WARP * gpu.multiprocessors
    tile = direct_tile(layer, few)
    # A block's walk over the positions passes their end by less than as many again.
    walked = 2 * (positions + block_positions(tile))
    wide = max(walked, math.prod(problem.input_size), math.prod(problem.output_size)) >= _INT_LIMIT
    reasons = (
        f"{positions} positions x {math.prod(layer.stride)} phases, {block_positions(tile)} positions a block"
        + (" (few positions: narrow blocks)" if few else ""),
        f"{layer.axes[2].phases_with_taps} of {layer.stride[2]} column phases have taps: they lie "
        + ("in the registers of a thread" if tile.phase_lanes == 1 else "across the lanes of a warp"),
        f"{tile.positions} x {tile.phases} x {tile.channels} sums a thread",
        "weights stay in shared memory" if resident(layer, tile) else "weights pass through shared memory in stages",
    ) + (("64-bit positions",) if wide else ())
    plan = launch_direct(problem, Kernel("direct", layer, tile, wide), gpu, reasons)
    if plan.shared_bytes > gpu.shared_bytes_per_block:
        raise Unplannable(
            f"the direct family would need {plan.shared_bytes} bytes of shared memory a block; "
            f"{gpu.name} has {gpu.shared_bytes_per_block}"
        )
    return plan


def launch_direct(problem: Problem, kernel: Kernel, gpu: Gpu, reasons: tuple[str, ...] = ()) -> Plan:
    """The plan that runs `kernel`, which must be one of `problem`'s layer, on `gpu`.

    Raises:
        Unplannable: the grid would be too large.
    """
    layer, tile = kernel.layer, kernel.tile
    runs = -(-_positions(problem) // block_positions(tile))
    if resident(layer, tile):
        runs = min(runs, max(1, _BLOCKS_PER_MULTIPROCESSOR * gpu.multiprocessors // parts(layer, tile)))
    grid = runs * parts(layer, tile)
    if grid >= _INT_LIMIT:
        raise Unplannable(f"the direct family would need {grid} blocks; a grid has fewer than 2^31")
    return Plan(problem, kernel, grid, shared_bytes(layer, tile), reasons)


def _positions(problem: Problem) -> int:
    axes, sizes = problem.layer.axes, problem.output_size
    return problem.batch * math.prod(axis.positions(size) for axis, size in zip(axes, sizes, strict=True))


def direct_tile(layer: Layer, few_positions: bool) -> DirectTile:
    """The tile for `layer`; `few_positions` asks for narrow blocks: small problems then reach every multiprocessor."""
    width = layer.axes[2]
    item = 8 if layer.precision == "fp64" else 4
    row_taps = layer.kernel[0] * layer.kernel[1]
    if width.phases_with_taps > _MOST_PHASES_IN_REGISTERS:
        phase_lanes = _WARP
        phases = min(4, -(-width.stride // _WARP))
        position_lanes, positions = (4, 2) if few_positions else (8, 8)
    else:
        phase_lanes = 1
        phases = width.phases_with_taps
        position_lanes, positions = (32, 1) if few_positions else (64, 2 if phases <= 2 else 1)

    def channels_for(sums: int) -> int:
        return _power_of_two(layer.out_channels_per_group, max(1, min(16, sums * 4 // item // (phases * positions))))

    channels = channels_for(_RESIDENT_SUMS)
    weight_bytes = row_taps * layer.in_channels_per_group * width.taps_per_phase * phase_lanes * phases * item
    chunk_taps = min(width.taps_per_phase, max(1, _MOST_UNROLLED // (phases * positions * channels)))
    row_phases = layer.stride[0] * layer.stride[1]
    fits = chunk_taps == width.taps_per_phase and weight_bytes * channels <= _RESIDENT_BYTES
    if fits and row_phases <= _MOST_WALKED_ROW_PHASES:
        # One channel lane: the wider the run of positions, the longer the rows that are stored in one go.
        channel_lanes = 1
        position_lanes = position_lanes if few_positions else max(position_lanes, _THREADS // phase_lanes)
        chunk_rows, chunk_channels = row_taps, layer.in_channels_per_group
    else:
        channels = channels_for(_STAGED_SUMS)
        lanes_left = max(1, _THREADS // (phase_lanes * position_lanes))
        channel_lanes = _power_of_two(-(-layer.out_channels_per_group // channels), lanes_left)
        if phase_lanes == 1 and not few_positions:
            position_lanes = max(position_lanes, _THREADS // channel_lanes)
        chunk_taps = min(width.taps_per_phase, max(1, _MOST_UNROLLED // (phases * positions * channels)))
        chunk_bytes = chunk_taps * phase_lanes * phases * channel_lanes * channels * item
        chunk_rows, chunk_channels = 1, max(1, min(layer.in_channels_per_group, _STAGE_BYTES // chunk_bytes))
    products = phases * positions * channels * chunk_taps
    shifts = len({width.shift_of(tap) for tap in range(phases)}) if phase_lanes == 1 else phases
    loads = positions * chunk_taps * (1 if width.shift_period == 1 else shifts)
    unroll = _power_of_two(chunk_channels, max(1, min(_MOST_LOADS // loads, _MOST_UNROLLED // products)))
    # What a thread keeps at once: its sums, twice where the kernel takes them in chains; inputs on their way, each with
    # its address; the coordinates of its positions. The limits are the lowest that no arch spills at.
    words = (phases * positions * channels * (2 if chained(layer) else 1) + 2 * loads + 4 * positions) * item // 4
    registers = 128 if words <= 31 else 168 if words <= 55 else 255
    blocks = max(1, min(16, _REGISTERS // (registers * position_lanes * channel_lanes * phase_lanes)))
    return DirectTile(
        position_lanes,
        channel_lanes,
        phase_lanes,
        positions,
        channels,
        phases,
        chunk_rows,
        chunk_channels,
        chunk_taps,
        unroll,
        blocks,
    )


def chained(layer: Layer) -> bool:
    """Whether the kernel takes its sums in chains, to keep rounding errors small where nothing else hides them."""
    return layer.precision in ("fp32", "fp64") and layer.products_per_output > _CHAIN


def resident(layer: Layer, tile: DirectTile) -> bool:
    """Whether a block keeps all its weights, and walks over positions and row phases with them."""
    return (
        tile.chunk_rows == layer.kernel[0] * layer.kernel[1]
        and tile.chunk_channels >= layer.in_channels_per_group
        and tile.chunk_taps >= layer.axes[2].taps_per_phase
        and layer.stride[0] * layer.stride[1] <= _MOST_WALKED_ROW_PHASES
    )


def block_positions(tile: DirectTile) -> int:
    """Positions that a block owns."""
    return tile.position_lanes * tile.positions


def parts(layer: Layer, tile: DirectTile) -> int:
    """Blocks that share one run of positions: runs of column phases and of channels, groups, row phases."""
    width = layer.axes[2]
    column_chunks = -(-width.stride // (tile.phase_lanes * tile.phases)) if tile.phase_lanes > 1 else 1
    channel_blocks = -(-layer.out_channels_per_group // (tile.channel_lanes * tile.channels))
    row_phases = 1 if resident(layer, tile) else layer.stride[0] * layer.stride[1]
    return row_phases * column_chunks * channel_blocks * layer.groups


def shared_bytes(layer: Layer, tile: DirectTile) -> int:
    """Dynamic shared memory of a block: the staged weights and, after or beside them, the exchange of column phases."""
    weights = tile.chunk_rows * tile.chunk_channels * tile.chunk_taps
    weights *= tile.phase_lanes * tile.phases * tile.channel_lanes * tile.channels
    stride = layer.stride[2]
    exchange = 0
    if tile.phase_lanes == 1 and stride > 1:
        warps = tile.position_lanes * tile.channel_lanes // _WARP
        rows = tile.phases + (tile.phases < stride)
        exchange = warps * tile.channels * rows * (_WARP + -(-_WARP // stride))
    items = weights + exchange if resident(layer, tile) else max(weights, exchange)
    return items * (8 if layer.precision == "fp64" else 4)


def _power_of_two(enough: int, limit: int) -> int:
    """The smallest power of two that is at least `enough`, unless that passes `limit`: then the largest within it."""
    value = 1
    while value < enough and value * 2 <= limit:
        value *= 2
    return value
