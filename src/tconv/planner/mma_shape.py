"""What follows from a layer and a tile of the `mma` family: `kernels/mma_shape.cuh` has the same formulas."""

from __future__ import annotations

import functools
import math

from tconv.planner.gpu import Gpu
from tconv.planner.plan import Kernel, MmaTile, Plan, Preparation, Unplannable
from tconv.problem import Axis, Layer, Problem, Triple

PREPARING_THREADS = 256
_INT_LIMIT = 2**31
_LANES = 32
_FRAGMENT_BYTES = 512
_STEP_BYTES = 32
#: What outputs that are stored at once may take of shared memory, if the stages took less.
TURN_LEAST_BYTES = 32 * 1024
_BARRIER_BYTES = 16


def launch_mma(problem: Problem, kernel: Kernel[MmaTile], gpu: Gpu, reasons: tuple[str, ...] = ()) -> Plan:
    """The plan that runs `kernel`, whose layer must compute `problem`, on `gpu`.

    Raises:
        Unplannable: the grid would be too large.
    """
    layer, tile = kernel.layer, kernel.tile
    sets, count = layer.groups * row_blocks(layer, tile), math.prod(boxes(problem, layer, tile))
    together = count
    if tile.resident:
        # As many blocks as run at the same time, and as many boxes for each as for the others.
        at_once = max(1, gpu.multiprocessors * tile.blocks // sets)
        together = -(-count // -(-count // at_once))
    if sets * (count + together) >= _INT_LIMIT:
        raise Unplannable(f"the mma family would need {sets * count} blocks; a grid has fewer than 2^31")
    preparing = -(-preparing_items(layer, tile) // PREPARING_THREADS)
    if preparing >= _INT_LIMIT:
        raise Unplannable(f"the mma family would prepare weights with {preparing} blocks; a grid has fewer than 2^31")
    preparation = Preparation(preparing, PREPARING_THREADS, weight_bytes(layer, tile))
    return Plan(problem, kernel, sets * together, shared_bytes(layer, tile), reasons, preparation)


def needs_wide_index(problem: Problem, layer: Layer, tile: MmaTile) -> bool:
    """Whether offsets within a box's images, or between the channels that a lane stores, go beyond 2^31."""
    inputs = math.prod(problem.input_size) * (tile.box_images * layer.in_channels + chunk_channels(layer, tile))
    return max(inputs, _LANES * math.prod(problem.output_size)) >= _INT_LIMIT


def moved_axes(layer: Layer, tile: MmaTile) -> tuple[Axis, Axis, Axis]:
    """The axes of positions that own the outputs from ``q * stride - origin`` on."""
    return _moved_axes(layer.axes, (tile.depth_origin, tile.row_origin, tile.origin))


@functools.lru_cache(maxsize=1024)
def _moved_axes(axes: tuple[Axis, Axis, Axis], origins: tuple[int, int, int]) -> tuple[Axis, Axis, Axis]:
    depth, height, width = (
        Axis(axis.kernel, axis.stride, axis.padding - origin, axis.dilation)
        for axis, origin in zip(axes, origins, strict=True)
    )
    return depth, height, width


def halos(layer: Layer, tile: MmaTile) -> Triple:
    """`halo` of each axis."""
    return _halos(layer.axes, (tile.depth_origin, tile.row_origin, tile.origin))


@functools.lru_cache(maxsize=1024)
def _halos(axes: tuple[Axis, Axis, Axis], origins: tuple[int, int, int]) -> Triple:
    depth, height, width = (halo(axis) for axis in _moved_axes(axes, origins))
    return depth, height, width


def halo(axis: Axis) -> int:
    """How many inputs more than positions a box needs: the lowest shift to the highest."""
    return axis.shift_of(axis.kernel - 1) - axis.shift_of(0)


def shift_step(axis: Axis) -> int:
    """How far the shifts at which the taps of an axis read inputs lie apart."""
    return axis.dilation if axis.stride == 1 else 1


def shift_count(axis: Axis) -> int:
    return halo(axis) // shift_step(axis) + 1


def has_tap(axis: Axis, phase: int, shift: int) -> bool:
    """Whether `phase` has a tap that reads the input `shift` before its position."""
    distance = phase + axis.padding + shift * axis.stride
    return distance >= 0 and distance % axis.dilation == 0 and distance // axis.dilation < axis.kernel


def boxes(problem: Problem, layer: Layer, tile: MmaTile) -> tuple[int, int, int, int]:
    """Boxes of positions along images, depth, height and width."""
    origins = (tile.depth_origin, tile.row_origin, tile.origin)
    sizes = (tile.box_depths, tile.box_rows, tile.box_columns)
    depth, height, width = (
        -(-axis.positions(output + origin) // size)
        for axis, output, origin, size in zip(layer.axes, problem.output_size, origins, sizes, strict=True)
    )
    return -(-problem.batch // tile.box_images), depth, height, width


def box_positions(tile: MmaTile) -> int:
    return tile.box_images * tile.box_depths * tile.box_rows * tile.box_columns


def block_positions(tile: MmaTile) -> int:
    """Positions that a block multiplies; a box has at most as many."""
    return tile.warps_wide * tile.position_tiles * 8


def halo_positions(layer: Layer, tile: MmaTile) -> int:
    """Inputs of one channel that a box needs."""
    sizes = (tile.box_depths, tile.box_rows, tile.box_columns)
    around = halos(layer, tile)
    return tile.box_images * (sizes[0] + around[0]) * (sizes[1] + around[1]) * (sizes[2] + around[2])


def shifts(layer: Layer, tile: MmaTile) -> int:
    return _shifts(layer.axes, (tile.depth_origin, tile.row_origin, tile.origin))


@functools.lru_cache(maxsize=1024)
def _shifts(axes: tuple[Axis, Axis, Axis], origins: tuple[int, int, int]) -> int:
    return math.prod(shift_count(axis) for axis in _moved_axes(axes, origins))


def phase_tiles(layer: Layer, tile: MmaTile) -> int:
    """Tiles of 16 rows that hold all phases of their channels."""
    return -(-math.prod(layer.stride) * tile.channels // 16)


def row_blocks(layer: Layer, tile: MmaTile) -> int:
    """Blocks that share one box of positions."""
    tiles = phase_tiles(layer, tile) * -(-layer.out_channels_per_group // tile.channels)
    return -(-tiles // (tile.warps_high * tile.row_tiles))


def planes(layer: Layer) -> int:
    """Numbers that stand for one factor: exact fp32 takes two."""
    return 2 if layer.precision == "fp32" else 1


def item_bytes(layer: Layer) -> int:
    """Bytes of one number: `Layer.item_bytes`, by words that written files know as well."""
    return 2 if layer.precision in ("fp16", "bf16") else 8 if layer.precision == "fp64" else 4


def sum_bytes(layer: Layer) -> int:
    """Bytes of one sum."""
    return max(4, item_bytes(layer))


def chunk_channels(layer: Layer, tile: MmaTile) -> int:
    return tile.splits * tile.chunk_steps * _STEP_BYTES // item_bytes(layer)


def chunks(layer: Layer, tile: MmaTile) -> int:
    return -(-layer.in_channels_per_group // chunk_channels(layer, tile))


def shift_bytes(layer: Layer, tile: MmaTile) -> int:
    """Prepared weights of a block for one shift and one chunk."""
    tiles = tile.warps_high * tile.row_tiles
    return tile.splits * tile.chunk_steps * planes(layer) * tiles * _FRAGMENT_BYTES


def weight_bytes(layer: Layer, tile: MmaTile) -> int:
    """All prepared weights."""
    block = chunks(layer, tile) * shifts(layer, tile) * shift_bytes(layer, tile)
    return layer.groups * row_blocks(layer, tile) * block


def preparing_items(layer: Layer, tile: MmaTile) -> int:
    """Threads that prepare the weights: one for some taps of the filters of a lane, or for a vector of 16 bytes."""
    if tile.channels < 16:
        return weight_bytes(layer, tile) // 16
    channel_tiles = -(-row_blocks(layer, tile) * tile.warps_high * tile.row_tiles // phase_tiles(layer, tile))
    steps = chunks(layer, tile) * tile.chunk_steps * tile.splits
    return layer.groups * channel_tiles * steps * (math.prod(layer.kernel) // tile.taps_together) * _LANES


def shared_bytes(layer: Layer, tile: MmaTile) -> int:
    """Dynamic shared memory of a block: stages of inputs and of weights, and what tells when those have landed.

    At the end the sets of warps put their sums in the place of both, and then the warps their outputs; resident weights
    stay, and the next inputs with them.
    """
    input_stages = tile.copied or (2 if tile.resident else min(2, chunks(layer, tile)))
    steps = chunks(layer, tile) * -(-shifts(layer, tile) // tile.chunk_shifts)
    weight_stages = steps if tile.resident else min(2, steps)
    weights = tile.chunk_shifts * shift_bytes(layer, tile)
    stages = input_stages * input_stage_bytes(layer, tile) + weight_stages * weights
    warps = tile.warps_high * tile.warps_wide
    joined = (tile.splits - 1) * 32 * warps * tile.row_tiles * tile.position_tiles * 4 * sum_bytes(layer)
    if tile.resident:
        return stages + warps * turn_bytes(layer, tile, TURN_LEAST_BYTES) + _BARRIER_BYTES
    most_bytes = max(TURN_LEAST_BYTES, stages - joined)
    return max(stages, joined + warps * turn_bytes(layer, tile, most_bytes)) + _BARRIER_BYTES


def input_stage_bytes(layer: Layer, tile: MmaTile) -> int:
    """Shared memory of a chunk of a box's inputs."""
    if tile.copied:
        places, shift = halo_patches(layer, tile) * tile.patch_columns * item_bytes(layer), _channel_shift(layer)
        return chunk_channels(layer, tile) * (-(-(places - shift) // 128) * 128 + shift)
    position = planes(layer) * tile.splits * tile.chunk_steps * _STEP_BYTES + 16
    return halo_positions(layer, tile) * position


def turn_bytes(layer: Layer, tile: MmaTile, most_bytes: int) -> int:
    """Shared memory of a warp for the outputs that it stores at once; all warps of a set may take so many."""
    rows = 16 * turn_row_tiles(layer, tile)
    return rows * turn_pitch(layer, tile, turn_position_tiles(layer, tile, most_bytes))


def turn_position_tiles(layer: Layer, tile: MmaTile, most_bytes: int) -> int:
    """Tiles of positions that a warp stores at once, if all warps of a set may take so many bytes."""
    rows, positions = 16 * turn_row_tiles(layer, tile), tile.position_tiles
    at_most = most_bytes // (rows * tile.warps_high * tile.warps_wide)
    while positions > 1 and (tile.position_tiles % positions or turn_pitch(layer, tile, positions) > at_most):
        positions -= 1
    return positions


def turn_row_tiles(layer: Layer, tile: MmaTile) -> int:
    """Tiles of rows that a warp stores at once: with all column phases of their channels, where it has them."""
    stride, tile_phases, tiles = layer.stride[2], 16 // tile.channels, phase_tiles(layer, tile)
    whole = stride // math.gcd(stride, tile_phases)
    if tile.row_tiles % whole == 0 and tiles % whole == 0:
        return whole
    return tiles if tile.row_tiles % tiles == 0 else 1


def turn_pitch(layer: Layer, tile: MmaTile, position_tiles: int) -> int:
    """Bytes from a row to the next: lanes that write neighbouring rows find different banks."""
    least = 8 * position_tiles * item_bytes(layer)
    return least + ((16 if tile.channels_last else 8 * item_bytes(layer)) - least) % 128


def vector_items(layer: Layer) -> int:
    return 16 // item_bytes(layer)


def _channel_shift(layer: Layer) -> int:
    """Bytes by which copied channels are moved, so that those that are read together lie in different banks."""
    return 16 if item_bytes(layer) < 4 else 32


def halo_patches(layer: Layer, tile: MmaTile) -> int:
    """Patches of neighbouring columns that hold the inputs of one channel that a box needs."""
    width, together = moved_axes(layer, tile)[2], tile.patch_columns
    columns = tile.box_columns + halos(layer, tile)[2]
    lead = -width.shift_of(width.kernel - 1) % together
    return halo_positions(layer, tile) // columns * -(-(lead + columns) // together)


def thread_patches(layer: Layer, tile: MmaTile) -> int:
    """Patches of inputs that a thread brings of a chunk: of a vector of channels, or of each of its channels."""
    patches = halo_patches(layer, tile)
    if tile.copied:
        return -(-patches // patch_lanes(layer, tile))
    return -(-patches * (chunk_channels(layer, tile) // vector_items(layer)) // tile.threads)


def thread_loads(layer: Layer, tile: MmaTile) -> int:
    """Loads or copies with which a thread brings them."""
    if tile.copied:
        channels = -(-chunk_channels(layer, tile) * patch_lanes(layer, tile) // tile.threads)
    else:
        vectors = tile.channels_last and layer.in_channels_per_group % vector_items(layer) == 0
        channels = 1 if vectors else vector_items(layer)
    return thread_patches(layer, tile) * channels


def patch_lanes(layer: Layer, tile: MmaTile) -> int:
    """Of a block's threads, those that share the patches of some channels: so that a thread has the fewest."""
    patches, channels, threads = halo_patches(layer, tile), chunk_channels(layer, tile), tile.threads
    powers = (threads >> n for n in range(6) if threads >> n >= 8 and threads % (threads >> n) == 0)
    return min(powers, key=lambda lanes: -(-patches // lanes) * -(-channels * lanes // threads))


def fragments_with_taps(layer: Layer, tile: MmaTile) -> int:
    """Pairs of a shift and a tile of 16 rows of a block that are multiplied."""
    axes = moved_axes(layer, tile)
    all_shifts, tiles = shifts(layer, tile), tile.warps_high * tile.row_tiles
    if tile.channels < 16:
        return all_shifts * tiles
    found = 1
    for axis in axes:
        reached = (axis.shift_of(0) + number * shift_step(axis) for number in range(shift_count(axis)))
        found *= sum(has_tap(axis, phase, shift) for shift in reached for phase in range(axis.stride))
    return math.ceil(found * tiles / phase_tiles(layer, tile))
