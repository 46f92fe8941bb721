"""The block tiles of inputs of `col2im` and `col2im_wgmma`, and how they are copied.

`aligned` says that the outputs of a position begin at a multiple of the stride (`Col2imSpan` of the headers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tconv.planner.col2im.block import COPY_BYTES
from tconv.planner.col2im.shape import overlap, spans
from tconv.planner.col2im.tile import BlockTile
from tconv.planner.numbers import Array, least
from tconv.problem import Problem

#: How many taps of an output are tried for each that has an input at most: beyond, the family has no tiles.
MOST_IN_VAIN = 4
#: A thread divides numbers below this (`QuickDivisor` of the headers): outputs of a block.
_MOST_OUTPUTS = 2**21
#: Of the inputs of block tiles that overlap, how many are multiplied for each that there is.
_MOST_REPEATED = 2.5
#: Bytes of an asynchronous copy at least.
LEAST_COPY = 4


@dataclass(frozen=True)
class InputCopies:
    """How inputs are copied; tiles say more of these numbers."""

    patch_positions: int
    runs: int
    inputs_last: int


def copies_of(
    problem: Problem, block_tile: BlockTile, aligned: bool, inputs_last: bool, shortest: int = LEAST_COPY
) -> InputCopies:
    """The largest copies that the sizes of `problem` allow.

    Args:
        inputs_last: the channels of a position lie together.
        shortest: bytes of a copy below which runs are copied instead, where inputs lie in runs.
    """
    if inputs_last or math.prod(problem.input_size) == 1:
        return InputCopies(1, 0, 1)
    columns = _patch_positions(problem, block_tile, aligned)
    if columns * problem.layer.item_bytes < shortest and _lies_in_runs(problem, block_tile):
        return InputCopies(1, 1, 0)
    return InputCopies(columns, 0, 0)


def copies_fit(problem: Problem, tile: Any, aligned: bool, prepared: bool = False) -> bool:
    """Whether the copies of `tile` suit the sizes of `problem`, and a block has all inputs of its outputs, and few.

    Args:
        prepared: a kernel before brings the inputs into the order of ``inputs_last``.
    """
    block_tile = tile.block_tile
    sizes = (block_tile.depths, block_tile.rows, block_tile.columns)
    has_all = all(
        size > shared or inputs <= size
        for shared, inputs, size in zip(overlaps(problem, aligned), problem.input_size, sizes, strict=True)
    )
    if not has_all or not has_few_outputs(problem, tile):
        return False
    if tile.inputs_last:
        return bool(tile.channels_last) or prepared or math.prod(problem.input_size) == 1
    if tile.runs:
        return _lies_in_runs(problem, block_tile)
    return _patch_positions(problem, block_tile, aligned) % tile.patch_positions == 0


def block_tiles(
    problem: Problem,
    positions: Sequence[int],
    aligned: bool,
    *,
    long_rows: bool = False,
    whole_rows: bool = False,
    many: bool = False,
) -> Iterator[BlockTile]:
    """Of about so many positions: whole images, whole rows, or parts of them.

    Args:
        long_rows: parts of rows may have 64 columns, too.
        whole_rows: rows of up to 64 columns are not divided.
        many: also those of fewer rows, and of several slabs of such rows.
    """
    depth, height, width = problem.input_size
    for count in positions:
        limits = (count, 64) if whole_rows and width <= 64 else (count, 8, 16, 32, 64)
        for columns in {min(width, limit) for limit in limits}:
            if columns > count or (columns == 64 < min(width, count) and not long_rows):
                continue
            if columns < width <= 64 and whole_rows:
                continue
            most_rows = min(height, max(1, count // columns))
            for rows in {most_rows, min(most_rows, 4), min(most_rows, 8)} if many else {most_rows}:
                depths = min(depth, max(1, count // (columns * rows))) if many or rows == height else 1
                whole = (depths, rows, columns) == problem.input_size
                images = min(problem.batch, max(1, count // (depths * rows * columns))) if whole else 1
                block_tile = BlockTile(images, depths, rows, columns)
                if _repeated(problem, block_tile, aligned) <= _MOST_REPEATED:
                    yield block_tile


def has_few_outputs(problem: Problem, tile: Any) -> Array:
    """Whether a block of one tile, or of many, has no more outputs than a thread can number.

    The last block has those behind its inputs, too.
    """
    count = tile.channels * tile.block_tile.images
    sizes = (tile.block_tile.depths, tile.block_tile.rows, tile.block_tile.columns)
    axes = zip(problem.layer.axes, problem.input_size, problem.output_size, sizes, strict=True)
    for axis, inputs, outputs, size in axes:
        count = count * least(outputs, (size + 1) * axis.stride + max(0, outputs - inputs * axis.stride))
    return count < _MOST_OUTPUTS


def overlaps(problem: Problem, aligned: bool) -> tuple[int, int, int]:
    """Inputs that neighbouring block tiles have in common on each axis."""
    depth, height, width = problem.layer.axes
    return overlap(depth), overlap(height), overlap(width, aligned)


def in_vain(problem: Problem) -> float:
    """How many taps of an output are tried for each that has an input, where maps are smaller than kernels."""
    axes = zip(problem.layer.axes, problem.input_size, strict=True)
    return math.prod(axis.taps_per_phase / min(axis.taps_per_phase, size) for axis, size in axes)


def _repeated(problem: Problem, block_tile: BlockTile, aligned: bool) -> float:
    """How many inputs block tiles have for each that there is; infinite where one would lack inputs of its outputs."""
    repeated = -(-problem.batch // block_tile.images) * block_tile.images / problem.batch
    sizes = (block_tile.depths, block_tile.rows, block_tile.columns)
    all_shared = overlaps(problem, aligned)
    for axis, inputs, size, shared in zip(problem.layer.axes, problem.input_size, sizes, all_shared, strict=True):
        if size <= shared and size < inputs:
            return math.inf
        repeated *= spans(axis, inputs, size, 1, shared) * size / inputs
    return repeated


def _patch_positions(problem: Problem, block_tile: BlockTile, aligned: bool) -> int:
    """Neighbouring inputs that may be copied at once: 16 bytes at most, of one row, or of a whole image."""
    depth, height, width = problem.input_size
    shared = overlaps(problem, aligned)[2]
    whole = (block_tile.depths, block_tile.rows, block_tile.columns) == problem.input_size
    run = depth * height * width if whole else math.gcd(width, block_tile.columns)
    together = math.gcd(run, COPY_BYTES // problem.layer.item_bytes)
    # Blocks begin at multiples of that, and the next one where this one's own inputs end.
    while not whole and block_tile.columns < width and block_tile.columns - shared < together:
        together //= 2
    return together


def _lies_in_runs(problem: Problem, block_tile: BlockTile) -> bool:
    """Whether a block's inputs of a channel of an image lie side by side: whole rows, whole slabs."""
    _, height, width = problem.input_size
    rows_alone = block_tile.columns == width and (block_tile.depths == 1 or block_tile.rows == height)
    return rows_alone or (block_tile.depths == 1 and block_tile.rows == 1)
