"""Plans of the `mma` family: the tile that the model prefers, and why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

from tconv.planner.direct import representative
from tconv.planner.gpu import Gpu
from tconv.planner.mma_model import MmaCost, predict_mma
from tconv.planner.mma_shape import (
    box_positions,
    chunks,
    fragments_with_taps,
    launch_mma,
    needs_wide_index,
    phase_tiles,
    planes,
    row_blocks,
    shared_bytes,
    shifts,
    sum_bytes,
)
from tconv.planner.mma_tile import (
    can_copy,
    mma_tile,
    registers,
    row_channels,
    row_tiles_of,
    suits_threads,
    with_more_stages,
    with_resident_weights,
)
from tconv.planner.plan import Kernel, MmaTile, Plan, Unplannable
from tconv.problem import Layer, Problem, Triple

_INT_LIMIT = 2**31
_OLDEST_ARCH = 80
#: Row phases and shifts from here on would be too much text, or tables too long, for the compiler.
_MOST_PHASES = 4096
#: Registers of a thread for sums.
_MOST_SUMS = 128
_WARPS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2))
_POSITION_TILES = (8, 4, 2)
_MOST_POSITIONS = 8 * 8 * 8
_STEPS = (1, 2, 4, 8)
_SPLITS = (2, 4)
_MOST_THREADS = 256
#: Shared memory of a block, of less than so many threads and of as many.
_SHARED_BYTES = (112 * 1024, 227 * 1024)
#: Warps of a multiprocessor up to which sharing input channels may pay.
_FEW_WARPS = 8
#: Candidates have boxes that waste little more than the best.
_BOXES = 4
#: The best boxes of those are tried with copied inputs, too.
_COPIED_BOXES = 2


def plan_mma(problem: Problem, gpu: Gpu, channels_last: bool = False) -> Plan:
    """The plan of `problem` on `gpu`, for input and output in one memory format.

    Raises:
        Unplannable: the family does not run it; the message says why.
    """
    layer = problem.layer
    if gpu.capability < _OLDEST_ARCH:
        raise Unplannable(f"the mma family needs sm_{_OLDEST_ARCH} or newer; {gpu.name} is {gpu.arch}")
    for axis, size in zip(layer.axes, problem.output_size, strict=True):
        # The last box may pass the end of the axis.
        beyond = _MOST_POSITIONS * axis.stride + axis.padding
        if max(size, axis.dilation * (axis.kernel - 1)) + beyond >= _INT_LIMIT:
            raise Unplannable(f"an axis of {size} outputs is longer than the mma family's 2^31")
    alike = equivalent(problem)
    if reason := why_not_mma(alike):
        raise Unplannable(reason)
    chosen = _chosen(representative(problem), alike, gpu, channels_last, together(problem))
    if chosen is None:
        raise Unplannable("no tile of the mma family fits into shared memory")
    tile, cost, tried = chosen
    wide = needs_wide_index(problem, alike, tile)
    plan = launch_mma(problem, Kernel("mma", alike, tile, wide), gpu, _reasons(alike, tile, cost, tried))
    return replace(plan, predicted_seconds=cost.seconds)


def why_not_mma(layer: Layer) -> str | None:
    """Why the family has no kernel for `layer`; None if it has."""
    if math.prod(layer.stride) > _MOST_PHASES:
        return f"{math.prod(layer.stride)} phases are more than the mma family's {_MOST_PHASES}"
    if any(axis.phases_with_taps < axis.stride for axis in layer.axes):
        return "some phases have no taps, which tensor cores would multiply with zeros"
    return None


def equivalent(problem: Problem) -> Layer:
    """A layer that computes `problem` with fewer zeros: along an axis of one input, any stride gives the same outputs.

    With a stride of the kernel's length every tap is a phase of its own and reads the one input at shift 0.
    """
    layer = problem.layer

    def stride(axis: int) -> int:
        kernel, old, padding, dilation = layer.axes[axis]
        once = problem.input_size[axis] == 1 and dilation == 1 and padding < kernel
        return kernel if once else old

    strides: Triple = (stride(0), stride(1), stride(2))
    return layer if strides == layer.stride or math.prod(strides) > _MOST_PHASES else replace(layer, stride=strides)


def computes(kernel: Kernel[MmaTile], problem: Problem) -> bool:
    """Whether a kernel that was planned for a problem of one layer computes another problem of it."""
    strides = zip(kernel.layer.stride, problem.layer.stride, problem.input_size, strict=True)
    same = all(planned == stride or size == 1 for planned, stride, size in strides)
    return same and problem.input_size[2] % kernel.tile.patch_columns == 0


@lru_cache(maxsize=4096)
def _chosen(
    problem: Problem, layer: Layer, gpu: Gpu, channels_last: bool, most_together: int
) -> tuple[MmaTile, MmaCost, int] | None:
    tiles = dict.fromkeys(candidates(problem, layer, gpu, channels_last, most_together))
    costs = {tile: predict_mma(problem, layer, tile, gpu) for tile in tiles}
    if not costs:
        return None
    best = min(costs, key=lambda tile: costs[tile].seconds)
    return best, costs[best], len(costs)


def together(problem: Problem) -> int:
    """How many neighbouring inputs may be loaded at once: 16 bytes at most, and rows begin at multiples of them."""
    return math.gcd(problem.input_size[2], 16 // problem.layer.item_bytes)


def candidates(
    problem: Problem, layer: Layer, gpu: Gpu, channels_last: bool = False, most_together: int = 1
) -> Iterator[MmaTile]:
    """Tiles with which a kernel of `layer` computes `problem`, with loads of up to `most_together` inputs."""
    last = int(channels_last)
    width = layer.axes[2]
    origins = sorted({0, width.padding % width.stride})
    for high, wide in _WARPS:
        # Of few warps, several blocks share a multiprocessor.
        most_shared = min(gpu.shared_bytes_per_block, _SHARED_BYTES[high * wide * 32 == _MOST_THREADS])
        for position_tiles in _POSITION_TILES:
            boxes = _boxes(problem, layer, positions=8 * wide * position_tiles)
            for row_tiles in _row_tiles(layer, position_tiles):
                if high > 1 and row_tiles * high > row_tiles_of(layer) + row_tiles - 1:
                    continue
                for box, origin, steps in itertools.product(boxes, origins, _STEPS):
                    make = partial(
                        mma_tile,
                        *(layer, (high, wide), row_tiles, position_tiles, box, steps, origin, last, 1),
                        *(most_together, most_shared),
                    )
                    tiles = [make()]
                    if box in boxes[:_COPIED_BOXES] and can_copy(layer, tiles[0], most_together):
                        tiles.append(make(copied=True))
                    for tile in tiles:
                        if suits_threads(layer, tile):
                            yield from _variants(problem, layer, tile, gpu, most_shared, most_together)


def _variants(
    problem: Problem, layer: Layer, tile: MmaTile, gpu: Gpu, most_shared: int, most_together: int
) -> Iterator[MmaTile]:
    """The tile with resident weights, as it is, and with several sets of warps, where each of them may pay."""
    resident = with_resident_weights(layer, tile)
    if (
        resident
        and shared_bytes(layer, resident) <= most_shared
        and _grid(problem, layer, resident, gpu) < _grid(problem, layer, tile, gpu)
    ):
        yield with_more_stages(layer, resident, most_shared) if tile.copied else resident
    if shared_bytes(layer, tile) <= most_shared:
        yield tile
        if not _is_busy(problem, layer, tile, gpu):
            yield from _split(layer, tile, most_shared, most_together)


def _grid(problem: Problem, layer: Layer, tile: MmaTile, gpu: Gpu) -> int:
    return launch_mma(problem, Kernel("mma", layer, tile), gpu).grid


def _is_busy(problem: Problem, layer: Layer, tile: MmaTile, gpu: Gpu) -> bool:
    """Whether there are so many warps that further ones would not shorten the work."""
    warps = _grid(problem, layer, tile, gpu) * tile.threads // 32
    return warps >= _FEW_WARPS * gpu.multiprocessors


def _split(layer: Layer, tile: MmaTile, most_shared: int, most_together: int) -> Iterator[MmaTile]:
    """The tile with several sets of warps."""
    warps = (tile.warps_high, tile.warps_wide)
    box = (tile.box_images, tile.box_depths, tile.box_rows, tile.box_columns)
    for splits in _SPLITS:
        if tile.threads * splits > _MOST_THREADS:
            return
        split = mma_tile(
            *(layer, warps, tile.row_tiles, tile.position_tiles, box),
            *(tile.chunk_steps, tile.origin, tile.channels_last, splits, most_together, most_shared),
            copied=tile.copied > 0,
        )
        if suits_threads(layer, split) and shared_bytes(layer, split) <= most_shared:
            yield split


def _row_tiles(layer: Layer, position_tiles: int) -> list[int]:
    """Tiles of rows for a warp: with all phases of its channels where they fit, else some powers of two."""
    phases = -(-math.prod(layer.stride) * row_channels(layer) // 16)
    most = _MOST_SUMS // planes(layer) // (sum_bytes(layer) * position_tiles)
    whole = [phases * n for n in (1, 2, 4, 8) if phases * n <= most]
    if _every_phase_has_every_shift(layer):
        # Nothing is left out, so it does not matter whether the compiler knows a warp's phases: a row's are enough.
        columns = -(-layer.stride[2] * row_channels(layer) // 16)
        whole += [columns * n for n in (1, 2, 4, 8) if columns * n <= most and phases % columns == 0]
    # All rows, or an even part of them: no tile multiplies for nothing.
    every = row_tiles_of(layer)
    whole += [every // n for n in (1, 2, 3, 4) if every % (n * phases) == 0 and every // n <= most]
    counts = list(dict.fromkeys(whole)) or [n for n in (1, 2, 4, 8) if n <= most]
    return [n for n in counts if n < 2 * row_tiles_of(layer)]


def _every_phase_has_every_shift(layer: Layer) -> bool:
    return all(axis.dilation == 1 and axis.kernel % axis.stride == 0 for axis in layer.axes)


def _boxes(problem: Problem, layer: Layer, positions: int) -> list[tuple[int, int, int, int]]:
    """Boxes of at most so many positions that waste little: of their own, of the map's border, of what lies around."""
    depth, height, width = (
        axis.positions(output + axis.padding % axis.stride)
        for axis, output in zip(layer.axes, problem.output_size, strict=True)
    )
    halo = [axis.shift_of(axis.kernel - 1) - axis.shift_of(0) for axis in layer.axes]
    found: dict[tuple[int, int, int, int], float] = {}
    for most_columns in {width, width + width % 2, *(2**n for n in range(1, 9) if 2**n < width)}:
        columns = min(most_columns, positions)
        rows = 1
        while rows <= min(height, positions // columns):
            depths = min(depth, positions // (columns * rows))
            for slabs in {depths, min(depth, max(1, round(depths**0.5)))}:
                images = min(problem.batch, positions // (columns * rows * slabs)) if slabs == depth else 1
                box = (max(1, images), slabs, rows, columns)
                count = math.prod(-(-n // b) for n, b in zip((problem.batch, depth, height, width), box, strict=True))
                around = math.prod((b + h) / b for b, h in zip(box[1:], halo, strict=True))
                wasted = count * positions / (problem.batch * depth * height * width)
                # Short rows are parts of sectors of memory.
                short = 16 / (columns * layer.stride[2] * layer.item_bytes) + 16 / (columns * layer.item_bytes)
                found[box] = wasted * (1 + 0.15 * around) * (1 + short) * (1.1 if columns % 2 else 1)
            rows = rows * 2 if rows * 2 <= height or rows >= height else height
    return sorted(found, key=lambda box: found[box])[:_BOXES]


def _reasons(layer: Layer, tile: MmaTile, cost: MmaCost, tried: int) -> tuple[str, ...]:
    pairs = shifts(layer, tile) * tile.warps_high * tile.row_tiles
    limits = ", ".join(f"{name} {seconds * 1e3:.3f}" for name, seconds in cost.limits.items())
    return (
        f"{phase_tiles(layer, tile)} tiles of 16 rows hold {math.prod(layer.stride)} phases of {tile.channels} output "
        f"channels; {row_blocks(layer, tile)} blocks share the positions of a box",
        f"a box of {tile.box_images} x {tile.box_depths} x {tile.box_rows} x {tile.box_columns} positions (images, "
        f"slabs, rows, columns): {box_positions(tile)} of {8 * tile.warps_wide * tile.position_tiles} multiplied",
        f"{tile.splits} x {tile.warps_high} x {tile.warps_wide} warps (sets, rows, positions) of "
        f"{16 * tile.row_tiles} rows x {8 * tile.position_tiles} positions, "
        f"about {registers(layer, tile)} registers a thread",
        f"{shifts(layer, tile)} shifts, {fragments_with_taps(layer, tile) / pairs:.0%} of the products have a tap; "
        f"{chunks(layer, tile)} chunks of channels, "
        + (f"copied into {tile.copied} stages" if tile.copied else "inputs on their way in registers"),
        f"first of {tried} tiles by the model, for sizes like these: {cost.seconds * 1e3:.3f} ms ({limits})",
    )
