"""Instances of the `col2im_rows` family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tconv.kernels.cases import CASES, IN_EVERY_PRECISION, Case, Instance
from tconv.planner import Col2imRowsTile, Gpu, Kernel
from tconv.planner.col2im_rows import why_not_col2im_rows
from tconv.planner.col2im_rows.candidates import copied_inputs
from tconv.planner.col2im_rows.shape import Col2imRowsShape
from tconv.planner.shifts import uncropped_positions
from tconv.problem import Precision, Problem

#: What the templates read from their parameters, and which values behave differently.
AXES: dict[str, str] = {
    "Layer::Element": "float, Half, BFloat16",
    "Layer::Depth": "trivial, strided, dilated",
    "Layer::Height": "trivial, strided, dilated; one shift and several",
    "Layer::Width": "one shift and several; dilation with and without a stride; phases without taps",
    "Layer::groups": "1, several, depthwise",
    "Layer::group_in_channels": "1, few, a whole number of steps and not",
    "Layer::group_out_channels": "1, a full block, a partial block, several blocks",
    "Layer::weights_last": "both: twins in `instances`",
    "Layer::has_bias": "both",
    "Tile::warpgroups": "1 and several; some without a line",
    "Tile::columns": "16 to 128: several lines of a warpgroup, one, and one of two; one strip and several",
    "Tile::rows": "1 and several; ranges that end with the map and beyond",
    "Tile::channels": "all, and a part",
    "Tile::k_tile_steps": "1 and several; one k-tile and several, whole and not",
    "Tile::vector": "1 and 2; copies of 4, 8 and 16 bytes",
    "Tile::input_stages": "none, 2 and 3",
    "Tile::channels_last": "both; loads of 2, 4 and 8 bytes",
}
_PRECISIONS: tuple[Precision, ...] = ("tf32", "fp16", "bf16", "tf32_rna")
#: More: many rows and strips, an even width, a kernel that no stride divides.
_WIDE: dict[str, Case] = {
    "2d-k9-s3-wide": Case((20, 1), (11, 70), (9, 9), (3, 3), (4, 4), output_padding=(1, 0), bias=True, batch=1),
    "2d-k5-s2-wide": Case((33, 2), (9, 37), (5, 5), (2, 2), (2, 1), output_padding=(1, 1), batch=3),
    "2d-k6x4-s2-maps": Case((17, 3), (6, 32), (6, 4), (2, 2), (2, 1), bias=True, batch=5),
    "1d-k10-s2-wide": Case((9, 3), (150,), (10,), (2,), (7,), bias=True),
    "3d-k4-s2-wide": Case((12, 1), (3, 5, 18), (4, 4, 4), (2, 2, 2), (1, 1, 1), bias=True),
    # Padding that is larger than what an input reaches: the first strip begins inside the map.
    "1d-k3-s1-p-large": Case((8, 4), (90,), (3,), (1,), (17,)),
    "2d-k3x5-s1x2-d3x2": Case((32, 2), (7, 40), (3, 5), (1, 2), (2, 3), (3, 2), bias=True, batch=1),
}


def instances() -> Iterator[Instance]:
    """Every case with a tile of its own, those of some in every precision; and wide ones with all tiles."""
    for number, (name, case) in enumerate((CASES | _WIDE).items()):
        every = name in IN_EVERY_PRECISION or name in _WIDE
        for precision in _PRECISIONS if every else (_PRECISIONS[number % len(_PRECISIONS)],):
            problem = case.problem(precision)
            if why_not_col2im_rows(problem.layer) is not None:
                continue
            tiles, last = list(_tiles(problem).items()), list(_tiles_in_channels_last(problem).items())
            if name not in _WIDE:
                tiles, last = [tiles[number % len(tiles)]], last[number % 2 :: 3]
            for width, tile in [*tiles, *last]:
                yield Instance(
                    f"col2im_rows-{name}-{precision}-{width}", problem, Kernel("col2im_rows", problem.layer, tile)
                )


def _tiles(problem: Problem) -> dict[str, Col2imRowsTile]:
    """By name: a line a warpgroup and several, of all rows and of few; k-tiles of all channels and of few; inputs
    through shared memory, if rows have copies."""
    layer = problem.layer
    positions = uncropped_positions(layer.axes[1], problem.output_size[1])
    channels = layer.out_channels_per_group
    steps = Col2imRowsShape(layer, Col2imRowsTile(1, 64, 1, 1, 1, 1, 0, 0, 1)).k_steps
    vector = 2 if problem.input_size[2] % 2 == 0 else 1
    tiles = {
        "narrow": Col2imRowsTile(2, 16, positions, -(-channels // 2), min(2, steps), vector, 0, 0, 2),
        "middle": Col2imRowsTile(1, 32, -(-positions // 2), channels, min(3, steps), 1, 0, 0, 1),
        "whole": Col2imRowsTile(2, 128, positions, channels, min(4, steps), vector, 0, 0, 1),
        "wide": Col2imRowsTile(3, 64, min(2, positions), -(-channels // 2), min(8, steps), vector, 0, 0, 1),
    }
    if copied := copied_inputs(problem):
        tiles |= {
            "narrow_staged": replace(tiles["narrow"], vector=copied, input_stages=2),
            "whole_staged": replace(tiles["whole"], vector=copied, input_stages=3),
        }
    return _fitting(problem, tiles)


def _tiles_in_channels_last(problem: Problem) -> dict[str, Col2imRowsTile]:
    """The narrow one and the whole one, in channels_last."""
    made = {
        f"{name}_last": replace(tile, vector=1, channels_last=1)
        for name, tile in _tiles(problem).items()
        if not tile.input_stages
    }
    return _fitting(problem, {name: made[name] for name in ("narrow_last", "whole_last") if name in made})


def _fitting(problem: Problem, tiles: dict[str, Col2imRowsTile]) -> dict[str, Col2imRowsTile]:
    """Those that fit, some with fewer channels."""
    fitting = {}
    for name, tile in tiles.items():
        fewer = tile
        while fewer.channels > 1 and not _fits(problem, fewer):
            fewer = replace(fewer, channels=-(-fewer.channels // 2))
        if _fits(problem, fewer):
            fitting[name] = fewer
    return fitting


def _fits(problem: Problem, tile: Col2imRowsTile) -> bool:
    shape = Col2imRowsShape(problem.layer, tile)
    fits = shape.fits_products and shape.fits_registers
    return bool(fits) and shape.shared_bytes <= Gpu.h200().shared_bytes_per_block
