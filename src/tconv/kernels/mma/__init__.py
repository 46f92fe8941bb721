"""Instances of the `mma` family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tconv.kernels.cases import CASES, IN_EVERY_PRECISION, Instance
from tconv.planner import Kernel, MmaTile
from tconv.planner.mma import equivalent_layer, why_not_mma
from tconv.planner.mma.builder import (
    LEAST_SHARED_BYTES,
    can_copy,
    can_stay,
    finished,
    has_gaps,
    holds_inputs,
    mma_tile,
    row_channels,
    taps_together,
    with_pipeline,
    with_resident_weights,
)
from tconv.planner.mma.shape import MmaShape
from tconv.planner.shifts import together
from tconv.problem import PRECISIONS, Layer, Precision

#: What the templates read from their parameters, and which values behave differently.
AXES: dict[str, str] = {
    "Layer::Element": "float, Half, BFloat16; double in fewer cases",
    "Layer::Index": "int, long long",
    "Layer::Depth": "trivial, strided, dilated",
    "Layer::Height": "trivial, strided, dilated",
    "Layer::Width": "k = m*s, other k; dilation with and without a stride; few and many phases and taps",
    "Layer::groups": "1, several, depthwise",
    "Layer::group_in_channels": "1, few, a whole number of k-tiles and not",
    "Layer::group_out_channels": "1, a full tile, a partial tile, several blocks",
    "Layer::weights_last": "both: twins in `instances`",
    "Layer::has_bias": "both",
    "Layer::has_program": "both: `instances.programmed`",
    "Layer::rounding": "none, ties to even, ties away",
    "Tile::Warps::high": "1 and 2",
    "Tile::Warps::wide": "1 and 2",
    "Tile::Warps::splits": "1 and several",
    "Tile::Warps::row_tiles": "all phases of some channels, or a part of them",
    "Tile::Warps::position_tiles": "2 and 4",
    "Tile::channels": "1 to 16",
    "Tile::BlockTile::images": "1 and several",
    "Tile::BlockTile::depths": "1 and several",
    "Tile::BlockTile::rows": "1 and several",
    "Tile::BlockTile::columns": "even and odd",
    "Tile::Pipeline::k_tile_steps": "1 and 2",
    "Tile::Pipeline::k_tile_shifts": "1, all, a part that divides them or not",
    "Tile::BlockTile::depth_origin": "0 and more",
    "Tile::BlockTile::row_origin": "0 and more",
    "Tile::BlockTile::origin": "0 and more",
    "Tile::channels_last": "both; channels in whole vectors and not",
    "Tile::Pipeline::patch_columns": "1 to 8; rows of the halo that begin and end within a patch",
    "Tile::Pipeline::copied": "none, 1 stage to 4; rounded, of two words, transposed from 16-bit items",
    "Tile::Pipeline::resident": "both",
    "Tile::blocks": "1 and several, which share what resident weights leave to do",
    "Tile::taps_together": "1, all, a part; loaded 2 to 16 bytes at a time",
    "Tile::gaps": "both",
}

_TURNS = tuple(precision for precision in PRECISIONS if precision != "fp64")
_WITH_WIDE_INDEX = ("1d-k4-s2", "2d-k3-s1")
#: Cases whose inputs are copied, too, and in which precisions; 16-bit ones need aligned rows and no shift along them.
_COPIED: dict[str, tuple[Precision, ...]] = {
    "2d-k2-s2-aligned": ("tf32", "fp16", "bf16", "fp64"),
    "2d-k3x2-s2x2-aligned": ("tf32_rna", "fp16"),
    "1d-k3-s3-aligned": ("tf32", "bf16"),
    "2d-dense": ("tf32", "fp64"),
    "2d-k3-s2-aligned": ("tf32_rna",),
    "2d-staged": ("tf32",),
    "1d-k16-s8-full": ("tf32_rna",),
    "3d-k3x5x7-grouped": ("tf32",),
}


def instances() -> Iterator[Instance]:
    """Every case with some of the tiles that suit it, some with 64-bit positions."""
    for number, (name, case) in enumerate(CASES.items()):
        every = name in IN_EVERY_PRECISION
        for precision in PRECISIONS if every else (_TURNS[number % len(_TURNS)],):
            problem = case.problem(precision)
            layer = equivalent_layer(problem)
            if why_not_mma(layer) is not None:
                continue
            tiles = _tiles(layer, together(problem))
            if not tiles:
                continue
            others = ("last", "split", "resident")
            whole = [width for width in tiles if width not in others]
            turns = [whole[number % len(whole)], others[number % 3]]
            if every:
                turns = [*whole, *(others if precision in ("fp32", "fp16", "fp64") else ())]
            for width in filter(tiles.__contains__, turns):
                yield Instance(f"mma-{name}-{precision}-{width}", problem, Kernel("mma", layer, tiles[width]))
            if name in _WITH_WIDE_INDEX and precision == _TURNS[-1]:
                wide = Kernel("mma", layer, tiles["high"], wide_index=True)
                yield Instance(f"mma-{name}-{precision}-wide_index", problem, wide)
        for precision in _COPIED.get(name, ()):
            problem = case.problem(precision)
            layer = equivalent_layer(problem)
            for width, tile in _copied_tiles(layer, together(problem)).items():
                yield Instance(f"mma-{name}-{precision}-{width}", problem, Kernel("mma", layer, tile))


def _copied_tiles(layer: Layer, most_together: int) -> dict[str, MmaTile]:
    """Those of `_tiles` whose inputs can be copied, with some number of stages, at most as many as k-tiles."""
    found = {}
    for stages, (width, tile) in enumerate(_tiles(layer, most_together).items(), 1):
        patched = with_pipeline(tile, patch_columns=math.gcd(most_together, tile.block_tile.columns))
        if can_copy(layer, patched, most_together):
            most = 4 if tile.pipeline.resident else min(4, MmaShape(layer, tile).k_tiles)
            found[f"copied-{width}"] = with_pipeline(patched, copied=min(max(2, stages), most))
    return found


def _tiles(layer: Layer, most_together: int) -> dict[str, MmaTile]:
    """By name: a warp with all phases, if they fit, on a flat block tile; blocks of several warps that share them."""
    phases = -(-math.prod(layer.stride) * row_channels(layer) // 16)
    deep, tall = (int(not axis.is_trivial) for axis in layer.axes[:2])
    width = layer.axes[2]
    make = partial(_tile, layer)
    tiles = {
        "flat": make((1, 1), phases if phases <= 8 else 2, 4, (1, 1, 1, 32)),
        "high": make((2, 1), 2, 4, (1, 1 + deep, 1 + tall, 5), k_tile_steps=2, origin=width.padding % width.stride),
        "wide": with_pipeline(
            make((1, 2), phases if phases <= 8 else 1, 2, (2, 1 + deep, 1, 6 - 2 * deep)), k_tile_shifts=2
        ),
        "last": make((1, 2), 2, 2, (1, 1, 1, 16), k_tile_steps=2, channels_last=True),
        "split": make((1, 1), 2, 2, (1, 1, 1, 16), splits=3),
    }
    flat = make((1, 2), 2, 2, (1, 1, 1, 16))
    if can_stay(MmaShape(layer, flat)):
        resident = with_resident_weights(layer, flat)
        if MmaShape(layer, resident).shared_bytes <= LEAST_SHARED_BYTES:
            tiles["resident"] = replace(resident, blocks=2)
    if most_together > 1:
        patched = make((2, 1), 2, 4, (1, 1, 1 + tall, 16))
        tiles["patched"] = with_pipeline(patched, patch_columns=most_together)
    # Sizes are small here, for which one tap a thread would do, and one copy of all weights.
    for name, threads in (("high", 1), ("wide", 300), ("last", 1), ("split", 1)):
        tiles[name] = replace(tiles[name], taps_together=taps_together(layer, threads))
        tiles[name] = replace(tiles[name], gaps=int(has_gaps(MmaShape(layer, tiles[name]), 0)))
    return {name: tile for name, tile in tiles.items() if holds_inputs(MmaShape(layer, tile))}


def _tile(
    layer: Layer,
    warps: tuple[int, int],
    row_tiles: int,
    position_tiles: int,
    block_tile: tuple[int, int, int, int],
    k_tile_steps: int = 1,
    origin: int = 0,
    channels_last: bool = False,
    splits: int = 1,
) -> MmaTile:
    high, wide = warps
    plain = mma_tile(
        layer,
        high=high,
        wide=wide,
        row_tiles=row_tiles,
        position_tiles=position_tiles,
        block_tile=block_tile,
        k_tile_steps=k_tile_steps,
        origin=origin,
        channels_last=channels_last,
        splits=splits,
    )
    return finished(layer, plain)
