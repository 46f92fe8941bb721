"""Plans of the `direct` family: the tile that the model prefers, and why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tconv.planner.direct_model import Cost, predict
from tconv.planner.direct_shape import (
    launch_direct,
    needs_wide_index,
    parts,
    resident,
    run_rows,
    runs,
    shared_bytes,
    thread_sums,
    tile_rows,
)
from tconv.planner.direct_tile import blocks_that_fit, default_tile, direct_tile, is_small, phases_on_lanes
from tconv.planner.gpu import Gpu
from tconv.planner.plan import DirectTile, Kernel, Plan, Unplannable
from tconv.problem import Layer, Problem

_INT_LIMIT = 2**31
_WARP = 32
#: What is tried. A column or row of positions that lies outside the map is work for nothing: so much of it is allowed.
_COLUMNS = (32, 16, 8, 4, 2, 1)
_POSITIONS = (1, 2, 4)
_ROWS = (0, 1, 2, 4)
_CHANNELS = (1, 2, 3, 4, 8, 16)
_LANES = (128, 64)
_SPLITS = (1, 2, 4, 8)
_MOST_WASTE = 1.35
_LEAST_SUMS = 4
#: Warps of a multiprocessor up to which sharing input channels may pay.
_FEW_WARPS = 24
#: Registers are estimated, and the compiler is asked whether it can do with less: a tile is also tried with so much.
_OPTIMISM = (1.0, 1.06)
#: Dynamic shared memory that every GPU from sm_75 on gives a block: a plan may travel in a file.
_SHARED_BYTES = 64 * 1024
#: Sizes from here on are alike. (batch; sizes of 1-D, 2-D and 3-D inputs)
_ALIKE = (1024, {1: 2**16, 2: 2**10, 3: 2**7})


def plan_direct(problem: Problem, gpu: Gpu) -> Plan:
    """The plan of `problem` on `gpu`.

    Raises:
        Unplannable: a size passes what the family can address; the message names it.
    """
    layer = problem.layer
    for axis, size in zip(layer.axes, problem.output_size, strict=True):
        if max(size, axis.dilation * (axis.kernel - 1)) + axis.stride + axis.padding >= _INT_LIMIT:
            raise Unplannable(f"an axis of {size} outputs is longer than the direct family's 2^31")
    tile, cost, tried = _chosen(representative(problem), gpu)
    wide = needs_wide_index(problem, tile)
    reasons = _reasons(problem, tile, cost, tried, wide)
    plan = launch_direct(problem, Kernel("direct", layer, tile, wide), gpu, reasons)
    if plan.shared_bytes > gpu.shared_bytes_per_block:
        raise Unplannable(
            f"the direct family would need {plan.shared_bytes} bytes of shared memory a block; "
            f"{gpu.name} has {gpu.shared_bytes_per_block}"
        )
    return replace(plan, predicted_seconds=cost.seconds)


def candidates(problem: Problem, gpu: Gpu) -> Iterator[DirectTile]:
    """Tiles for `problem`, all of which compute it; the one that serves any size is the first."""
    layer = problem.layer
    yield default_tile(layer)
    if phases_on_lanes(layer):
        return
    width = layer.axes[2].positions(problem.output_size[2])
    channels = [c for c in _CHANNELS if c < 2 * layer.out_channels_per_group]
    if layer.out_channels_per_group != 3:
        channels = [c for c in channels if c & (c - 1) == 0]
    for columns, positions in _runs_that_fit(width):
        for rows, count, lanes in itertools.product(_ROWS, channels, _LANES):
            for warps_wide, ahead in _ways_of_reading(layer, rows, lanes, width / (columns * positions)):
                tile = direct_tile(layer, columns, positions, count, rows, 1, lanes, warps_wide, ahead)
                if not is_small(layer, tile) or thread_sums(layer, tile) < _LEAST_SUMS:
                    continue
                warps = runs(problem, tile) * parts(layer, tile)
                splits = _SPLITS if warps < _FEW_WARPS * gpu.multiprocessors else _SPLITS[:1]
                for split in splits:
                    if split > max(1, layer.in_channels_per_group // 4) or split * lanes > 512:
                        continue
                    shared = direct_tile(layer, columns, positions, count, rows, split, lanes, warps_wide, ahead)
                    if shared_bytes(layer, shared) <= min(_SHARED_BYTES, gpu.shared_bytes_per_block):
                        blocks = {blocks_that_fit(layer, shared, optimism) for optimism in _OPTIMISM}
                        yield from (replace(shared, blocks=number) for number in sorted(blocks))


def _runs_that_fit(width: int) -> Iterator[tuple[int, int]]:
    """Columns and positions of runs that waste little of rows of `width` positions, and are as wide as that allows."""
    for positions in _POSITIONS:
        best = 2.0
        # The lanes of a warp would else read many rows, each a little.
        for columns in (c for c in _COLUMNS if c >= min(8 if positions == 1 else 16, width // 2)):
            run = columns * positions
            waste = -(-width // run) * run / width
            if waste < 0.92 * best:
                best = min(best, waste)
                if waste <= _MOST_WASTE or columns == 1:
                    yield columns, positions


def _ways_of_reading(layer: Layer, rows: int, lanes: int, runs_a_row: float) -> Iterator[tuple[int, int]]:
    """Warps side by side in a block's tile, or 0 for reading through the L1 cache; and whether that is done ahead."""
    flat = layer.axes[1].is_trivial
    warps = lanes // _WARP
    if not rows or not flat:
        yield from ((0, 0), (0, 1))
    if rows > 1 and flat:
        return
    if rows:
        wide = (warps,) if flat else (1, 2, 4)
        yield from ((w, 0) for w in wide if w <= warps and (w == 1 or flat or w < 2 * runs_a_row))


