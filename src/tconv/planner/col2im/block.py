"""What follows from a layer and a tile in both col2im families: the rows, positions and copies of a block."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from tconv.planner.numbers import ceil_div, gcd, where
from tconv.problem import Layer

#: Bytes of channels of a step, and of a copy at most.
STEP_BYTES, COPY_BYTES = 32, 16


class Col2imBlock(ABC):
    """Constants that both kernels have; the shapes of the families derive from it.

    The tile may stand for many (`tconv.planner.numbers`).
    """

    def __init__(self, layer: Layer, tile: Any) -> None:
        self.layer = layer
        self.tile = tile

    @property
    @abstractmethod
    def taps(self) -> int:
        """Of a block's output channel."""

    @property
    @abstractmethod
    def row_blocks(self) -> int:
        """Blocks with different weights that share the output channels of a group."""

    @property
    @abstractmethod
    def splits(self) -> int:
        """Sets that share the input channels."""

    @property
    def item_bytes(self) -> int:
        return self.layer.item_bytes

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    # ---- rows of the product: the taps of a block's output channels ----

    @cached_property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.tile.channels * self.taps

    @cached_property
    def weight_sets(self) -> int:
        """`row_blocks` of all groups: blocks with different weights."""
        return self.layer.groups * self.row_blocks

    @cached_property
    def channel_run(self) -> int:
        """Rows of a block's output channel that lie together, beside those of its neighbours."""
        return 1 if self.layer.weights_last else self.taps

    @cached_property
    def weight_run(self) -> int:
        """Weights that lie together in every block, and begin at a multiple of their number."""
        return gcd(self.layer.out_channels_per_group, self.tile.channels) * self.channel_run

    # ---- columns of the product: positions ----

    @cached_property
    def run_positions(self) -> int:
        """Positions of an image."""
        block_tile = self.tile.block_tile
        return block_tile.depths * block_tile.rows * block_tile.columns

    @cached_property
    def positions(self) -> int:
        """Positions of a block."""
        return self.tile.block_tile.images * self.run_positions

    # ---- depth of the product: input channels, in steps of 32 bytes; a stage has a k-tile of steps ----

    @cached_property
    def step_channels(self) -> int:
        return STEP_BYTES // self.item_bytes

    @cached_property
    def k_tile_channels(self) -> int:
        """Input channels of a stage."""
        return self.tile.k_tile_steps * self.step_channels

    @cached_property
    def k_tile_bytes(self) -> int:
        """Of a position."""
        return self.tile.k_tile_steps * STEP_BYTES

    @cached_property
    def k_tiles(self) -> int:
        return ceil_div(self.layer.in_channels_per_group, self.k_tile_channels)

    @cached_property
    def set_k_tiles(self) -> int:
        """K-tiles of a set."""
        return ceil_div(self.k_tiles, self.splits)

    # ---- copies, in bytes ----

    @property
    @abstractmethod
    def weight_copy(self) -> int:
        """Of neighbouring weights."""

    @cached_property
    def input_copy(self) -> int:
        of_channels = math.gcd(COPY_BYTES, self.layer.in_channels_per_group * self.item_bytes)
        copied = where(self.tile.inputs_last > 0, of_channels, self.tile.patch_positions * self.item_bytes)
        return where(self.tile.runs > 0, COPY_BYTES, copied)

    @cached_property
    def run_copies(self) -> int:
        """Copies of a run, which may begin anywhere in the first."""
        items = COPY_BYTES // self.item_bytes
        return ceil_div(self.run_positions + items - 1, items)
