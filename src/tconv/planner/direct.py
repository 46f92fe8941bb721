"""Plans of the `direct` family: tile, grid and shared memory. `kernels/direct.cuh` has the same formulas."""

from __future__ import annotations

import math
from dataclasses import replace

from tconv.planner.gpu import Gpu
from tconv.planner.plan import DirectTile, Kernel, Plan, Unplannable
from tconv.problem import Axis, Layer, Problem

_WARP = 32
_INT_LIMIT = 2**31
#: Sums that a thread keeps in registers, in 32-bit words; half as many again where each has several taps in a row.
_SUMS = 32
#: Positions of a thread. More share each weight, but leave fewer warps.
_POSITIONS = 2
#: With one output channel, inputs and weights serve few products: such a thread has more positions, within these. The
#: last are inputs of a thread, where one input channel is all there is, and where several follow each other.
_LONE_POSITIONS = 4
_LONE_SUMS = 16
_LONE_LOADS = (12, 8)
#: Where the grid would leave multiprocessors idle: a part of these sums, and of these threads, one after the other.
_SMALLER = ((1, 1), (2, 1), (4, 1), (4, 2))
#: Blocks for each multiprocessor that a tile should give.
_ENOUGH_BLOCKS = 2
#: Layers with more column phases than this have them across a warp's lanes instead of in registers.
_MOST_PHASES_IN_REGISTERS = 16
#: Multiply-adds in one unrolled body. NVRTC's time grows faster than the body.
_MOST_UNROLLED = 512
#: Inputs that a thread asks for before it uses the first: enough to hide the cache, few enough not to spill. More only
#: where the taps of one channel need them, and then no more than these.
_MOST_LOADS = 16
_MOST_INPUTS = 32
#: Channels computed for nothing, so that several can be read ahead: at most this many times the channels there are.
_MOST_PADDED = 1.15
#: The most that a thread stores at once; bytes of an output where they are not four.
_VECTOR_BYTES = 16
_STORED_BYTES = {"fp16": 2, "bf16": 2, "fp64": 8}
_STAGE_BYTES = 16 * 1024
#: Weights of at most this size stay in shared memory, so that a block can go on to further positions.
_RESIDENT_BYTES = 44 * 1024
#: A block with resident weights walks over the row phases; over so many at most, or most of the GPU would be idle.
_MOST_WALKED_ROW_PHASES = 64
#: Blocks that the grid has for each multiprocessor when they go on to further positions.
_BLOCKS_PER_MULTIPROCESSOR = 32
#: Threads of a block, and of one whose weights pass through shared memory: the more, the more use each stage has.
_THREADS = 128
_STAGED_THREADS = 256
#: Longer sums than this are taken in chains.
_CHAIN = 64
#: Registers of a multiprocessor.
_REGISTERS = 64 * 1024
#: How much worse a warp's loads and stores are when it owns so many columns of several rows, by the columns.
_NARROWNESS = {32: 1.0, 16: 1.03, 8: 1.1, 4: 1.3, 2: 1.6, 1: 2.0}


