"""Instances of the `direct` family."""

from __future__ import annotations

from collections.abc import Iterator

from tconv.kernels.cases import CASES, IN_EVERY_PRECISION, Instance
from tconv.planner import DirectTile, Kernel
from tconv.planner.direct.builder import default_tile, direct_tile, is_small, phases_on_lanes
from tconv.problem import PRECISIONS, Layer

#: What the templates read from their parameters, and which values behave differently.
AXES: dict[str, str] = {
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
    "Layer::has_program": "both: `instances.programmed`",
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
    "Tile::k_tile_rows": "one row tap or all",
    "Tile::k_tile_channels": "all or some input channels",
    "Tile::k_tile_taps": "all or some taps",
    "Tile::unroll": "1 and more; also where it does not divide the input channels",
    "Tile::ahead": "both",
    "Tile::origin": "0 and more",
    "Tile::row_origin": "0 and more",
}

_WITH_EVERY_TILE = ("2d-k3-s5-d2", "2d-k4-s2-depthwise", "2d-asymmetric-grouped", "3d-k3x5x7-grouped")
_WITH_WIDE_INDEX = ("2d-k3-s5-d2", "1d-k64-s32", "3d-k3x5x7-grouped")


def instances() -> Iterator[Instance]:
    """Every case with some of the tiles that suit it, some with 64-bit positions."""
    for number, (name, case) in enumerate(CASES.items()):
        precisions = PRECISIONS if name in IN_EVERY_PRECISION else (PRECISIONS[number % len(PRECISIONS)],)
        for precision in precisions:
            problem = case.problem(precision)
            for width, tile in _tiles(problem.layer, number, every=name in _WITH_EVERY_TILE).items():
                yield Instance(f"{name}-{precision}-{width}", problem, Kernel("direct", problem.layer, tile))
        if name in _WITH_WIDE_INDEX:
            tiles = _tiles(problem.layer, number, every=True)
            wide = Kernel("direct", problem.layer, tiles.get("tiled", tiles["narrow"]), wide_index=True)
            yield Instance(f"{name}-{precision}-wide_index", problem, wide)


def _tiles(layer: Layer, number: int, every: bool) -> dict[str, DirectTile]:
    """By name: a tile for narrow maps, and those others whose turn it is and whose accumulators fit a thread."""
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
