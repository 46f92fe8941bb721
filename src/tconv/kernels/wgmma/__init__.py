"""Instances of the `wgmma` family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tconv.kernels.cases import CASES, IN_EVERY_PRECISION, Case, Instance
from tconv.planner import Kernel, WgmmaTile
from tconv.planner.shifts import together
from tconv.planner.wgmma import why_not_wgmma
from tconv.planner.wgmma.builder import PRODUCT_ROWS, can_stack, can_stay, suits, wgmma_tile, with_resident_weights
from tconv.planner.wgmma.shape import WgmmaShape, is_uniform
from tconv.problem import Layer, Precision

#: What the templates read from their parameters, and which values behave differently.
AXES: dict[str, str] = {
    "Layer::Element": "float, Half, BFloat16",
    "Layer::Index": "int, long long",
    "Layer::Depth": "trivial, strided, dilated",
    "Layer::Height": "trivial, strided, dilated",
    "Layer::Width": "k = m*s, other k; dilation with and without a stride; few and many phases and taps; phases "
    "without taps",
    "Layer::groups": "1, several, depthwise",
    "Layer::group_in_channels": "1, few, a whole number of k-tiles and not, whole vectors and not",
    "Layer::group_out_channels": "1, a full block, a partial one, several blocks",
    "Layer::weights_last": "both: twins in `instances`",
    "Layer::has_bias": "both",
    "Layer::has_program": "both: `instances.programmed`",
    "Layer::rounding": "none, ties to even, ties away",
    "Tile::BlockTile::images": "1 and several",
    "Tile::BlockTile::depths": "1 and several",
    "Tile::BlockTile::rows": "1 and several",
    "Tile::BlockTile::columns": "even and odd",
    "Tile::channels": "8 to 256, in whole vectors of channels",
    "Tile::phases": "1, a row's, a part of a row's, all; of layers whose phases are alike and not",
    "Tile::position_tiles": "1, 2 and 4",
    "Tile::stacked": "both",
    "Tile::k_tile_steps": "2 and 4",
    "Tile::input_stages": "1, 2 and 3",
    "Tile::raw_stages": "0, 1 and 2",
    "Tile::weight_stages": "the fewest, and more; one for each visit",
    "Tile::patch_columns": "1 to 8; rows of the halo that begin and end within a patch",
    "Tile::channels_last": "both",
    "Tile::resident": "both; blocks with all phases, with one, and stacked",
    "Tile::own_weights": "both; of all phases, alike and not; weights that lie alone, in twos, fours and eights",
    "Tile::prepared_inputs": "both; outputs that are stored by runs and staged",
}

_PRECISIONS: tuple[Precision, ...] = ("tf32", "fp16", "tf32_rna", "bf16", "fp32")
_WITH_WIDE_INDEX = ("1d-k4-s2", "2d-k3-s1")
#: Cases of several k-tiles, whose 16-bit inputs are transposed in shared memory from one stage or two.
_TRANSPOSED = ("2d-k2-s2-aligned", "2d-dense")
#: Cases whose taps read the same column: 16-bit inputs are transposed as they are read.
_STRAIGHT: dict[str, Precision] = {
    "2d-k2-s2-aligned": "bf16",
    "2d-k3x2-s2x2-aligned": "fp16",
    "1d-k3-s3-aligned": "fp16",
}
#: Cases whose weights stay: with phases alike and not, with several k-tiles, with groups; blocks with one phase of
#: several k-tiles, where some phases have fewer taps than others.
_RESIDENT: dict[str, Precision] = {
    "2d-k3-s2-op1": "tf32",
    "2d-dense": "fp16",
    "2d-k2-s2-aligned": "bf16",
    "2d-k3-s1": "tf32",
    "1d-k4-s2": "fp32",
    "2d-k4-s2-multiplier": "fp16",
    "2d-k3x2-s2x2-aligned": "bf16",
}
#: Cases whose contiguous inputs are prepared: channels that fill the vectors transposed at once, and that do not; so
#: many that a block transposes several tiles.
_PREPARED: dict[str, Precision] = {
    "2d-many-in": "tf32",
    "2d-dense": "tf32",
    "2d-k3x2-s2x2-aligned": "bf16",
    "2d-k2-s2": "fp16",
    "3d-k2-s2": "tf32_rna",
    "2d-k4-s2-full": "fp32",
}
#: Cases whose phases are alike, which have blocks of half a row's.
_ALIKE = {
    "1d-k64-s32": Case((20, 12), (5,), (64,), (32,), bias=True),
    "2d-k2x16-s2x16": Case((9, 12), (3, 4), (2, 16), (2, 16), bias=True),
}
#: Phases and channels of products of 144, 160 and 240 rows.
_WIDE: dict[str, list[tuple[int, int]]] = {
    "1d-k3-s3-aligned": [(3, 48), (1, 240)],
    "2d-k2-s2-aligned": [(4, 40)],
}
#: Tiles of every case that has them.
_ALWAYS = ("stacked", "last", "alone", "alone-last")
#: Of a phase: the emulator would take minutes for more.
_MOST_TAPS = 100
#: Of small problems, a block of more would only take time.
_MOST_SHARED_BYTES = 227 * 1024


def instances() -> Iterator[Instance]:
    """Every case with some of the tiles that suit it, some with 64-bit positions."""
    suiting = {name: case for name, case in CASES.items() if why_not_wgmma(case.problem("tf32").layer) is None}
    # Those with phases without taps come last.
    suiting = dict(sorted(suiting.items(), key=lambda case: _some_without_taps(case[1].problem("tf32").layer)))
    for number, (name, case) in enumerate(suiting.items()):
        if math.prod(case.kernel) // math.prod(case.stride) > _MOST_TAPS:
            continue
        every = name in IN_EVERY_PRECISION
        for precision in _PRECISIONS if every else (_PRECISIONS[number % len(_PRECISIONS)],):
            problem = case.problem(precision)
            tiles = _tiles(problem.layer, together(problem))
            turns = list(tiles)
            if not every:
                turns = [turn for turn in tiles if not turn.startswith("alone")]
                always = (*_ALWAYS, *["all"] * (_some_without_taps(problem.layer) > 0))
                turns = [turns[number % len(turns)], *(turn for turn in always if turn in tiles)]
            for turn in dict.fromkeys(turns):
                yield Instance(f"wgmma-{name}-{precision}-{turn}", problem, Kernel("wgmma", problem.layer, tiles[turn]))
            if name in _WITH_WIDE_INDEX and precision == "bf16":
                wide = Kernel("wgmma", problem.layer, tiles[turns[0]], wide_index=True)
                yield Instance(f"wgmma-{name}-{precision}-wide_index", problem, wide)
        if name in _STRAIGHT:
            problem = case.problem(_STRAIGHT[name])
            for turn_number, tile in enumerate(_straight_tiles(problem.layer), 1):
                yield Instance(f"wgmma-{name}-straight{turn_number}", problem, Kernel("wgmma", problem.layer, tile))
        if name in _RESIDENT:
            problem = case.problem(_RESIDENT[name])
            for turn, tile in _tiles(problem.layer, together(problem)).items():
                if not can_stay(WgmmaShape(problem.layer, tile)):
                    continue
                for own in (0, 1) if WgmmaShape(problem.layer, tile).phase_sets == 1 else (0,):
                    kept = with_resident_weights(problem.layer, replace(tile, k_tile_steps=2, input_stages=2), own)
                    kernel = Kernel("wgmma", problem.layer, kept)
                    yield Instance(f"wgmma-{name}-{turn}-{'own' if own else 'resident'}", problem, kernel)
        if name in _PREPARED:
            problem = case.problem(_PREPARED[name])
            for turn, tile in _prepared_tiles(problem.layer, together(problem)).items():
                kernel = Kernel("wgmma", problem.layer, tile)
                yield Instance(f"wgmma-{name}-{turn}-prepared", problem, kernel)
        for phases, channels in _WIDE.get(name, []):
            problem = case.problem("tf32")
            tile = replace(_tile(problem.layer, phases, (1, 1, 1, 16), 1, patch_columns=4), channels=channels)
            kernel = Kernel("wgmma", problem.layer, tile)
            yield Instance(f"wgmma-{name}-rows{phases * channels}", problem, kernel)
        if name in _TRANSPOSED:
            problem = case.problem("fp16")
            for raw, tile in enumerate(_transposed_tiles(problem.layer, together(problem)), 1):
                yield Instance(f"wgmma-{name}-fp16-transposed{raw}", problem, Kernel("wgmma", problem.layer, tile))
    # Rows of several phases that begin anywhere are stored one output at a time, in several rounds.
    problem = replace(CASES["1d-k3-s3-aligned"].problem("tf32"), output_padding=(0, 0, 1))
    tile = _tile(problem.layer, 3, (1, 1, 1, 16), 1, patch_columns=4)
    yield Instance("wgmma-1d-k3-s3-op1-all", problem, Kernel("wgmma", problem.layer, tile))
    for name, case in _ALIKE.items():
        for precision in ("fp16", "tf32"):
            problem = case.problem(precision)
            tile = _tile(problem.layer, problem.layer.stride[2] // 2, (2, 1, 1, 6), 1)
            yield Instance(f"wgmma-{name}-{precision}-part", problem, Kernel("wgmma", problem.layer, tile))


def _some_without_taps(layer: Layer) -> int:
    return any(axis.phases_with_taps < axis.stride for axis in layer.axes) + any(
        1 < axis.kernel < axis.tap_period for axis in layer.axes
    )


def _tiles(layer: Layer, most_together: int) -> dict[str, WgmmaTile]:
    """By name: blocks with all phases, with one, with a row's, alike or alone; stacked tiles; channels_last ones."""
    every, row = math.prod(layer.stride), layer.stride[2]
    deep, tall = (int(not axis.is_trivial) for axis in layer.axes[:2])
    tiles = {
        "all": _tile(layer, every, (1, 1 + deep, 1 + tall, 7), 1, k_tile_steps=2),
        "one": _tile(layer, 1, (2, 1 + deep, 1 + tall, 8), 2, patch_columns=math.gcd(8, most_together)),
        "last": _tile(layer, 1, (1, 1, 1 + tall, 9), 2, channels_last=True),
        "last-all": _tile(layer, every, (2, 1, 1 + tall, 8), 1, k_tile_steps=2, channels_last=True),
    }
    if 1 < row < every and is_uniform(layer):
        tiles["row"] = _tile(layer, row, (1, 1, 1, 16), 1)
    elif 1 < row < every:
        tiles["alone"] = _tile(layer, row, (1, 1, 1, 16), 1)
        tiles["alone-last"] = _tile(layer, row, (1, 1 + deep, 1 + tall, 9), 1, channels_last=True)
    if can_stack(layer):
        most = most_together if most_together > 1 else 1
        tiles["stacked"] = _tile(layer, every, (1, 1 + deep, 4, 8), 4, stacked=1, patch_columns=math.gcd(8, most))
        tiles["stacked-last"] = _tile(layer, 1, (1, 1, 4, 16), 2, stacked=1, channels_last=True)
    deeper = {"one": (2, 2), "row": (2, 1), "stacked": (3, 2), "last": (2, 0)}
    for name, (inputs, more) in deeper.items():
        if name in tiles:
            tile = tiles[name]
            raw = min(inputs, 2) if tile.raw_stages else 0
            tiles[name] = replace(tile, input_stages=inputs, raw_stages=raw, weight_stages=tile.weight_stages + more)
    shapes = {name: WgmmaShape(layer, tile) for name, tile in tiles.items()}
    return {name: tiles[name] for name, own in shapes.items() if suits(own) and own.shared_bytes <= _MOST_SHARED_BYTES}


