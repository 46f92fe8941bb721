"""The axes along which kernels are instantiated, and a set of instances that reaches every value of each.

Tests compile all instances for every arch and run them in the emulator; on a GPU they are compared with the emulator.
A new template parameter must be listed in `AXES` (a test reads the headers), and a new case of an old one in `_CASES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tconv.planner.direct_tile import default_tile, direct_tile, is_small, phases_on_lanes
from tconv.planner.mma import equivalent, together, why_not_mma
from tconv.planner.mma_shape import chunks, shared_bytes
from tconv.planner.mma_tile import (
    LEAST_SHARED_BYTES,
    can_copy,
    has_gaps,
    holds_inputs,
    mma_tile,
    row_channels,
    taps_together,
    with_resident_weights,
)
from tconv.planner.plan import DirectTile, Family, Kernel, MmaTile
from tconv.problem import PRECISIONS, Layer, Precision, Problem, Triple

#: What the templates of a family read from their parameters, and which values behave differently.
AXES: dict[Family, dict[str, str]] = {
    "direct": {
        "Layer::Element": "float, double, Half, BFloat16",
        "Layer::Index": "int, long long",
        "Layer::Depth": "trivial, strided, dilated",
        "Layer::Height": "trivial, strided, dilated, phases without taps",
        "Layer::Width": "k = m*s, k < s, other k; dilation with and without a common factor; many phases, many taps",
        "Layer::spatial_dims": "1, 2, 3",
        "Layer::groups": "1, several, depthwise",
        "Layer::group_in_channels": "1, few, more than a stage holds",
        "Layer::group_out_channels": "1, a full tile, a partial tile, several tiles",
        "Layer::has_bias": "both",
        "Layer::rounding": "none, ties to even, ties away",
        "Tile::position_lanes": "narrow and wide blocks",
        "Tile::phase_lanes": "1 and 32",
        "Tile::splits": "1 and several",
        "Tile::columns": "1 to 32",
        "Tile::positions": "1 and several",
        "Tile::stacked": "one row phase at a time or all of height",
        "Tile::rows": "1 and several",
        "Tile::warps_wide": "inputs through L1, or of a tile 1 or 2 warps wide",
        "Tile::channels": "1 to 16",
        "Tile::phases": "1 to 16",
        "Tile::chunk_rows": "one row tap or all",
        "Tile::chunk_channels": "all or some input channels",
        "Tile::chunk_taps": "all or some taps",
        "Tile::unroll": "1 and more; also where it does not divide the input channels",
        "Tile::ahead": "both",
        "Tile::origin": "0 and more",
        "Tile::row_origin": "0 and more",
    },
    "mma": {
        "Layer::Element": "float, Half, BFloat16; double in fewer cases",
        "Layer::Index": "int, long long",
        "Layer::Depth": "trivial, strided, dilated",
        "Layer::Height": "trivial, strided, dilated",
        "Layer::Width": "k = m*s, other k; dilation with and without a stride; few and many phases and taps",
        "Layer::groups": "1, several, depthwise",
        "Layer::group_in_channels": "1, few, a whole number of chunks and not",
        "Layer::group_out_channels": "1, a full tile, a partial tile, several blocks",
        "Layer::has_bias": "both",
        "Layer::rounding": "none, ties to even, ties away",
        "Tile::warps_high": "1 and 2",
        "Tile::warps_wide": "1 and 2",
        "Tile::splits": "1 and several",
        "Tile::row_tiles": "all phases of some channels, or a part of them",
        "Tile::position_tiles": "2 and 4",
        "Tile::channels": "1 to 16",
        "Tile::box_images": "1 and several",
        "Tile::box_depths": "1 and several",
        "Tile::box_rows": "1 and several",
        "Tile::box_columns": "even and odd",
        "Tile::chunk_steps": "1 and 2",
        "Tile::chunk_shifts": "1, all, a part that divides them or not",
        "Tile::depth_origin": "0 and more",
        "Tile::row_origin": "0 and more",
        "Tile::origin": "0 and more",
        "Tile::channels_last": "both; channels in whole vectors and not",
        "Tile::patch_columns": "1 to 8; rows of the halo that begin and end within a patch",
        "Tile::copied": "none, 1 stage to 4; rounded, of two words, turned from 16-bit items",
        "Tile::resident": "both",
        "Tile::taps_together": "1, all, a part; loaded 2 to 16 bytes at a time",
        "Tile::gaps": "both",
    },
}


@dataclass(frozen=True)
class Instance:
    """A kernel and a small problem that it solves."""

    name: str
    problem: Problem
    kernel: Kernel[Any]


def instances(family: Family = "direct") -> Iterator[Instance]:
    """All instances of `family`: every case with some of the tiles that suit it, some with 64-bit positions."""
    return _direct_instances() if family == "direct" else _mma_instances()


def _direct_instances() -> Iterator[Instance]:
    for number, (name, case) in enumerate(_CASES.items()):
        precisions = PRECISIONS if name in _IN_EVERY_PRECISION else (PRECISIONS[number % len(PRECISIONS)],)
        for precision in precisions:
            problem = case.problem(precision)
            for width, tile in _tiles(problem.layer, number, every=name in _WITH_EVERY_TILE).items():
                yield Instance(f"{name}-{precision}-{width}", problem, Kernel("direct", problem.layer, tile))
        if name in _WITH_WIDE_INDEX:
            tiles = _tiles(problem.layer, number, every=True)
            wide = Kernel("direct", problem.layer, tiles.get("tiled", tiles["narrow"]), wide_index=True)
            yield Instance(f"{name}-{precision}-wide_index", problem, wide)


def _mma_instances() -> Iterator[Instance]:
    for number, (name, case) in enumerate(_CASES.items()):
        every = name in _IN_EVERY_PRECISION
        for precision in PRECISIONS if every else (_TURNS_OF_MMA[number % len(_TURNS_OF_MMA)],):
            problem = case.problem(precision)
            layer = equivalent(problem)
            if why_not_mma(layer) is not None:
                continue
            tiles = _mma_tiles(layer, together(problem))
            if not tiles:
                continue
            others = ("last", "split", "resident")
            whole = [width for width in tiles if width not in others]
            turns = [whole[number % len(whole)], others[number % 3]]
            if every:
                turns = [*whole, *(others if precision in ("fp32", "fp16", "fp64") else ())]
            for width in filter(tiles.__contains__, turns):
                yield Instance(f"mma-{name}-{precision}-{width}", problem, Kernel("mma", layer, tiles[width]))
            if name in _WITH_WIDE_INDEX_OF_MMA and precision == _TURNS_OF_MMA[-1]:
                wide = Kernel("mma", layer, tiles["high"], wide_index=True)
                yield Instance(f"mma-{name}-{precision}-wide_index", problem, wide)
        for precision in _COPIED.get(name, ()):
            problem = case.problem(precision)
            layer = equivalent(problem)
            for width, tile in _copied_tiles(layer, together(problem)).items():
                yield Instance(f"mma-{name}-{precision}-{width}", problem, Kernel("mma", layer, tile))


def _copied_tiles(layer: Layer, most_together: int) -> dict[str, MmaTile]:
    """Those of `_mma_tiles` whose inputs can be copied, with some number of stages, at most as many as chunks."""
    found = {}
    for stages, (width, tile) in enumerate(_mma_tiles(layer, most_together).items(), 1):
        patched = replace(tile, patch_columns=math.gcd(most_together, tile.box_columns))
        if can_copy(layer, patched, most_together):
            most = 4 if tile.resident else min(4, chunks(layer, tile))
            found[f"copied-{width}"] = replace(patched, copied=min(max(2, stages), most))
    return found


def _mma_tiles(layer: Layer, most_together: int) -> dict[str, MmaTile]:
    """By name: a warp with all phases, if they fit, on a flat box; and blocks of several warps with a part of them."""
    phases = -(-math.prod(layer.stride) * row_channels(layer) // 16)
    deep, tall = (int(not axis.is_trivial) for axis in layer.axes[:2])
    width = layer.axes[2]
    tiles = {
        "flat": mma_tile(layer, (1, 1), phases if phases <= 8 else 2, 4, (1, 1, 1, 32), 1, 0),
        "high": mma_tile(layer, (2, 1), 2, 4, (1, 1 + deep, 1 + tall, 5), 2, width.padding % width.stride),
        "wide": replace(
            mma_tile(layer, (1, 2), phases if phases <= 8 else 1, 2, (2, 1 + deep, 1, 6 - 2 * deep), 1, 0),
            chunk_shifts=2,
        ),
        "last": mma_tile(layer, (1, 2), 2, 2, (1, 1, 1, 16), 2, 0, channels_last=1),
        "split": mma_tile(layer, (1, 1), 2, 2, (1, 1, 1, 16), 1, 0, splits=3),
    }
    resident = with_resident_weights(layer, mma_tile(layer, (1, 2), 2, 2, (1, 1, 1, 16), 1, 0))
    if resident and shared_bytes(layer, resident) <= LEAST_SHARED_BYTES:
        tiles["resident"] = replace(resident, blocks=2)
    if most_together > 1:
        patched = mma_tile(layer, (2, 1), 2, 4, (1, 1, 1 + tall, 16), 1, 0)
        tiles["patched"] = replace(patched, patch_columns=most_together)
    # Sizes are small here, for which one tap a thread would do, and one copy of all weights.
    for name, threads in (("high", 1), ("wide", 300), ("last", 1), ("split", 1)):
        tiles[name] = replace(tiles[name], taps_together=taps_together(layer, threads))
        tiles[name] = replace(tiles[name], gaps=int(has_gaps(layer, tiles[name], 0)))
    return {name: tile for name, tile in tiles.items() if holds_inputs(layer, tile)}


def _tiles(layer: Layer, number: int, every: bool) -> dict[str, DirectTile]:
    """By name: a tile for narrow maps, and those others whose turn it is and whose sums fit a thread."""
    if phases_on_lanes(layer):
        return {"narrow": direct_tile(layer, 1, 2, 2, splits=2, lanes=64), "wide": default_tile(layer)}
    others = {
        "wide": default_tile(layer),
        "stacked": direct_tile(layer, 16, 2, 2, rows=1, splits=2, lanes=64, ahead=1),
        "tiled": direct_tile(layer, 8, 1, 2, rows=2, lanes=128, warps_wide=2),
        "split": direct_tile(layer, 32, 1, 2, rows=2, splits=4, lanes=32, warps_wide=1),
    }
    fit = {name: tile for name, tile in others.items() if is_small(layer, tile)}
    turns = list(fit) if every else [list(fit)[number % len(fit)], list(fit)[(number + 1) % len(fit)]]
    return {"narrow": direct_tile(layer, 8, 1, 1, lanes=64)} | {name: fit[name] for name in turns}


@dataclass(frozen=True)
class _Case:
    channels: tuple[int, int]
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = False
    batch: int = 2

    def problem(self, precision: Precision) -> Problem:
        dims = len(self.size)

        def triple(values: tuple[int, ...], missing: int) -> Triple:
            depth, height, width = (missing,) * (3 - len(values)) + values
            return depth, height, width

        layer = Layer(
            dims,
            *self.channels,
            triple(self.kernel, 1),
            triple(self.stride, 1),
            triple(self.padding, 0),
            triple(self.dilation, 1),
            self.groups,
            self.bias,
            precision,
        )
        return Problem(layer, self.batch, triple(self.size, 1), triple(self.output_padding, 0))


_IN_EVERY_PRECISION = ("2d-k3-s5-d2", "1d-k4-s2", "1d-k64-s32", "2d-k3-s1", "2d-k3-s2-op1", "2d-k3-s2-aligned")
_TURNS_OF_MMA = tuple(precision for precision in PRECISIONS if precision != "fp64")
_WITH_EVERY_TILE = ("2d-k3-s5-d2", "2d-k4-s2-depthwise", "2d-asymmetric-grouped", "3d-k3x5x7-grouped")
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
_WITH_WIDE_INDEX_OF_MMA = ("1d-k4-s2", "2d-k3-s1")
_WITH_WIDE_INDEX = ("2d-k3-s5-d2", "1d-k64-s32", "3d-k3x5x7-grouped")

_CASES: dict[str, _Case] = {
    "2d-k3-s5-d2": _Case((4, 10), (7, 9), (3, 3), (5, 5), (1, 1), (2, 2), bias=True),
    "1d-k4-s2": _Case((6, 5), (37,), (4,), (2,), (1,), bias=True),
    "1d-k64-s32": _Case((3, 2), (9,), (64,), (32,), (7,), bias=True),
    "2d-k3-s1": _Case((5, 9), (6, 35), (3, 3), (1, 1), (1, 1)),
    "1d-k1-s1": _Case((3, 4), (33,), (1,), (1,)),
    "1d-k1-s3": _Case((3, 4), (11,), (1,), (3,), output_padding=(2,), bias=True),
    "1d-k2-s7": _Case((2, 3), (10,), (2,), (7,), output_padding=(6,), bias=True),
    "1d-k2-s3-p5": _Case((2, 3), (12,), (2,), (3,), (5,), output_padding=(2,)),
    "1d-k16-s8": _Case((5, 6), (11,), (16,), (8,), (4,), bias=True),
    "1d-k20-s10": _Case((3, 5), (9,), (20,), (10,), (5,)),
    "1d-k5-s1-d3": _Case((3, 3), (20,), (5,), (1,), (6,), (3,), (2,)),
    "1d-k7-s6-d4": _Case((4, 3), (13,), (7,), (6,), (2,), (4,), (3,), bias=True),
    "1d-k50-s48-d4": _Case((2, 2), (4,), (50,), (48,), (3,), (4,), (5,), bias=True),
    "1d-k50-s72-d4": _Case((2, 3), (4,), (50,), (72,), (3,), (4,), (9,), bias=True),
    "1d-k90-s40-d3": _Case((2, 1), (5,), (90,), (40,), (11,), (3,)),
    "1d-k600-s1": _Case((2, 3), (40,), (600,), (1,)),
    "1d-k1000-s100": _Case((3, 1), (3,), (1000,), (100,), bias=True),
    "1d-k2-s200": _Case((2, 5), (5,), (2,), (200,), (100,), bias=True),
    "2d-k2-s2": _Case((8, 6), (5, 7), (2, 2), (2, 2), bias=True),
    "2d-k3-s2-op1": _Case((7, 4), (5, 6), (3, 3), (2, 2), (1, 1), (), (1, 1)),
    "2d-k4-s2-depthwise": _Case((6, 6), (6, 9), (4, 4), (2, 2), (1, 1), groups=6),
    "2d-k4-s2-multiplier": _Case((3, 6), (5, 5), (4, 4), (2, 2), (1, 1), groups=3, bias=True),
    "2d-asymmetric-grouped": _Case((52, 12), (7, 8), (3, 5), (2, 3), (1, 2), (2, 1), (1, 2), groups=4),
    "2d-k9-s4-one": _Case((9, 1), (4, 5), (9, 9), (4, 4), (4, 4), (), (3, 3), bias=True),
    "2d-rows-only": _Case((3, 4), (6, 7), (3, 1), (2, 1), (1, 0)),
    "2d-columns-only": _Case((3, 4), (6, 7), (1, 3), (1, 2), (0, 1)),
    "2d-many-row-phases": _Case((3, 5), (3, 8), (1, 3), (70, 2), (2, 1), bias=True),
    "2d-op-beyond-stride": _Case((2, 3), (5, 6), (2, 3), (2, 1), (1, 1), (5, 3), (4, 2)),
    "2d-many-out": _Case((3, 70), (3, 5), (2, 2), (2, 2), bias=True),
    "2d-many-in": _Case((700, 3), (3, 4), (3, 3), (2, 2), (1, 1), batch=1),
    "2d-staged": _Case((330, 40), (3, 4), (4, 4), (2, 2), (1, 1), bias=True, batch=1),
    "1d-k40-s20-staged": _Case((300, 40), (5,), (40,), (20,), (10,), batch=1),
    "2d-dense": _Case((40, 40), (5, 6), (3, 3), (1, 1), (1, 1), bias=True, batch=1),
    "2d-one-pixel": _Case((20, 18), (1, 1), (4, 4), (1, 1)),
    "3d-k2-s2": _Case((4, 3), (3, 4, 5), (2, 2, 2), (2, 2, 2), bias=True),
    "3d-k3x5x7-grouped": _Case((8, 8), (3, 4, 5), (3, 5, 7), (2, 2, 2), (1, 2, 3), (), (1, 1, 1), groups=4),
    "3d-k1x3x3": _Case((4, 3), (3, 4, 4), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    "2d-k3-s2-odd": _Case((7, 4), (5, 6), (3, 3), (2, 2), (1, 1)),
    "3d-dilated-depth": _Case((2, 3), (4, 3, 3), (3, 2, 2), (2, 3, 1), (1, 1, 0), (3, 2, 2), (2, 1, 1), bias=True),
    "2d-k3-s2-aligned": _Case((19, 6), (3, 24), (3, 3), (2, 2), (1, 1), (), (1, 1), bias=True),
    "2d-k3-s2-many-out": _Case((9, 20), (4, 5), (3, 3), (2, 2), (1, 1), bias=True),
    "2d-k4-s2-full": _Case((20, 16), (4, 5), (4, 4), (2, 2), (1, 1), bias=True, batch=1),
    "1d-k20-s10-full": _Case((9, 16), (5,), (20,), (10,), (5,), batch=1),
    "1d-k16-s8-full": _Case((20, 16), (5,), (16,), (8,), (4,), batch=1),
    "2d-k2-s2-aligned": _Case((70, 6), (3, 16), (2, 2), (2, 2), bias=True),
    "2d-k3x2-s2x2-aligned": _Case((40, 16), (3, 24), (3, 2), (2, 2), (1, 0)),
    "1d-k3-s3-aligned": _Case((35, 5), (40,), (3,), (3,), bias=True),
}
