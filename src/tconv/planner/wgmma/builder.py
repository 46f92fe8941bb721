"""Tiles of the `wgmma` family: all fields from the few that are chosen. A choice may be an array of many."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tconv.planner.numbers import least, most, where
from tconv.planner.wgmma.shape import MOST_PATCHES, WgmmaKind, WgmmaShape, is_uniform
from tconv.planner.wgmma.tile import BlockTile, WgmmaTile
from tconv.problem import Layer

#: Rows of weights that a product may take.
PRODUCT_ROWS = (16, 32, 48, 64, 96, 128, 144, 160, 192, 240, 256)
#: Registers of a thread for accumulators, and for accumulators and two steps of fragments. Exact layers have fewer
#: where the compiler unrolls all phases.
_MOST_ACCUMULATORS, _MOST_REGISTERS, _MOST_EXACT_REGISTERS, _MOST_EXACT_REGISTERS_UNROLLED = 128, 192, 168, 136
#: Tiles of positions where some phases have no accumulators: kernels with more spilled.
_MOST_TILES_OF_SOME = 2
#: Shifts along the height whose exact accumulators may leave the tensor core together.
_MOST_EXACT_VISITS = 4
#: Products of a k-tile that the compiler unrolls where it knows the phases.
_MOST_PRODUCTS = 512
#: Products of a block: each has a bit in the header.
_MOST_BLOCK_PRODUCTS = 32
_MOST_INPUT_STAGES, _MOST_WEIGHT_STAGES = 4, 12
#: Neighbouring phases of a row that a block may have where all phases have their taps at the same shifts.
_PARTS_OF_ROW = (8, 16, 32)


def wgmma_tile(
    layer: Layer,
    *,
    block_tile: tuple[int, int, int, int],
    channels: int,
    phases: int,
    position_tiles: int,
    stacked: int,
    k_tile_steps: int,
    patch_columns: int,
    channels_last: bool = False,
    prepared_inputs: int = 0,
) -> WgmmaTile:
    """The tile with the fewest stages that its kernel can have."""
    tile = WgmmaTile(
        block_tile=BlockTile(*block_tile),
        channels=channels,
        phases=phases,
        position_tiles=position_tiles,
        stacked=stacked,
        k_tile_steps=k_tile_steps,
        input_stages=1,
        raw_stages=0,
        weight_stages=2,
        patch_columns=patch_columns,
        channels_last=int(channels_last),
        prepared_inputs=prepared_inputs,
    )
    shape = WgmmaShape(layer, tile)
    return replace(tile, weight_stages=shape.row_visits + 1, raw_stages=where(shape.transposed, 1, 0))


def with_stages(layer: Layer, tile: WgmmaTile, most_shared: int) -> WgmmaTile:
    """`tile` with as many stages as fit into `most_shared` bytes: two of inputs first, then weights, then inputs.

    Weights that stay have theirs.
    """

    shape = WgmmaShape(layer, tile)

    def tried(tile: WgmmaTile, **more: Any) -> WgmmaTile:
        fits = shape.shared_bytes_with(replace(tile, **more)) <= most_shared
        changes = {name: where(fits, value, getattr(tile, name)) for name, value in more.items()}
        return replace(tile, **changes)

    def with_weight_stages(tile: WgmmaTile, stages: Any) -> WgmmaTile:
        return tried(tile, weight_stages=where(tile.resident > 0, tile.weight_stages, stages))

    tile = tried(tile, input_stages=2)
    tile = tried(tile, raw_stages=2 * tile.raw_stages)
    fewest = tile.weight_stages
    for further in range(1, 5):
        tile = with_weight_stages(tile, fewest + further)
    for stages in range(3, _MOST_INPUT_STAGES + 1):
        tile = tried(tile, input_stages=where(tile.input_stages == stages - 1, stages, tile.input_stages))
    for stages in range(6, _MOST_WEIGHT_STAGES + 1):
        tile = with_weight_stages(tile, most(tile.weight_stages, least(stages, tile.weight_stages + 1)))
    return tile


def with_resident_weights(layer: Layer, tile: WgmmaTile, own: int = 0) -> WgmmaTile:
    """`tile` with weights that stay; each block prepares its `own`, or a kernel before has prepared all."""
    shape = WgmmaShape(layer, tile)
    return replace(tile, resident=1, weight_stages=shape.k_tiles * shape.visits, own_weights=own)


def phase_choices(layer: Layer) -> list[int]:
    """How many phases a block may have."""
    every, row = math.prod(layer.stride), layer.stride[2]
    alike = {row * layer.stride[1], *(part for part in _PARTS_OF_ROW if row % part == 0)}
    return sorted({1, row, every, *(alike if is_uniform(layer) else ())})


def can_stack(layer: Layer) -> bool:
    """Whether a shift along the height is another tile of those that are stacked, and there are several."""
    height = layer.axes[1]
    return is_uniform(layer) and height.stride == 1 and height.dilation == 1 and height.kernel > 1


def can_stay(shape: WgmmaShape) -> bool:
    """Whether the weights of a block may stay: those of a row's phases are loaded for each block tile, and where some
    phases have no taps, blocks take turns at the others."""
    return (shape.kind != WgmmaKind.ROW_PHASES) & (shape.share_with_taps == 1)


def suits(shape: WgmmaShape) -> bool:
    """Whether a kernel can be compiled: products of such rows, few registers, few offsets, not too long."""
    rows = shape.product_rows
    of_product = rows == PRODUCT_ROWS[0]
    for allowed in PRODUCT_ROWS[1:]:
        of_product = of_product | (rows == allowed)
    width = where(shape.tile.channels_last > 0, _channel_width(shape), 2)
    of_product = of_product & (shape.tile.channels % (4 * width) == 0)
    of_fragments = 4 * shape.planes * shape.batches * shape.batch_steps * shape.fragments
    of_exact = where(shape.products > 1, _MOST_EXACT_REGISTERS_UNROLLED, _MOST_EXACT_REGISTERS)
    registers = of_exact if shape.exact else _MOST_REGISTERS
    few = (shape.accumulators <= _MOST_ACCUMULATORS) & (shape.accumulators + of_fragments <= registers)
    few = few & ((shape.accumulated_products == shape.products) | (shape.tile.position_tiles <= _MOST_TILES_OF_SOME))
    few = few & ((shape.row_visits <= _MOST_EXACT_VISITS) | (not shape.exact))
    unrolled = shape.taps * shape.tile.k_tile_steps * shape.tile.position_tiles
    few = (
        few
        & (unrolled * (shape.kind == WgmmaKind.ALL_PHASES) <= _MOST_PRODUCTS)
        & (shape.products <= _MOST_BLOCK_PRODUCTS)
    )
    return of_product & few & (shape.thread_patches <= MOST_PATCHES)


def _channel_width(shape: WgmmaShape) -> int:
    whole = shape.tile.channels % 32 == 0
    return where(whole, shape.vector_items, 4) if shape.item_bytes < 4 else 4