def _prepared_tiles(layer: Layer, most_together: int) -> dict[str, WgmmaTile]:
    """Those of `_tiles` for contiguous tensors whose inputs a kernel before may put into whole vectors."""
    found = {}
    for name, tile in _tiles(layer, most_together).items():
        prepared = replace(tile, prepared_inputs=1, patch_columns=1, raw_stages=0)
        shape = WgmmaShape(layer, prepared)
        if not tile.channels_last and shape.by_place and shape.shared_bytes <= _MOST_SHARED_BYTES:
            found[name] = prepared
    return found


def _straight_tiles(layer: Layer) -> Iterator[WgmmaTile]:
    tall = int(not layer.axes[1].is_trivial)
    yield _tile(layer, math.prod(layer.stride), (1, 1, 1 + tall, 16), 1, k_tile_steps=2, patch_columns=8)
    tile = _tile(layer, 1, (2, 1, 1 + tall, 8), 2, patch_columns=8)
    yield replace(tile, input_stages=2, weight_stages=tile.weight_stages + 1)


def _transposed_tiles(layer: Layer, most_together: int) -> Iterator[WgmmaTile]:
    tile = _tile(layer, 1, (1, 1, 4, 8), 1, k_tile_steps=2, patch_columns=math.gcd(4, most_together))
    for raw in (1, 2):
        yield replace(tile, input_stages=raw, raw_stages=raw)


def _tile(
    layer: Layer,
    phases: int,
    block_tile: tuple[int, int, int, int],
    position_tiles: int,
    stacked: int = 0,
    k_tile_steps: int = 4,
    patch_columns: int = 1,
    channels_last: bool = False,
) -> WgmmaTile:
    together = phases if is_uniform(layer) else 1
    # Few channels whose products have rows that there are.
    preferred = (32, 16, 48, 8, 64) if position_tiles == 2 and not channels_last else (16, 32, 48, 8, 64)
    channels = next((c for c in preferred if c * together in PRODUCT_ROWS), 16)
    return wgmma_tile(
        layer,
        block_tile=block_tile,
        channels=channels,
        phases=phases,
        position_tiles=position_tiles,
        stacked=stacked,
        k_tile_steps=k_tile_steps,
        patch_columns=patch_columns,
        channels_last=channels_last,
    )
