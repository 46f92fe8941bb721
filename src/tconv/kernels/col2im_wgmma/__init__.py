"""Instances of the `col2im_wgmma` family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tconv.kernels.cases import CASES, IN_EVERY_PRECISION, Case, Instance
from tconv.planner import Col2imWgmmaTile, Kernel
from tconv.planner.col2im.shape import overlap
from tconv.planner.col2im.tile import BlockTile
from tconv.planner.col2im_wgmma import why_not_col2im_wgmma
from tconv.planner.col2im_wgmma.candidates import col2im_wgmma_tile, may_prepare
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape, of_phases
from tconv.planner.col2im_wgmma.tile import Warpgroups
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
    "Layer::group_in_channels": "1, few, a whole number of k-tiles and not",
    "Layer::group_out_channels": "1, a full block, a partial block, several blocks",
    "Layer::weights_last": "both: twins in `instances`",
    "Layer::has_bias": "both",
    "Tile::BlockTile::images": "1 and several",
    "Tile::BlockTile::depths": "a part of the map, all",
    "Tile::BlockTile::rows": "a part of the map, all",
    "Tile::BlockTile::columns": "a part of the map, all",
    "Tile::channels": "1 to 32: one tile of rows a warpgroup and several",
    "Tile::Warpgroups::high": "1 and 2",
    "Tile::Warpgroups::wide": "1 and 2",
    "Tile::Warpgroups::splits": "1 and several; some without a k-tile",
    "Tile::phases": "all; some: one and several, those of one block and of several channels",
    "Tile::k_tile_steps": "2 and 4; k-tiles that lack channels",
    "Tile::stages": "as many as k-tiles, and fewer",
    "Tile::patch_positions": "1 to 8: copies of 2 bytes to 16",
    "Tile::runs": "both; of one image and of several",
    "Tile::inputs_last": "both; channels in whole copies and not",
    "Tile::channels_last": "both",
    "Tile::prepared_inputs": "both: k-tiles of both lengths, several stages and one",
}
#: Cases with every tile, for loads of every size.
_ALIGNED = ("2d-k2-s2-aligned", "2d-k3x2-s2x2-aligned")
_PRECISIONS: tuple[Precision, ...] = ("tf32", "fp16", "bf16", "tf32_rna")
#: More: stages that go round, blocks of 64 positions, runs of several k-tiles.
_DEEP: dict[str, Case] = {
    "1d-k4-s2-deep": Case((150, 24), (64,), (4,), (2,), (1,), batch=3),
    "1d-k2-s2-deep": Case((170, 30), (75,), (2,), (2,), bias=True),
    "2d-k3-s2-deep": Case((140, 20), (6, 12), (3, 3), (2, 2), (1, 1), output_padding=(1, 1)),
    # One input an axis: each tap is a phase.
    "2d-k5x3-s2-pixel": Case((140, 20), (1, 1), (5, 3), (2, 2), (1, 0), output_padding=(1, 1), bias=True, batch=70),
    "2d-k3x4-s2-row": Case((70, 12), (1, 9), (3, 4), (2, 2), (0, 1), batch=7),
    # Channels in whole vectors, on maps of odd size.
    "1d-k5-s3-vectors": Case((136, 24), (53,), (5,), (3,), (1,), bias=True, batch=3),
    "3d-k2x3x2-s2x1x2-vectors": Case((72, 20), (3, 5, 7), (2, 3, 2), (2, 1, 2), (0, 1, 0), groups=2, batch=2),
    # Padding that is larger than the map.
    "2d-k8-s1-d2-small": Case((40, 5), (3, 11), (8, 9), (1, 1), (4, 0), (2, 1), batch=1),
}
#: Layers whose blocks have some phases alone, so many of them along the width.
_SOME_PHASES: dict[str, tuple[Case, int]] = {
    "1d-k16-s8": (Case((70, 3), (37,), (16,), (8,), (2,), bias=True, batch=2), 4),
    "1d-k24-s6": (Case((40, 5), (21,), (24,), (6,), (4,), output_padding=(3,)), 2),
    "1d-k9-s9": (Case((40, 2), (40,), (9,), (9,), batch=3), 1),
    "1d-k128-s64": (Case((32, 4), (20,), (128,), (64,), (37,), groups=2, bias=True), 32),
    "2d-k3x8-s2x4": (Case((33, 5), (5, 9), (3, 8), (2, 4), (1, 2)), 2),
}
_DEEP_PRECISIONS: tuple[Precision, ...] = ("tf32", "fp16")
#: Large stages that shared memory holds.
_FEW_STAGES = 4
#: Of a block, about.
_POSITIONS, _DEEP_POSITIONS = 64, 160


def instances() -> Iterator[Instance]:
    """Every case with a tile of its own, those of some in every precision; and deep ones."""
    for number, (name, case) in enumerate(CASES.items()):
        every = name in IN_EVERY_PRECISION
        for precision in _PRECISIONS if every else (_PRECISIONS[number % len(_PRECISIONS)],):
            problem = case.problem(precision)
            if why_not_col2im_wgmma(problem.layer, 1) is not None:
                continue
            tiles = list(_tiles(problem, _POSITIONS).items())
            if not every and name not in _ALIGNED:
                prepared = [each for each in tiles if each[1].prepared_inputs]
                others = [each for each in tiles if not each[1].prepared_inputs]
                tiles = [others[number % len(others)], *prepared[number % 2 : number % 2 + 1]]
            for width, tile in tiles:
                yield from _instances(f"{name}-{precision}-{width}", problem, tile)
    for name, case in _DEEP.items():
        for precision in _DEEP_PRECISIONS:
            problem = case.problem(precision)
            for width, tile in _tiles(problem, _DEEP_POSITIONS).items():
                yield from _instances(f"{name}-{precision}-{width}", problem, tile)

    for name, (case, phases) in _SOME_PHASES.items():
        for precision in _DEEP_PRECISIONS:
            problem = case.problem(precision)
            for width, tile in _tiles(problem, _POSITIONS, phases).items():
                yield from _instances(f"{name}-phases-{precision}-{width}", problem, tile)


def _instances(name: str, problem: Problem, tile: Col2imWgmmaTile) -> Iterator[Instance]:
    """The one with that tile; none where it wants more registers than there are, for the planner takes none such."""
    layer = equivalent(problem).layer
    if Col2imWgmmaShape(layer, tile).fits_registers:
        yield Instance(f"col2im_wgmma-{name}", problem, Kernel("col2im_wgmma", layer, tile))


def _tiles(problem: Problem, positions: int, phases: int = 0) -> dict[str, Col2imWgmmaTile]:
    """By name: whole images, as far as they fit; parts of them, which overlap where taps do; in either order."""
    problem = equivalent(problem)
    own = of_phases(problem.layer, phases)
    axes, sizes = own.axes, problem.input_size
    halves = [
        min(size, max(overlap(axis, aligned=True) + 1, -(-size // 2))) for axis, size in zip(axes, sizes, strict=True)
    ]
    taps = math.prod(own.kernel)
    images = 2 if 2 * math.prod(sizes) <= positions else 1
    whole, part = BlockTile(images, *sizes), BlockTile(1, *halves)
    if math.prod(sizes) > positions:
        whole = BlockTile(1, *(min(size, overlap(axis) + 3) for axis, size in zip(axes, sizes, strict=True)))
    # One image more than there is.
    several = replace(whole, images=problem.batch + 1) if images > 1 else whole
    few = 2 * max(1, min(16, 32 // taps))
    made = {
        "whole": (whole, Warpgroups(1, 1, 2), few, 2, ""),
        "part": (part, Warpgroups(1, 1, 1), 1, 4, ""),
        "last": (part, Warpgroups(2, 1, 1), 2 * few, 4, "channels_last"),
        "wide": (several, Warpgroups(1, 2, 2), few, 2, ""),
        "high": (part, Warpgroups(2, 1, 1), 4 * few, 2, ""),
    }
    if may_prepare(problem):
        made["prepared"] = (whole, Warpgroups(1, 1, 2), few, 2, "prepared_inputs")
        made["prepared_wide"] = (part, Warpgroups(1, 2, 1), 2 * few, 4, "prepared_inputs")
    tiles = {
        name: col2im_wgmma_tile(
            problem,
            tile,
            warpgroups=groups,
            channels=channels,
            phases=phases,
            k_tile_steps=steps,
            stages=1,
            channels_last=order == "channels_last",
            prepared_inputs=order == "prepared_inputs",
        )
        for name, (tile, groups, channels, steps, order) in made.items()
    }
    tiles = {name: tile for name, tile in tiles.items() if Col2imWgmmaShape(problem.layer, tile).fits_products}
    # As many stages as k-tiles, or as few as go round.
    for name, tile in tiles.items():
        shape = Col2imWgmmaShape(problem.layer, tile)
        steps = shape.set_k_tiles
        all_at_once = name == "whole" or (name == "prepared_wide" and steps <= _FEW_STAGES)
        tiles[name] = replace(tile, stages=steps if all_at_once else min(1 + shape.stages_read, steps))
    return tiles
