"""The numbers of a kernel that the planner and the kernel's template both compute, so that units can assert them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tconv.planner import direct_shape as direct
from tconv.planner import mma_shape as mma
from tconv.planner.plan import DirectTile, Family, Kernel, MmaTile
from tconv.problem import Layer

#: The template of each family that has them as constants.
SHAPES: Mapping[Family, str] = {"direct": "DirectShape", "mma": "MmaShape"}


def numbers(kernel: Kernel[Any]) -> dict[str, int]:
    """By the name of the template's constant, what the planner computes for `kernel`: sizes, counts, bytes, choices.

    A constant that means nothing for the kernel's tile is left out.
    """
    of_family: dict[Family, Callable[[Layer, Any], dict[str, int]]] = {"direct": _direct_numbers, "mma": _mma_numbers}
    return of_family[kernel.family](kernel.layer, kernel.tile)


def _direct_numbers(layer: Layer, tile: DirectTile) -> dict[str, int]:
    lanes = (tile.chunk_taps, tile.phase_lanes, tile.phases)
    found = {
        "threads": tile.threads,
        "shared_bytes": direct.shared_bytes(layer, tile),
        "parts": direct.parts(layer, tile),
        "row_phases": direct.row_phases(layer, tile),
        "block_runs": direct.block_runs(tile),
        "run_rows": direct.run_rows(tile),
        "resident": direct.resident(layer, tile),
        "chained": direct.chained(layer, tile),
        "sum_rows": direct.sum_rows(layer, tile),
        "thread_sums": direct.thread_sums(layer, tile),
        "input_rows": direct.input_rows(layer, tile),
        "window": direct.window(layer.axes[2], tile.origin, *lanes),
        "channel_items": direct.channel_items(layer, tile),
        "accumulator_bytes": direct.accumulator_bytes(layer),
    }
    if tile.warps_wide:
        found |= {"tile_rows": direct.tile_rows(tile), "tile_items": direct.tile_items(layer, tile)}
    return found


def _mma_numbers(layer: Layer, tile: MmaTile) -> dict[str, int]:
    found = {
        "threads": tile.threads,
        "shared_bytes": mma.shared_bytes(layer, tile),
        "weight_bytes": mma.weight_bytes(layer, tile),
        "preparing_items": mma.preparing_items(layer, tile),
        "row_blocks": mma.row_blocks(layer, tile),
        "phase_tiles": mma.phase_tiles(layer, tile),
        "shifts": mma.shifts(layer, tile),
        "chunks": mma.chunks(layer, tile),
        "chunk_channels": mma.chunk_channels(layer, tile),
        "block_positions": mma.block_positions(tile),
        "box_positions": mma.box_positions(tile),
        "halo_positions": mma.halo_positions(layer, tile),
        "halo_patches": mma.halo_patches(layer, tile),
        "patch_lanes": mma.patch_lanes(layer, tile),
        "thread_patches": mma.thread_patches(layer, tile),
        "thread_loads": mma.thread_loads(layer, tile),
        "input_stage_bytes": mma.input_stage_bytes(layer, tile),
        "shift_bytes": mma.shift_bytes(layer, tile),
        "turn_row_tiles": mma.turn_row_tiles(layer, tile),
        "item_bytes": mma.item_bytes(layer),
        "vector_items": mma.vector_items(layer),
        "sum_bytes": mma.sum_bytes(layer),
        "planes": mma.planes(layer),
    }
    if tile.resident:
        positions = mma.turn_position_tiles(layer, tile, mma.TURN_LEAST_BYTES)
        found |= {
            "turn_position_tiles": positions,
            "turn_pitch": mma.turn_pitch(layer, tile, positions),
            "turn_bytes": mma.turn_bytes(layer, tile, mma.TURN_LEAST_BYTES),
        }
    return found
