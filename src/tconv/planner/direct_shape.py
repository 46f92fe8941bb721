"""What follows from a layer and a tile of the `direct` family: `kernels/direct_shape.cuh` has the same formulas."""

from __future__ import annotations

from tconv.planner.gpu import Gpu
from tconv.planner.plan import DirectTile, Kernel, Plan, Unplannable
from tconv.problem import Axis, Layer, Problem

_WARP = 32
_INT_LIMIT = 2**31
#: A block with resident weights walks over the row phases; over so many at most, or most of the GPU would be idle.
_MOST_WALKED_ROW_PHASES = 64
#: Longer sums than this are taken in chains.
_CHAIN = 64
#: Lines of an exchange are taken together until they have so many steps.
_EXCHANGE_STEPS = 16
#: Blocks that the grid has for each multiprocessor when they go on to further positions.
_BLOCKS_PER_MULTIPROCESSOR = 32


def launch_direct(problem: Problem, kernel: Kernel[DirectTile], gpu: Gpu, reasons: tuple[str, ...] = ()) -> Plan:
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


def needs_wide_index(problem: Problem, tile: DirectTile) -> bool:
    """Whether numbers of rows, runs or elements of a plane go beyond 2^31."""
    # A block's walk over the runs passes their end by less than as many again.
    walked = 2 * (row_groups(problem, tile) + runs(problem, tile) + block_runs(tile))
    planes = [size[0] * size[1] * size[2] for size in (problem.input_size, problem.output_size)]
    return max(walked, *planes) >= _INT_LIMIT


