"""What launches need to know of a kernel of the `mma` family."""

from __future__ import annotations

from tconv.planner.block_tiles import PREPARING_THREADS, LaunchTraits
from tconv.planner.mma.shape import MmaShape, origins
from tconv.planner.mma.tile import MmaTile
from tconv.planner.numbers import ceil_div, where
from tconv.problem import Layer

#: Channels that a warp's lanes store between them.
_LANES = 32


def launch_traits(layer: Layer, tile: MmaTile, multiprocessors: int) -> LaunchTraits:
    """Of a kernel that was compiled with `tile`, or with many, on a GPU of so many multiprocessors."""
    shape = MmaShape(layer, tile)
    return LaunchTraits(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        block_tile=(tile.block_tile.images, tile.block_tile.depths, tile.block_tile.rows, tile.block_tile.columns),
        origins=origins(tile.block_tile),
        weight_sets=shape.weight_sets,
        together=shape.weight_sets,
        # Of resident weights as many blocks as run at the same time.
        at_once=where(tile.pipeline.resident > 0, multiprocessors * tile.blocks, 0),
        input_reach=tile.block_tile.images * layer.in_channels + shape.k_tile_channels,
        output_reach=_LANES,
        columns_together=tile.pipeline.patch_columns,
        weight_bytes=shape.weight_bytes,
        preparing_blocks=ceil_div(shape.preparing_items, PREPARING_THREADS),
    )
