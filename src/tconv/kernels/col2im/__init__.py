"""Instances of the `col2im` family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tconv.kernels.cases import CASES, IN_EVERY_PRECISION, Instance
from tconv.planner import Col2imTile, Kernel
from tconv.planner.col2im import why_not_col2im
from tconv.planner.col2im.candidates import col2im_tile
from tconv.planner.col2im.shape import Col2imShape, overlap
from tconv.planner.col2im.tile import BlockTile, Warps
from tconv.planner.sizes import equivalent
from tconv.problem import Precision, Problem

#: What the templates read from their parameters, and which values behave differently.
AXES: dict[str, str] = {
    "Layer::Element": "float, Half, BFloat16",
    "Layer::spatial_dims": "1, 2 and 3",
    "Layer::Depth": "trivial, strided, dilated",
    "Layer::Height": "trivial, strided, dilated",
    "Layer::Width": "taps that overlap and not; dilation with and without a stride; phases without taps",
    "Layer::groups": "1, several, depthwise",
    "Layer::group_in_channels": "1, few, a whole number of steps and not",
    "Layer::group_out_channels": "1, a full block, a partial block, several blocks",
    "Layer::weights_last": "both: twins in `instances`",
    "Layer::has_bias": "both",
    "Tile::BlockTile::images": "1 and several",
    "Tile::BlockTile::depths": "a part of the map, all",
    "Tile::BlockTile::rows": "a part of the map, all",
    "Tile::BlockTile::columns": "a part of the map, all",
    "Tile::channels": "1 to 8",
    "Tile::Warps::high": "1 and 2",
    "Tile::Warps::wide": "1 and 2",
    "Tile::Warps::splits": "1 and several; some without a step",
    "Tile::k_tile_steps": "1, 2 and 4; k-tiles that lack channels",
    "Tile::stages": "as many as k-tiles, and fewer",
    "Tile::patch_positions": "1 to 8: copies of 2 bytes to 16",
    "Tile::runs": "both; of one image and of several",
    "Tile::inputs_last": "both; channels in whole copies and not",
    "Tile::channels_last": "both",
    "Tile::resident": "both; one step and several, one block tile and several",
    "Tile::blocks": "as many as fit: so many share the block tiles where weights are resident",
}
#: Cases with every tile, for copies of every size.
_ALIGNED = ("2d-k2-s2-aligned", "2d-k3x2-s2x2-aligned")
_PRECISIONS: tuple[Precision, ...] = ("tf32", "fp16", "bf16", "tf32_rna")
#: Of a block, so that a thread has registers for its accumulators.
_MOST_ROWS, _MOST_POSITIONS = 64, 64


def instances() -> Iterator[Instance]:
    """Every case with a tile of its own, those of some in every precision."""
    for number, (name, case) in enumerate(CASES.items()):
        every = name in IN_EVERY_PRECISION
        for precision in _PRECISIONS if every else (_PRECISIONS[number % len(_PRECISIONS)],):
            problem = case.problem(precision)
            own = equivalent(problem)
            if why_not_col2im(own.layer, 1) is not None:
                continue
            tiles = _tiles(own)
            if not every and name not in _ALIGNED:  # one of each kind
                kinds = [[each for each in tiles.items() if each[1].resident == kind] for kind in (0, 1)]
                tiles = dict(of_kind[number % len(of_kind)] for of_kind in kinds)
            for width, tile in tiles.items():
                yield Instance(f"col2im-{name}-{precision}-{width}", problem, Kernel("col2im", own.layer, tile))


def _tiles(problem: Problem) -> dict[str, Col2imTile]:
    """By name: whole images, as far as they fit; parts of them, which overlap where taps do; channels_last ones."""
    axes, sizes = problem.layer.axes, problem.input_size
    halves = [
        min(size, max(overlap(axis, aligned=True) + 1, -(-size // 2))) for axis, size in zip(axes, sizes, strict=True)
    ]
    taps = math.prod(problem.layer.kernel)
    images = 2 if 2 * math.prod(sizes) <= _MOST_POSITIONS else 1
    whole, part = BlockTile(images, *sizes), BlockTile(1, *halves)
    if math.prod(sizes) > _MOST_POSITIONS:
        whole = BlockTile(1, *(min(size, overlap(axis) + 3) for axis, size in zip(axes, sizes, strict=True)))
    # One image more than there is.
    several = replace(whole, images=problem.batch + 1) if images > 1 else whole
    few = max(1, min(4, _MOST_ROWS // taps))
    tiles = {
        "whole": col2im_tile(problem, whole, warps=Warps(1, 1, 2), channels=few, stages=1),
        "part": col2im_tile(problem, part, warps=Warps(1, 1, 1), channels=1, stages=1),
        "last": col2im_tile(problem, part, warps=Warps(2, 1, 3), channels=few, stages=1, channels_last=True),
        "shared": col2im_tile(problem, several, warps=Warps(2, 2, 2), channels=few, stages=1),
    }
    resident = {
        "resident": col2im_tile(problem, part, warps=Warps(1, 1, 2), channels=few, stages=3, resident=True),
        "resident-shared": replace(
            col2im_tile(problem, several, warps=Warps(2, 2, 1), channels=few, stages=2, resident=True), k_tile_steps=2
        ),
        "resident-last": replace(
            col2im_tile(problem, part, warps=Warps(1, 2, 2), channels=few, stages=4, channels_last=True, resident=True),
            k_tile_steps=4,
        ),
    }
    # As many stages as steps, or as few as go round.
    for name, tile in tiles.items():
        steps = Col2imShape(problem.layer, tile).set_k_tiles
        tiles[name] = replace(tile, stages=steps if name == "whole" else min(2, steps))
    return tiles | resident