@lru_cache(maxsize=1024)
def _chosen(problem: Problem, gpu: Gpu) -> tuple[DirectTile, Cost, int]:
    """The tile of the lowest predicted cost, that cost, and how many were tried."""
    tiles = dict.fromkeys(candidates(problem, gpu))
    costs = {tile: predict(problem, tile, gpu) for tile in tiles}
    best = min(tiles, key=lambda tile: costs[tile].seconds)
    return best, costs[best], len(tiles)


def representative(problem: Problem) -> Problem:
    """A problem of about the same sizes that stands for many, so that not every size has a kernel of its own."""
    most, alike = _ALIKE[0], _ALIKE[1][problem.layer.spatial_dims]

    def rounded(size: int, limit: int) -> int:
        unit = 1 << max(0, size.bit_length() - 3)
        return min(limit, -(-size // unit) * unit)

    depth, height, width = (rounded(size, alike) for size in problem.input_size)
    return Problem(problem.layer, rounded(problem.batch, most), (depth, height, width), problem.output_padding)


def _reasons(problem: Problem, tile: DirectTile, cost: Cost, tried: int, wide: bool) -> tuple[str, ...]:
    layer = problem.layer
    width = layer.axes[2]
    lines = [
        f"{problem.batch * _positions(problem)} positions x {math.prod(layer.stride)} phases; "
        f"a warp has {run_rows(tile)} x {tile.columns * tile.positions} positions (rows x columns), "
        f"{tile.rows} such rows deep",
        f"{width.phases_with_taps} of {width.stride} column phases have taps: they lie "
        + ("across the lanes of a warp" if tile.phase_lanes > 1 else "in the registers of a thread")
        + (", with all row phases" if tile.stacked else ""),
        f"{thread_sums(layer, tile)} sums a thread, {tile.channels} output channels",
        "weights stay in shared memory" if resident(layer, tile) else "weights pass through shared memory in stages",
    ]
    if tile.warps_wide:
        columns = tile.warps_wide * tile.columns * tile.positions
        lines.append(f"inputs of {tile_rows(tile)} x {columns} positions pass through shared memory in stages")
    if tile.splits > 1:
        lines.append(f"{tile.splits} sets of warps share the input channels")
    if tried > 1:
        limits = ", ".join(f"{name} {seconds * 1e3:.3f}" for name, seconds in vars(cost).items())
        lines.append(
            f"first of {tried} tiles by the model, for sizes like these: {cost.seconds * 1e3:.3f} ms ({limits})"
        )
    return (*lines, *(["64-bit positions"] if wide else []))


def _positions(problem: Problem) -> int:
    axes = zip(problem.layer.axes, problem.output_size, strict=True)
    return math.prod(axis.positions(size) for axis, size in axes)
