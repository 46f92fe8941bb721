"""How a kernel of the `col2im_wgmma` family is launched: by the rules of `col2im`, each block with one block tile."""

from __future__ import annotations

from tconv.planner.col2im.launch import LaunchTraits
from tconv.planner.col2im.shape import overlap
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape
from tconv.planner.col2im_wgmma.tile import Col2imWgmmaTile
from tconv.planner.numbers import where
from tconv.problem import Layer


def launch_traits(layer: Layer, tile: Col2imWgmmaTile, multiprocessors: int) -> LaunchTraits:
    """Of a kernel that was compiled with `tile`, or with many; the number of multiprocessors does not matter."""
    shape, block_tile, width = Col2imWgmmaShape(layer, tile), tile.block_tile, layer.axes[2]
    aligned = overlap(width, aligned=True)
    return LaunchTraits(
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        block_tile=(block_tile.images, block_tile.depths, block_tile.rows, block_tile.columns),
        together=tile.patch_positions,
        shared=where(tile.phases > 0, width.taps_per_phase - 1, where(shape.vector > 1, aligned, overlap(width))),
        at_once=0,
        weight_sets=shape.weight_sets,
        columns_together=1,
    )