def plan_direct(problem: Problem, gpu: Gpu) -> Plan:
    """The plan of `problem` on `gpu`.

    Raises:
        Unplannable: a size passes what the family can address; the message names it.
    """
    layer = problem.layer
    for axis, size in zip(layer.axes, problem.output_size, strict=True):
        if max(size, axis.dilation * (axis.kernel - 1)) + axis.stride + axis.padding >= _INT_LIMIT:
            raise Unplannable(f"an axis of {size} outputs is longer than the direct family's 2^31")
    width = layer.axes[2].positions(problem.output_size[2])
    tile = direct_tile(layer, width)
    for smaller in range(1, len(_SMALLER)):
        if -(-runs(problem, tile) // block_runs(tile)) * parts(layer, tile) >= _ENOUGH_BLOCKS * gpu.multiprocessors:
            break
        tile = direct_tile(layer, width, smaller)
    while tile.position_lanes * tile.phase_lanes > _WARP and block_runs(tile) >= 2 * runs(problem, tile):
        tile = replace(tile, position_lanes=tile.position_lanes // 2, blocks=min(16, 2 * tile.blocks))
    # A block's walk over the runs passes their end by less than as many again.
    walked = 2 * (rows(problem) + runs(problem, tile) + block_runs(tile))
    wide = max(walked, math.prod(problem.input_size), math.prod(problem.output_size)) >= _INT_LIMIT
    reasons = (
        f"{rows(problem) * width} positions x {math.prod(layer.stride)} phases; a warp has "
        f"{tile.columns * tile.positions} positions of {_WARP // tile.columns if tile.phase_lanes == 1 else 1} rows",
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
    blocks = -(-runs(problem, tile) // block_runs(tile))
    if resident(layer, tile):
        blocks = min(blocks, max(1, _BLOCKS_PER_MULTIPROCESSOR * gpu.multiprocessors // parts(layer, tile)))
    grid = blocks * parts(layer, tile)
    if grid >= _INT_LIMIT:
        raise Unplannable(f"the direct family would need {grid} blocks; a grid has fewer than 2^31")
    return Plan(problem, kernel, grid, shared_bytes(layer, tile), reasons)


def rows(problem: Problem) -> int:
    """Rows of positions, over the whole batch."""
    depth, height, _ = problem.layer.axes
    return problem.batch * depth.positions(problem.output_size[0]) * height.positions(problem.output_size[1])


def runs(problem: Problem, tile: DirectTile) -> int:
    """Runs of positions that a warp owns at once, over the whole batch."""
    run_rows = _WARP // tile.columns if tile.phase_lanes == 1 else 1
    width = problem.layer.axes[2].positions(problem.output_size[2] + tile.origin)
    in_a_row = -(-width // (tile.columns * tile.positions))
    return -(-rows(problem) // run_rows) * in_a_row


def direct_tile(layer: Layer, width: int = _INT_LIMIT, smaller: int = 0) -> DirectTile:
    """The tile for `layer` with rows of `width` positions, very long ones by default.

    `smaller` asks for less work a block, in so many steps: small problems then reach every multiprocessor.
    """
    axis = layer.axes[2]
    item = 8 if layer.precision == "fp64" else 4
    row_taps = layer.kernel[0] * layer.kernel[1]
    fewer_sums, fewer_threads = _SMALLER[smaller]
    budget = _SUMS * 4 // item // fewer_sums
    if axis.stride > _MOST_PHASES_IN_REGISTERS:
        phase_lanes, columns, phases = _WARP, 1, min(2, -(-axis.stride // _WARP))
        positions = max(1, _MOST_LOADS // (2 * phases * fewer_sums))
        channels = _power_of_two(layer.out_channels_per_group, max(1, min(16, budget // (phases * positions))))
    else:
        phase_lanes, phases = 1, axis.phases_with_taps
        positions = _positions(layer, phases, budget, fewer_sums)
        columns, positions = _columns(width, positions)
        channels = _channels(layer, phases * positions, budget)
    weight_bytes = row_taps * layer.in_channels_per_group * axis.taps_per_phase * phase_lanes * phases * item
    chunk_taps = min(axis.taps_per_phase, max(1, _MOST_UNROLLED // (phases * positions * channels)))
    origin = _origin(layer) if phase_lanes == 1 else 0
    chunk_taps = chunk_taps if phase_lanes == 1 else min(2, chunk_taps)
    while chunk_taps > 1 and positions * _inputs(axis, origin, chunk_taps, phase_lanes, phases) > _MOST_INPUTS:
        chunk_taps -= 1
    window = _inputs(axis, origin, chunk_taps, phase_lanes, phases)
    unroll = _unroll(layer.in_channels_per_group, window * positions, phases * positions * channels * chunk_taps)
    fits = chunk_taps == axis.taps_per_phase and layer.stride[0] * layer.stride[1] <= _MOST_WALKED_ROW_PHASES
    if fits and weight_bytes * channels > _RESIDENT_BYTES >= weight_bytes * channels // 2 and channels > 4:
        channels //= 2
    stays = fits and weight_bytes * channels <= _RESIDENT_BYTES
    threads = _STAGED_THREADS if phase_lanes == 1 and not stays else _THREADS
    lanes = threads // (phase_lanes * fewer_threads)
    position_lanes = max(_WARP // phase_lanes, lanes)
    chunk_rows, chunk_channels = row_taps, -(-layer.in_channels_per_group // unroll) * unroll
    if not stays:
        chunk_bytes = unroll * chunk_taps * phase_lanes * phases * channels * item
        chunk_rows, chunk_channels = 1, min(chunk_channels, max(1, _STAGE_BYTES // chunk_bytes) * unroll)
    # What a thread keeps at once: its sums, twice where the kernel takes them in chains; inputs and weights; places in
    # the exchange, the phases of its lane, or what stages need. The limits are the lowest that no arch spills at.
    sums = phases * positions * channels * (2 if chained(layer) else 1)
    words = (sums + window * positions * unroll + channels) * item // 4
    if phase_lanes > 1:
        words += 5 * phases
    elif axis.stride > 4 or not _vector(layer):
        words += axis.stride * (1 if axis.stride % 2 else 4)
    words += 0 if stays or phase_lanes > 1 else 8
    registers = 128 if words <= 56 else 168 if words <= 80 else 255
    blocks = max(1, min(16, _REGISTERS // (registers * position_lanes * phase_lanes)))
    return DirectTile(
        position_lanes,
        phase_lanes,
        columns,
        positions,
        channels,
        phases,
        chunk_rows,
        chunk_channels,
        chunk_taps,
        unroll,
        origin,
        blocks,
    )


def _positions(layer: Layer, phases: int, budget: int, fewer: int) -> int:
    """Positions of a thread that keeps about `budget` sums, of a block with so many times fewer than usual."""
    if layer.out_channels_per_group > 1:
        return max(1, min(_POSITIONS // fewer, budget // phases))
    window = _window(layer.axes[2], 0, layer.axes[2].taps_per_phase)
    loads = _LONE_LOADS[layer.in_channels_per_group > 1]
    return _power_of_two(_LONE_POSITIONS, max(1, min(_LONE_SUMS // fewer // phases, loads // window)))


def _channels(layer: Layer, sums: int, budget: int) -> int:
    """Output channels of a thread that has `sums` sums for each."""
    more = budget * 3 // 2 if layer.axes[2].taps_per_phase > 1 else budget
    return _power_of_two(layer.out_channels_per_group, max(1, min(16, more // sums)))


def _origin(layer: Layer) -> int:
    """Where positions start: so that taps share most inputs, unless stores matter more.

    They do where a position's columns make one vector, or where each input is used by few products. Position 0 then
    starts at column 0, and rows of outputs mostly at a line of memory.
    """
    if _vector(layer) or layer.in_channels_per_group == 1:
        return 0
    axis = layer.axes[2]
    origins = range(min(axis.padding + 1, axis.stride))
    return min(origins, key=lambda origin: _window(axis, origin, axis.taps_per_phase))


def _vector(layer: Layer) -> bool:
    """Whether the columns of a position make one vector, where rows allow it."""
    stride = layer.stride[2]
    return stride & (stride - 1) == 0 and stride * _STORED_BYTES.get(layer.precision, 4) <= _VECTOR_BYTES


def _window(axis: Axis, origin: int, chunk_taps: int) -> int:
    """Inputs of one row and channel that a position needs for `chunk_taps` taps of each column phase."""
    moved = (axis.dilation * (axis.phases_with_taps - 1) - axis.padding + origin) // axis.stride
    span = moved - (origin - axis.padding) // axis.stride + 1
    return span + (chunk_taps - 1) * min(span, axis.shift_period)


def _inputs(axis: Axis, origin: int, chunk_taps: int, phase_lanes: int, phases: int) -> int:
    """Inputs of one row and channel that a thread needs for each of its positions."""
    return _window(axis, origin, chunk_taps) if phase_lanes == 1 else phases * chunk_taps


def _unroll(in_channels: int, loads: int, products: int) -> int:
    """Input channels that are read ahead: some latency's worth, and hardly more than there are."""
    unroll = 1
    while (
        2 * unroll * loads <= _MOST_LOADS
        and 2 * unroll * products <= _MOST_UNROLLED
        and -(-in_channels // (2 * unroll)) * 2 * unroll <= _MOST_PADDED * in_channels
    ):
        unroll *= 2
    return unroll


def _columns(width: int, positions: int) -> tuple[int, int]:
    """Columns of a warp's run, and positions of a thread: the largest run that rows of `width` positions fill."""
    best, found = math.inf, (1, 1)
    while positions >= 1:
        for columns, narrowness in _NARROWNESS.items():
            run = columns * positions
            cost = -(-width // run) * run * narrowness * (1 + 0.2 / positions)
            if cost < best:
                best, found = cost, (columns, positions)
        positions //= 2
    return found


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


def block_runs(tile: DirectTile) -> int:
    """Runs that a block owns at once."""
    return tile.position_lanes * tile.phase_lanes // _WARP


def parts(layer: Layer, tile: DirectTile) -> int:
    """Blocks that share one run of positions: runs of column phases and of channels, groups, row phases."""
    width = layer.axes[2]
    column_chunks = -(-width.stride // (tile.phase_lanes * tile.phases)) if tile.phase_lanes > 1 else 1
    channel_blocks = -(-layer.out_channels_per_group // (tile.channels))
    row_phases = 1 if resident(layer, tile) else layer.stride[0] * layer.stride[1]
    return row_phases * column_chunks * channel_blocks * layer.groups


def shared_bytes(layer: Layer, tile: DirectTile) -> int:
    """Dynamic shared memory of a block: the staged weights and, after or beside them, the exchange of column phases."""
    weights = tile.chunk_rows * tile.chunk_channels * tile.chunk_taps
    weights *= tile.phase_lanes * tile.phases * tile.channels
    stride = layer.stride[2]
    exchange = 0
    if tile.phase_lanes == 1 and stride > 1:
        warps = tile.position_lanes // _WARP
        steps = tile.positions * stride
        at_once = max(n for n in range(1, tile.channels + 1) if tile.channels % n == 0 and n <= -(-16 // steps))
        exchange = warps * at_once * steps * (_WARP + (stride % 2 == 0))
    items = weights + exchange if resident(layer, tile) else max(weights, exchange)
    return items * (8 if layer.precision == "fp64" else 4)


def _power_of_two(enough: int, limit: int) -> int:
    """The smallest power of two that is at least `enough`, unless that passes `limit`: then the largest within it."""
    value = 1
    while value < enough and value * 2 <= limit:
        value *= 2
    return value
