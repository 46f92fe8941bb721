"""What launches need to know of a kernel of the `wgmma` family."""

from __future__ import annotations

from tconv.planner.block_tiles import PREPARING_THREADS, LaunchTraits
from tconv.planner.numbers import ceil_div, where
from tconv.planner.wgmma.shape import WgmmaShape
from tconv.planner.wgmma.tile import WgmmaTile
from tconv.problem import Layer


def launch_traits(layer: Layer, tile: WgmmaTile, multiprocessors: int) -> LaunchTraits:
    """Of a kernel that was compiled with `tile`, or with many, on a GPU of so many multiprocessors."""
    shape = WgmmaShape(layer, tile)
    return LaunchTraits(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        block_tile=(tile.block_tile.images, tile.block_tile.depths, tile.block_tile.rows, tile.block_tile.columns),
        origins=(0, 0, 0),
        weight_sets=shape.weight_sets,
        together=where(tile.resident > 0, shape.weight_sets, 1),
        at_once=multiprocessors,
        input_reach=tile.block_tile.images * layer.in_channels,
        output_reach=1,
        columns_together=tile.patch_columns,
        weight_bytes=shape.weight_bytes,
        preparing_blocks=ceil_div(shape.preparing_items, PREPARING_THREADS),
    )
