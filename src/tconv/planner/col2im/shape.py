"""What follows from a layer and a tile of the `col2im` family."""

from __future__ import annotations

import math
from functools import cached_property

from tconv.planner.col2im.block import COPY_BYTES, Col2imBlock
from tconv.planner.gpu import REGISTERS, blocks_that_fit
from tconv.planner.numbers import ceil_div, gcd, least, most, where
from tconv.problem import Axis, Layer

#: Registers that a thread may have; blocks that are asked for at most.
_MOST_REGISTERS = 255
_MOST_BLOCKS = 8

_CONSTANTS = (
    *("item_bytes", "taps", "block_rows", "warp_row_tiles", "row_tiles", "row_blocks", "weight_sets", "rows_together"),
    *("positions", "warp_position_tiles", "position_tiles", "step_channels", "k_tile_channels", "k_tiles"),
    *("set_k_tiles", "threads"),
    *("stages_ahead", "weight_copy", "input_copy", "run_copies", "row_copies", "weight_pitch", "input_pitch"),
    *("stage_bytes", "resident_bytes", "sums_pitch", "shared_bytes", "vector"),
)


class Col2imShape(Col2imBlock):
    """The constants of a kernel: `Col2imShape` of `kernels/col2im/shape.cuh` has those of the same names.

    The tile may stand for many (`tconv.planner.numbers`).
    """

    def constants(self) -> tuple[str, ...]:
        """The names of those that the template must agree on."""
        return _CONSTANTS

    @property
    def splits(self) -> int:
        return self.tile.warps.splits

    # ---- rows of the product: the taps of a block's output channels ----

    @cached_property
    def taps(self) -> int:
        return math.prod(self.layer.kernel)

    @cached_property
    def warp_row_tiles(self) -> int:
        """Tiles of 16 rows of a warp."""
        return ceil_div(self.block_rows, 16 * self.tile.warps.high)

    @cached_property
    def row_tiles(self) -> int:
        """Those of a block."""
        return self.tile.warps.high * self.warp_row_tiles

    @cached_property
    def row_blocks(self) -> int:
        """Blocks that share the output channels of a group."""
        return ceil_div(self.layer.out_channels_per_group, self.tile.channels)

    @cached_property
    def rows_together(self) -> int:
        """Neighbouring rows that a lane loads at once."""
        return 1 if self.item_bytes < 4 else where(self.tile.resident > 0, 1, gcd(self.warp_row_tiles, 4))

    # ---- columns of the product: positions ----

    @cached_property
    def warp_position_tiles(self) -> int:
        """Tiles of 8 positions of a warp; an even number for 16-bit types."""
        at_once = 2 if self.item_bytes < 4 else 1
        return at_once * ceil_div(self.positions, 8 * at_once * self.tile.warps.wide)

    @cached_property
    def position_tiles(self) -> int:
        """Those of a block."""
        return self.tile.warps.wide * self.warp_position_tiles

    # ---- depth of the product: input channels, in steps of 32 bytes; a stage has a k-tile of steps ----

    @cached_property
    def set_steps(self) -> int:
        """Steps of a set of warps."""
        return self.set_k_tiles * self.tile.k_tile_steps

    @cached_property
    def stages_ahead(self) -> int:
        """K-tiles that are asked for before the first is waited for: all, or all stages but the one that is read."""
        all_at_once = (self.tile.stages == self.set_k_tiles) & (self.tile.resident == 0)
        return where(all_at_once, self.tile.stages, self.tile.stages - 1)

    # ---- copies and shared memory, in bytes ----

    @cached_property
    def weight_copy(self) -> int:
        return gcd(COPY_BYTES, self.weight_run * self.item_bytes)

    @cached_property
    def row_copies(self) -> int:
        """Copies of a channel's inputs in a k-tile, or of a position's."""
        by_channel = where(
            self.tile.runs > 0,
            self.tile.block_tile.images * self.run_copies,
            self.positions // self.tile.patch_positions,
        )
        of_position = self.k_tile_bytes // self.input_copy
        return where(self.tile.inputs_last > 0, of_position, by_channel)

    @cached_property
    def weight_pitch(self) -> int:
        """From the weights of a channel to those of the next."""
        if self.item_bytes < 4:
            return self.row_tiles * 32 + 16
        return 4 * conflict_free(self.row_tiles * 16, 1)

    @cached_property
    def input_pitch(self) -> int:
        """From a channel's inputs to the next channel's, or from a position's channels to the next position's."""
        by_channel = (
            self.position_tiles * 16 + 16 if self.item_bytes < 4 else 4 * conflict_free(8 * self.position_tiles, 1)
        )
        of_runs = self.tile.block_tile.images * self.run_copies * COPY_BYTES
        of_runs = of_runs if self.item_bytes < 4 else 4 * conflict_free(of_runs // 4, 1)
        return where(
            self.tile.runs > 0,
            of_runs,
            where(self.tile.inputs_last > 0, self.k_tile_bytes + COPY_BYTES, by_channel),
        )

    @cached_property
    def stage_weight_bytes(self) -> int:
        """Of the weights of a set's k-tile."""
        return self.k_tile_channels * self.weight_pitch

    @cached_property
    def stage_bytes(self) -> int:
        """Of a stage of a set: of a k-tile, or of its inputs alone."""
        rows = where(self.tile.inputs_last > 0, 8 * self.position_tiles, self.k_tile_channels)
        return where(self.tile.resident > 0, 0, self.stage_weight_bytes) + rows * self.input_pitch

    @cached_property
    def resident_bytes(self) -> int:
        """Of a set's weights where they are resident."""
        return where(self.tile.resident > 0, self.set_k_tiles * self.stage_weight_bytes, 0)

    @cached_property
    def sums_pitch(self) -> int:
        """Floats from the sums of a row to those of the next."""
        return conflict_free(8 * self.position_tiles, self.rows_together)

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: what its sets have, with the sums in place of that or behind it."""
        splits = self.tile.warps.splits
        stages = splits * (self.resident_bytes + self.tile.stages * self.stage_bytes)
        sums = splits * self.row_tiles * 16 * self.sums_pitch * 4
        return where(self.tile.resident > 0, stages + sums, most(stages, sums))

    # ---- outputs ----

    @cached_property
    def vector(self) -> int:
        """Neighbouring outputs that are stored at once, where rows begin at multiples of that."""
        return where((self.tile.resident > 0) & (self.tile.channels_last == 0), together(self.layer), 1)

    # ---- what a compiler and a GPU are expected to make of it; the kernel knows nothing of this ----

    @cached_property
    def accumulators(self) -> int:
        """Registers of a thread for them."""
        return 4 * self.warp_row_tiles * self.warp_position_tiles

    @cached_property
    def registers(self) -> int:
        """Registers of a thread, estimated."""
        return least(_MOST_REGISTERS, self.accumulators + 4 * self.warp_row_tiles + 56)

    @cached_property
    def fits_registers(self) -> bool:
        """Whether a multiprocessor has as many for a block."""
        return self.registers * self.threads <= REGISTERS

    @cached_property
    def blocks_that_fit(self) -> int:
        """Blocks that a multiprocessor holds, by shared memory and by the registers that threads may want."""
        return blocks_that_fit(self.registers * self.threads, self.shared_bytes, _MOST_BLOCKS)


def together(layer: Layer) -> int:
    """Neighbouring outputs of a position that a thread may store at once."""
    return math.gcd(COPY_BYTES, layer.stride[2] * layer.item_bytes) // layer.item_bytes


def overlap(axis: Axis, aligned: bool = False) -> int:
    """Inputs that neighbouring block tiles have in common along an axis.

    Args:
        aligned: outputs of a position begin at a multiple of the stride.
    """
    moved = axis.padding % axis.stride if aligned else 0
    return ((axis.kernel - 1) * axis.dilation - moved) // axis.stride - (-moved) // axis.stride


def spans(axis: Axis, inputs: int, size: int, together: int = 1, shared: int | None = None) -> int:
    """Block tiles of `size` inputs along an axis of so many, each from a multiple of `together` on.

    Args:
        shared: inputs that neighbouring ones have in common; by default as many as taps overlap.
    """
    own = size - (overlap(axis) if shared is None else shared)
    step = where(own < together, size, own // together * together)
    return 1 + most(0, ceil_div(inputs - size, step))


def conflict_free(least_pitch: int, rows: int) -> int:
    """The smallest pitch from there on with which `rows` rows lie 8 banks apart."""
    step = 32 // rows
    return least_pitch + (8 // rows - least_pitch) % step