def row_groups(problem: Problem, tile: DirectTile) -> int:
    """Groups of neighbouring rows of positions that a thread, or a block's tile, owns; over the whole batch."""
    depth, height, _ = problem.layer.axes
    rows = height.positions(problem.output_size[1] + tile.row_origin)
    together = tile_rows(tile) if tile.warps_wide else tile.rows
    return problem.batch * depth.positions(problem.output_size[0]) * -(-rows // together)


def runs(problem: Problem, tile: DirectTile) -> int:
    """Runs of positions that a warp owns at once, over the whole batch."""
    width = problem.layer.axes[2].positions(problem.output_size[2] + tile.origin)
    if tile.warps_wide:
        wide = tile.warps_wide * tile.columns * tile.positions
        return row_groups(problem, tile) * -(-width // wide) * block_runs(tile)
    in_a_row = -(-width // (tile.columns * tile.positions))
    return -(-row_groups(problem, tile) // run_rows(tile)) * in_a_row


def run_rows(tile: DirectTile) -> int:
    """Groups of rows that a warp owns a run of at once."""
    return _WARP // tile.columns if tile.phase_lanes == 1 else 1


def block_runs(tile: DirectTile) -> int:
    """Runs that a block owns at once."""
    return tile.position_lanes * tile.phase_lanes // _WARP


def tile_rows(tile: DirectTile) -> int:
    """Rows of positions in a block's tile."""
    return block_runs(tile) // tile.warps_wide * run_rows(tile) * tile.rows


def tile_items(layer: Layer, tile: DirectTile) -> int:
    """Places in shared memory for a tile's inputs of one channel. Lanes of different rows read different banks."""
    width = moved(layer.axes[2], tile.origin)
    columns = tile.warps_wide * tile.columns * tile.positions + width.shift_of(width.kernel - 1) - width.shift_of(0)
    pitches = range(columns, columns + _WARP)
    if run_rows(tile) > 1:
        columns = next((pitch for pitch in pitches if tile.rows * pitch % _WARP == tile.columns), columns)
    return (tile_rows(tile) + input_rows(layer, tile) - tile.rows) * columns


def parts(layer: Layer, tile: DirectTile) -> int:
    """Blocks that share one run of positions: runs of column phases and of channels, groups, row phases."""
    column_chunks = -(-layer.stride[2] // (tile.phase_lanes * tile.phases)) if tile.phase_lanes > 1 else 1
    channel_blocks = -(-layer.out_channels_per_group // tile.channels)
    walked = 1 if resident(layer, tile) else row_phases(layer, tile)
    return walked * column_chunks * channel_blocks * layer.groups


def row_phases(layer: Layer, tile: DirectTile) -> int:
    """Row phases that blocks take one at a time: those of depth alone if all of height are in registers."""
    return layer.stride[0] * (1 if tile.stacked else layer.stride[1])


def resident(layer: Layer, tile: DirectTile) -> bool:
    """Whether a block keeps all its weights, and walks over positions and row phases with them."""
    return (
        tile.chunk_rows == layer.kernel[0] * layer.kernel[1]
        and tile.chunk_channels >= layer.in_channels_per_group
        and tile.chunk_taps >= layer.axes[2].taps_per_phase
        and row_phases(layer, tile) <= _MOST_WALKED_ROW_PHASES
    )


def chained(layer: Layer, tile: DirectTile) -> bool:
    """Whether the kernel takes its sums in chains, to keep rounding errors small where nothing else hides them."""
    return layer.precision in ("fp32", "fp64") and layer.products_per_output > _CHAIN * tile.splits


def moved(axis: Axis, origin: int) -> Axis:
    """The axis of positions that own the outputs from ``q * stride - origin`` on."""
    return Axis(axis.kernel, axis.stride, axis.padding - origin, axis.dilation)


def sum_rows(layer: Layer, tile: DirectTile) -> int:
    """Rows of outputs that a thread sums up."""
    return tile.rows * layer.axes[1].phases_with_taps if tile.stacked else 1


def input_rows(layer: Layer, tile: DirectTile) -> int:
    """Rows from the topmost to the lowest input of a thread."""
    if not tile.stacked:
        return 1
    axis = moved(layer.axes[1], tile.row_origin)
    return tile.rows + axis.shift_of(axis.kernel - 1) - axis.shift_of(0)


def thread_sums(layer: Layer, tile: DirectTile) -> int:
    """Sums that a thread keeps."""
    return sum_rows(layer, tile) * tile.phases * tile.positions * tile.channels


def window(axis: Axis, origin: int, chunk_taps: int, phase_lanes: int, phases: int) -> int:
    """Inputs of one row and channel that a thread needs for each of its positions and `chunk_taps` taps of a phase."""
    if phase_lanes > 1:
        return phases * chunk_taps
    axis = moved(axis, origin)
    span = axis.shift_of(axis.phases_with_taps - 1) - axis.shift_of(0) + 1
    return span + (chunk_taps - 1) * min(span, axis.shift_period)


def accumulator_bytes(layer: Layer) -> int:
    """Bytes of a sum, and of a weight in shared memory."""
    return 8 if layer.precision == "fp64" else 4


def channel_items(layer: Layer, tile: DirectTile) -> int:
    """Places in shared memory for the weights of one row tap and input channel: whole vectors of 16 bytes."""
    items = tile.chunk_taps * tile.phase_lanes * tile.phases * tile.channels
    padding_to = 1 if tile.phase_lanes > 1 else 16 // accumulator_bytes(layer)
    return -(-items // padding_to) * padding_to


def shared_bytes(layer: Layer, tile: DirectTile) -> int:
    """Dynamic shared memory of a block: staged weights and, after or beside them, what warps exchange."""
    weights = tile.chunk_rows * tile.chunk_channels * channel_items(layer, tile)
    stride, lines = layer.stride[2], tile.channels * sum_rows(layer, tile)
    exchange = 0
    if tile.phase_lanes == 1 and stride > 1:
        steps = tile.positions * stride
        at_once = max(n for n in range(1, lines + 1) if lines % n == 0 and n <= -(-_EXCHANGE_STEPS // steps))
        exchange = block_runs(tile) * at_once * steps * (_WARP + (stride % 2 == 0))
    joined = (tile.splits - 1) * thread_sums(layer, tile) * tile.position_lanes * tile.phase_lanes
    others = exchange + joined
    inputs = tile.unroll * tile.splits * tile_items(layer, tile) if tile.warps_wide else 0
    items = 2 * (-(-inputs // 4) * 4) + (weights + others if resident(layer, tile) else max(weights, others))
    return items * accumulator_bytes(layer)
