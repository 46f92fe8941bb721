"""What follows from a layer and a tile of the `col2im_rows` family."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from tconv.planner.col2im_rows.tile import Col2imRowsTile
from tconv.planner.gpu import blocks_that_fit, registers_fit
from tconv.planner.numbers import Array, ceil_div, most, where
from tconv.planner.shifts import Uncropped
from tconv.problem import Layer

#: Columns of a product for which there are instructions.
_PRODUCT_COLUMNS = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 240, 256)
MOST_COLUMNS = _PRODUCT_COLUMNS[-1]
#: Rows of outputs of a position, which are unrolled.
MOST_OUTPUT_ROWS = 16
#: Inputs of a warpgroup, and of a warp.
INPUTS, WARP_INPUTS = 64, 16
#: Blocks that are asked for at most.
_MOST_BLOCKS = 4

_CONSTANTS = (
    *("item_bytes", "threads", "channel_blocks", "weight_sets", "first_column", "strip_step", "output_rows", "teams"),
    *("shift_columns", "product_rows", "channel_steps", "k_steps", "k_tiles", "loaded_bytes", "step_loads"),
    *("step_words", "weight_bytes", "stage_bytes", "input_bytes", "input_rows", "buffer", "shared_bytes"),
)


class Col2imRowsShape:
    """The constants of a kernel: `Col2imRowsShape` of `kernels/col2im_rows/shape.cuh` has those of the same names.

    The tile may stand for many (`tconv.planner.numbers`).
    """

    def __init__(self, layer: Layer, tile: Col2imRowsTile) -> None:
        self.layer, self.tile = layer, tile
        self.depth, self.height, self.width = map(Uncropped.of, layer.axes)

    def constants(self) -> tuple[str, ...]:
        """The names of those that the template must agree on."""
        return _CONSTANTS

    @property
    def item_bytes(self) -> int:
        return self.layer.item_bytes

    @property
    def threads(self) -> int:
        return self.tile.threads

    @cached_property
    def channel_blocks(self) -> int:
        """Blocks that share the output channels of a group."""
        return ceil_div(self.layer.out_channels_per_group, self.tile.channels)

    @cached_property
    def weight_sets(self) -> int:
        """Blocks with different weights, which share inputs."""
        return self.layer.groups * self.channel_blocks

    # ---- rows of the product: inputs ----

    @cached_property
    def team_inputs(self) -> int:
        """Of the warpgroups that share a line; of one that has several lines."""
        return most(INPUTS, self.tile.columns)

    @cached_property
    def teams(self) -> int:
        """Of a block."""
        return self.tile.warpgroups * INPUTS // self.team_inputs

    @cached_property
    def lines(self) -> int:
        """Of a team."""
        return self.team_inputs // self.tile.columns

    @cached_property
    def input_rows(self) -> int:
        """Of a line."""
        return self.tile.rows + self.height.shifts - 1

    @cached_property
    def column_step(self) -> int:
        """What the first input of a strip is a multiple of."""
        return most(2, self.tile.vector)

    @cached_property
    def first_column(self) -> int:
        """The first input of the first strip."""
        return max(0, self.width.first_position - (self.width.shifts - 1)) // self.column_step * self.column_step

    @cached_property
    def strip_step(self) -> int:
        """Inputs from the first of a strip to the first of the next one, which shares the others."""
        return (self.tile.columns - (self.width.shifts - 1)) // self.column_step * self.column_step

    # ---- columns of the product: what an input gives to ----

    @cached_property
    def output_rows(self) -> int:
        """Rows of outputs of one position along depth and height, of all channels of a block."""
        return self.tile.channels * self.depth.phases * self.height.phases

    @cached_property
    def shift_columns(self) -> int:
        """Of one shift along the height."""
        return ceil_div(self.output_rows * self.width.shifts * self.width.phases, 8) * 8

    @cached_property
    def columns(self) -> int:
        return self.height.shifts * self.shift_columns

    @cached_property
    def product_rows(self) -> int:
        """Columns that are multiplied: PTX's N."""
        known = np.array(_PRODUCT_COLUMNS)
        found: Array = known[np.minimum(np.searchsorted(known, self.columns), len(known) - 1)]
        return found if np.ndim(found) else int(found)

    @cached_property
    def fits_products(self) -> Array:
        """Whether there is an instruction for so many, a strip has positions of its own, and outputs are unrolled."""
        few = (self.columns <= MOST_COLUMNS) & (self.output_rows <= MOST_OUTPUT_ROWS)
        return few & (self.strip_step > 0)

    # ---- depth of the product: input channels at each shift along the depth ----

    @cached_property
    def channel_steps(self) -> int:
        return ceil_div(self.layer.in_channels_per_group, 32 // self.item_bytes)

    @cached_property
    def k_steps(self) -> int:
        return self.depth.shifts * self.channel_steps

    @cached_property
    def k_tiles(self) -> int:
        return ceil_div(self.k_steps, self.tile.k_tile_steps)

    @cached_property
    def staged(self) -> Array:
        """Whether inputs come through shared memory."""
        return self.tile.input_stages > 0

    @cached_property
    def loaded_bytes(self) -> int:
        """Of a lane's load or copy: channels of one input, or neighbouring inputs of one channel."""
        of_channels = math.gcd(8, self.layer.in_channels_per_group * self.item_bytes)
        return where(self.tile.channels_last > 0, of_channels, self.tile.vector * self.item_bytes)

    @cached_property
    def step_loads(self) -> int:
        """Loads or copies of a lane for a step."""
        return 16 // self.loaded_bytes

    @cached_property
    def step_words(self) -> int:
        """Registers for what a lane reads of a step: two 16-bit items in one, if they are loaded at once."""
        return where(self.loaded_bytes == 2, 8, 4)

    # ---- shared memory, in bytes ----

    @cached_property
    def weight_bytes(self) -> int:
        return ceil_div(self.k_tiles * self.tile.k_tile_steps, 4) * self.product_rows * 128

    @cached_property
    def stage_bytes(self) -> int:
        """Of a k-tile of a warpgroup's inputs."""
        return self.tile.k_tile_steps * 32 * INPUTS

    @cached_property
    def input_bytes(self) -> int:
        """Of all stages."""
        return self.tile.warpgroups * self.tile.input_stages * self.stage_bytes

    @cached_property
    def buffer(self) -> int:
        """Floats of the results of one row of inputs, and of one more input."""
        banks = 1 << (min(16, max(2, self.width.phases)) - 1).bit_length()
        return (self.team_inputs + 1) * ((self.shift_columns + banks - 1) // (2 * banks) * (2 * banks) + banks)

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.weight_bytes + self.input_bytes + self.teams * 2 * self.buffer * 4

    # ---- what a compiler and a GPU are expected to make of it; the kernel knows nothing of this ----

    @cached_property
    def registers(self) -> int:
        """Registers of a thread, estimated."""
        of_step = where(self.staged, 4, self.step_words + 4)
        return self.product_rows // 2 + self.tile.k_tile_steps * of_step + self.output_rows + 62

    @cached_property
    def fits_registers(self) -> Array:
        """Whether a multiprocessor has as many for a block."""
        return registers_fit(self.registers, self.threads)

    @cached_property
    def blocks_that_fit(self) -> int:
        """Blocks that a multiprocessor holds, by shared memory and by the registers that threads may want."""
        return blocks_that_fit(self.registers * self.threads, self.shared_bytes, _MOST_BLOCKS)
