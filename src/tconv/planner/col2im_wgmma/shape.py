"""What follows from a layer and a tile of the `col2im_wgmma` family."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tconv.planner.col2im.block import COPY_BYTES, Col2imBlock
from tconv.planner.col2im.shape import conflict_free
from tconv.planner.gpu import blocks_that_fit, registers_fit
from tconv.planner.numbers import ceil_div, gcd, least, most, where
from tconv.problem import Layer

#: Positions of a product for which there are instructions.
_PRODUCT_ROWS = (16, 32, 48, 64, 96, 128, 144, 160, 192, 240, 256)
#: Taps and phases up to which a thread has all phases of a position.
_MOST_TAPS, _MOST_PHASES = 64, 16
#: Outputs of a thread that has all phases of a position, at most; channels of any other.
_SUMS, _MOST_CHANNELS = 32, 4
#: Blocks that are asked for at most.
_MOST_BLOCKS = 4

_CONSTANTS = (
    *("item_bytes", "taps", "block_rows", "row_tiles", "rows", "row_blocks", "weight_sets", "lane_rows"),
    *("positions", "product_rows", "all_positions", "step_channels", "k_tile_channels", "k_tile_bytes", "k_tiles"),
    *("set_k_tiles", "set_threads", "threads", "stages_ahead", "weight_copy", "input_copy", "run_copies"),
    *("weight_pitch", "input_pitch", "stage_bytes", "factor_bytes", "set_bytes", "sums_pitch", "shared_bytes"),
    *("vector", "sum_channels"),
)


class Col2imWgmmaShape(Col2imBlock):
    """The constants of a kernel: `Col2imWgmmaShape` of `kernels/col2im_wgmma/shape.cuh` has those of the same names.

    The tile may stand for many (`tconv.planner.numbers`).
    """

    def constants(self) -> tuple[str, ...]:
        """The names of those that the template must agree on."""
        return _CONSTANTS

    @property
    def splits(self) -> int:
        return self.tile.warpgroups.splits

    # ---- rows of the product: the taps of a block's output channels, 64 in a tile ----

    @cached_property
    def width_phases(self) -> int:
        """Phases along the width of a block."""
        return where(self.tile.phases > 0, self.tile.phases, self.layer.stride[2])

    @cached_property
    def taps(self) -> int:
        """Of a block's output channel."""
        depth, height, width = self.layer.axes
        of_width = where(self.tile.phases > 0, width.taps_per_phase * self.tile.phases, width.kernel)
        return depth.kernel * height.kernel * of_width

    @cached_property
    def sums_by_position(self) -> bool:
        """Whether a thread has all of a block's phases of a position."""
        depth, height, _ = self.layer.stride
        return sums_by_position(self.taps, depth * height * self.width_phases)

    @cached_property
    def vector(self) -> int:
        """Neighbouring outputs that are stored at once, where rows begin at multiples of that."""
        phases = where(self.tile.phases > 0, gcd(self.tile.phases, self.layer.padding[2]), self.layer.stride[2])
        together = gcd(COPY_BYTES, phases * self.item_bytes) // self.item_bytes
        return where((self.tile.channels_last == 0) & self.sums_by_position, together, 1)

    @cached_property
    def row_tiles(self) -> int:
        """Tiles of a warpgroup."""
        return ceil_div(self.block_rows, 64 * self.tile.warpgroups.high)

    @cached_property
    def rows(self) -> int:
        """Rows that are multiplied."""
        return 64 * self.tile.warpgroups.high * self.row_tiles

    @cached_property
    def row_blocks(self) -> int:
        """Blocks that share the output channels of a group."""
        phase_blocks = self.layer.stride[2] // self.width_phases
        return ceil_div(self.layer.out_channels_per_group, self.tile.channels) * phase_blocks

    @cached_property
    def factors_in_stages(self) -> bool:
        """Whether products read weights where copies put them; else these go to registers."""
        return self.item_bytes == 2

    @cached_property
    def inputs_in_stages(self) -> bool:
        """Whether products read inputs where copies put them; else these are moved."""
        return (self.tile.prepared_inputs > 0) | ((self.tile.runs == 0) & self.factors_in_stages)

    @cached_property
    def rows_of_positions(self) -> bool:
        """Whether the second factor has a row for each position; else it has blocks of 64 columns."""
        return (self.tile.inputs_last > 0) | (self.inputs_in_stages == 0)

    @cached_property
    def lane_rows(self) -> int:
        """Neighbouring rows of a lane that loads weights."""
        return 1 if self.factors_in_stages else 2 * self.row_tiles

    # ---- columns of the product: positions ----

    @cached_property
    def product_rows(self) -> int:
        """Positions of a product, PTX's N."""
        return _instruction(ceil_div(self.positions, self.tile.warpgroups.wide))

    @cached_property
    def all_positions(self) -> int:
        """Positions that are multiplied."""
        return self.tile.warpgroups.wide * self.product_rows

    @cached_property
    def fits_products(self) -> bool:
        """Whether there are instructions for so many positions, and each product's begin where a block of 64 does."""
        in_blocks = self.rows_of_positions | (self.tile.warpgroups.wide == 1) | (self.product_rows % 64 == 0)
        return in_blocks & (self.positions <= _PRODUCT_ROWS[-1] * self.tile.warpgroups.wide)

    # ---- depth of the product: input channels ----

    @cached_property
    def set_threads(self) -> int:
        return 128 * self.tile.warpgroups.high * self.tile.warpgroups.wide

    @cached_property
    def stages_read(self) -> int:
        """Stages that are read while copies are on their way to the others: two where products read them."""
        return where(self.inputs_in_stages | self.factors_in_stages, 2, 1)

    @cached_property
    def stages_ahead(self) -> int:
        """K-tiles that are asked for before the first is waited for: all, or all stages but the one that is read."""
        return where(self.tile.stages == self.set_k_tiles, self.tile.stages, self.tile.stages - self.stages_read)

    # ---- copies and shared memory, in bytes ----

    @cached_property
    def weight_copy(self) -> int:
        return gcd(COPY_BYTES, where(self.tile.phases > 0, self.tile.phases, self.weight_run) * self.item_bytes)

    @cached_property
    def weight_pitch(self) -> int:
        """From the weights of a channel to those of the next, of 32-bit items."""
        return 4 * conflict_free(self.rows, 1)

    @cached_property
    def input_pitch(self) -> int:
        """From a channel's inputs to the next channel's, or from a position's channels to the next position's."""
        by_channel = ceil_div(self.positions * self.item_bytes, COPY_BYTES) * COPY_BYTES
        of_runs = self.tile.block_tile.images * self.run_copies * COPY_BYTES
        of_copies = where(self.tile.inputs_last > 0, self.k_tile_bytes + COPY_BYTES, by_channel)
        return where(self.tile.runs > 0, of_runs, of_copies)

    @cached_property
    def factor_bytes(self) -> int:
        """Of a k-tile of the second factor: rows of positions, or blocks of 64 columns of them."""
        positions = where(self.rows_of_positions, self.all_positions, ceil_div(self.all_positions, 64) * 64)
        return positions * self.k_tile_bytes

    @cached_property
    def stage_bytes(self) -> int:
        """Of a stage of a set: of a k-tile's weights and inputs."""
        columns = self.rows // 64 * self.k_tile_channels * 128
        pitched = self.k_tile_channels * self.weight_pitch
        of_registers = where(self.inputs_in_stages, ceil_div(pitched, 1024) * 1024, pitched)
        weights = columns if self.factors_in_stages else of_registers
        rows = where(self.tile.inputs_last > 0, self.positions, self.k_tile_channels)
        return ceil_div(weights + where(self.inputs_in_stages, self.factor_bytes, rows * self.input_pitch), 1024) * 1024

    @cached_property
    def moved_bytes(self) -> int:
        """Of two k-tiles of moved inputs."""
        return where(self.inputs_in_stages, 0, 2 * self.factor_bytes)

    @cached_property
    def set_bytes(self) -> int:
        """Of a set: what was moved, and its stages."""
        return self.moved_bytes + self.tile.stages * self.stage_bytes

    @cached_property
    def sums_pitch(self) -> int:
        """Floats from the sums of a row to those of the next."""
        return conflict_free(self.all_positions, least(self.lane_rows, 4))

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: what its sets have, or their sums in the same place."""
        return self.tile.warpgroups.splits * most(self.set_bytes, self.rows * self.sums_pitch * 4)

    # ---- outputs ----

    @cached_property
    def sum_channels(self) -> int:
        """Output channels that a thread sums and stores at once: few enough for each thread to have two turns."""
        depth, height, _ = self.layer.stride
        phases = depth * height * self.width_phases
        of_threads = where(self.width_phases <= 4, self.width_phases, 1)
        most = where(self.sums_by_position, _SUMS // phases, _MOST_CHANNELS)
        items = self.positions * self.tile.channels * where(self.sums_by_position, 1, phases // of_threads)
        count: Any = 1
        for twice in (2, 4, 8, 16, 32):
            fits = (twice // 2 < most) & (self.tile.channels % twice == 0) & (items >= 2 * twice * self.threads)
            count = where(fits & (twice == 2 * count), twice, count)
        return count

    @cached_property
    def channels_stored(self) -> int:
        """Of them, neighbours that are stored at once in channels_last."""
        together = gcd(gcd(self.sum_channels, self.layer.out_channels_per_group), COPY_BYTES // self.item_bytes)
        return where((self.tile.channels_last > 0) & self.sums_by_position, together, 1)

    # ---- what a compiler and a GPU are expected to make of it; the kernel knows nothing of this ----

    @cached_property
    def registers(self) -> int:
        """Registers of a thread, estimated."""
        accumulators = self.row_tiles * self.product_rows // 2
        fragments = 0 if self.factors_in_stages else 4 * self.row_tiles * self.tile.k_tile_steps
        return accumulators + fragments + 56

    @cached_property
    def fits_registers(self) -> bool:
        """Whether a multiprocessor has as many for a block."""
        return registers_fit(self.registers, self.threads)

    @cached_property
    def blocks_that_fit(self) -> int:
        """Blocks that a multiprocessor holds, by shared memory and by the registers that threads may want."""
        return blocks_that_fit(self.registers * self.threads, self.shared_bytes, _MOST_BLOCKS)


def sums_by_position(taps: Any, phases: Any) -> Any:
    """Whether a thread has all phases of a position: where there are few, with few taps to sum."""
    return (taps <= _MOST_TAPS) & (phases <= _MOST_PHASES)


def of_phases(layer: Layer, phases: int) -> Layer:
    """The layer that a block with so many phases along the width computes; `layer` itself for 0, which are all."""
    if not phases:
        return layer
    width = layer.axes[2]
    return replace(
        layer,
        kernel=(*layer.kernel[:2], width.taps_per_phase * phases),
        stride=(*layer.stride[:2], phases),
        padding=(*layer.padding[:2], 0),
    )


def _instruction(positions: Any) -> Any:
    """The smallest number of positions from there on for which there is an instruction."""
    found = np.searchsorted(np.array(_PRODUCT_ROWS), positions)
    counts = np.array(_PRODUCT_ROWS)[np.minimum(found, len(_PRODUCT_ROWS) - 1)]
    return counts if np.ndim(positions) else int(counts)
