"""What follows from a layer and a tile of the `mma` family."""

from __future__ import annotations

import math
from functools import cached_property

from tconv.planner.gpu import blocks_that_fit
from tconv.planner.mma.tile import BlockTile, MmaTile
from tconv.planner.numbers import ceil_div, least, most, nowhere, where
from tconv.planner.shifts import halo, shift_count
from tconv.problem import Axis, Layer, Triple

_LANES = 32
_FRAGMENT_BYTES = 512
_STEP_BYTES = 32
#: The most tiles of positions that a warp has.
_MOST_POSITION_TILES = 8
#: What outputs that are stored at once may take of shared memory, if the stages took less.
_TURN_LEAST_BYTES = 32 * 1024
_BARRIER_BYTES = 16
#: Registers that a thread may have; blocks that are asked for at most.
_MOST_REGISTERS = 255
_MOST_BLOCKS = 8


_CONSTANTS = (
    *("item_bytes", "vector_items", "accumulator_bytes", "planes"),
    *("phases", "phase_tiles", "block_row_tiles", "row_blocks", "shifts", "shift_groups"),
    *("stage_steps", "k_tile_channels", "k_tiles", "threads", "warps", "block_tile_positions", "block_positions"),
    *("halo_columns", "halo_all_rows", "row_patches", "halo_patches", "shift_bytes", "weight_bytes", "preparing_items"),
    *("input_stages", "input_stage_bytes", "weight_stages", "stages_bytes", "joined_bytes", "shared_bytes"),
    *("subtile_row_tiles", "staged_bytes", "subtile_position_tiles", "subtile_bytes"),
    *("whole_vectors", "patch_lanes", "thread_patches", "thread_loads"),
)


class MmaShape:
    """The constants of a kernel: `MmaShape` of `kernels/mma/shape.cuh` has those of the same names.

    The tile may stand for many (`tconv.planner.numbers`).
    """

    def __init__(self, layer: Layer, tile: MmaTile) -> None:
        self.layer = layer
        self.tile = tile

    def constants(self) -> tuple[str, ...]:
        """The names of those that the template must agree on."""
        return _CONSTANTS

    # ---- products ----

    @cached_property
    def item_bytes(self) -> int:
        return self.layer.item_bytes

    @cached_property
    def vector_items(self) -> int:
        """Items in 16 bytes."""
        return 16 // self.item_bytes

    @cached_property
    def accumulator_bytes(self) -> int:
        """Bytes of one accumulator."""
        return max(4, self.item_bytes)

    @cached_property
    def planes(self) -> int:
        """Numbers that stand for one factor: exact fp32 takes two."""
        return 2 if self.layer.precision == "fp32" else 1

    # ---- rows: output channels and phases ----

    @cached_property
    def phases(self) -> int:
        return math.prod(self.layer.stride)

    @cached_property
    def phase_tiles(self) -> int:
        """Tiles of 16 rows that hold all phases of their channels."""
        return ceil_div(self.phases * self.tile.channels, 16)

    @cached_property
    def block_row_tiles(self) -> int:
        """Tiles of 16 rows of a block."""
        return self.tile.warps.high * self.tile.warps.row_tiles

    @cached_property
    def row_blocks(self) -> int:
        """Blocks that share one block tile of positions."""
        tiles = self.phase_tiles * ceil_div(self.layer.out_channels_per_group, self.tile.channels)
        return ceil_div(tiles, self.block_row_tiles)

    @cached_property
    def weight_sets(self) -> int:
        """The same of all groups: blocks with different weights."""
        return self.layer.groups * self.row_blocks

    # ---- shifts ----

    @cached_property
    def moved(self) -> tuple[Axis, Axis, Axis]:
        """The axes of positions that own the outputs from ``q * stride - origin`` on."""
        depth, height, width = (
            Axis(axis.kernel, axis.stride, axis.padding - origin, axis.dilation)
            for axis, origin in zip(self.layer.axes, origins(self.tile.block_tile), strict=True)
        )
        return depth, height, width

    @cached_property
    def halos(self) -> Triple:
        """`halo` of each axis."""
        depth, height, width = map(halo, self.moved)
        return depth, height, width

    @cached_property
    def shifts(self) -> int:
        """Those of all axes, from the lowest to the highest on each."""
        depth, height, width = map(shift_count, self.moved)
        return depth * height * width

    @cached_property
    def shift_groups(self) -> int:
        return ceil_div(self.shifts, self.tile.pipeline.k_tile_shifts)

    @cached_property
    def fragments_with_taps(self) -> int:
        """Pairs of a shift and a tile of 16 rows of a block that are multiplied.

        Where a tile of rows is one phase, those at which the phase has a tap: every tap is one phase at one shift.
        """
        if self.tile.channels < 16:
            return self.shifts * self.block_row_tiles
        return ceil_div(math.prod(self.layer.kernel) * self.block_row_tiles, self.phase_tiles)

    # ---- channels: a k-tile has some steps for each set of warps ----

    @cached_property
    def stage_steps(self) -> int:
        """Products of 32 bytes of channels in a k-tile, of all sets of warps."""
        return self.tile.warps.splits * self.tile.pipeline.k_tile_steps

    @cached_property
    def k_tile_channels(self) -> int:
        """Input channels of a k-tile."""
        return self.stage_steps * (_STEP_BYTES // self.item_bytes)

    @cached_property
    def k_tiles(self) -> int:
        """K-tiles of the input channels of a group."""
        return ceil_div(self.layer.in_channels_per_group, self.k_tile_channels)

    # ---- positions: a block tile, and the inputs around it ----

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    @cached_property
    def warps(self) -> int:
        """Warps of one set."""
        return self.tile.warps.high * self.tile.warps.wide

    @cached_property
    def block_tile_positions(self) -> int:
        """Positions of a block tile."""
        block_tile = self.tile.block_tile
        return block_tile.images * block_tile.depths * block_tile.rows * block_tile.columns

    @cached_property
    def block_positions(self) -> int:
        """Positions that a block multiplies; a block tile has at most as many."""
        return self.tile.warps.wide * self.tile.warps.position_tiles * 8

    @cached_property
    def halo_columns(self) -> int:
        """Columns of inputs that a block tile needs."""
        return self.tile.block_tile.columns + self.halos[2]

    @cached_property
    def halo_all_rows(self) -> int:
        """Rows of inputs of one channel that a block tile needs."""
        block_tile = self.tile.block_tile
        return block_tile.images * (block_tile.depths + self.halos[0]) * (block_tile.rows + self.halos[1])

    @cached_property
    def row_patches(self) -> int:
        """Patches of neighbouring columns that hold such a row."""
        width, together = self.moved[2], self.tile.pipeline.patch_columns
        lead = -width.shift_of(width.kernel - 1) % together
        return ceil_div(lead + self.halo_columns, together)

    @cached_property
    def halo_patches(self) -> int:
        """Patches that hold the inputs of one channel that a block tile needs."""
        return self.halo_all_rows * self.row_patches

    # ---- prepared weights ----

    @cached_property
    def shift_bytes(self) -> int:
        """Prepared weights of a block for one shift and one k-tile."""
        return self.stage_steps * self.planes * self.block_row_tiles * _FRAGMENT_BYTES

    @cached_property
    def weight_bytes(self) -> int:
        """All prepared weights."""
        return self.weight_sets * (self.k_tiles * self.shifts * self.shift_bytes)

    @cached_property
    def preparing_items(self) -> int:
        """Threads that prepare the weights: one for some taps of the filters of a lane, or for a vector of 16 bytes."""
        if self.tile.channels < 16:
            return self.weight_bytes // 16
        channel_tiles = ceil_div(self.row_blocks * self.block_row_tiles, self.phase_tiles)
        taps = math.prod(self.layer.kernel) // self.tile.taps_together
        return self.layer.groups * channel_tiles * self.k_tiles * self.stage_steps * taps * _LANES

    # ---- shared memory: stages of inputs and of weights, and what tells when those have landed ----

    @cached_property
    def input_stages(self) -> int:
        """Two where one is read while one is written, more of copied inputs."""
        several = (self.k_tiles > 1) | (self.tile.pipeline.resident > 0)
        return where(self.tile.pipeline.copied > 0, self.tile.pipeline.copied, where(several, 2, 1))

    @cached_property
    def input_stage_bytes(self) -> int:
        """Of a k-tile of a block tile's inputs: channel by channel if copied, else position by position."""
        position = self.planes * self.stage_steps * _STEP_BYTES + 16
        by_position = self.halo_all_rows * self.halo_columns * position
        copied = self.tile.pipeline.copied > 0
        if nowhere(copied):
            return by_position
        # So many bytes further, copied channels that are read together lie in different banks.
        shift = 16 if self.item_bytes < 4 else 32
        places = self.halo_patches * self.tile.pipeline.patch_columns * self.item_bytes
        by_channel = self.k_tile_channels * (ceil_div(places - shift, 128) * 128 + shift)
        return where(copied, by_channel, by_position)

    @cached_property
    def weight_stages(self) -> int:
        steps = self.k_tiles * self.shift_groups
        return where(self.tile.pipeline.resident > 0, steps, least(2, steps))

    @cached_property
    def stages_bytes(self) -> int:
        """All stages."""
        weights = self.weight_stages * self.tile.pipeline.k_tile_shifts * self.shift_bytes
        return self.input_stages * self.input_stage_bytes + weights

    @cached_property
    def joined_bytes(self) -> int:
        """What the other sets of warps give to the first, in the place of the stages."""
        tiles = self.tile.warps.row_tiles * self.tile.warps.position_tiles
        return (self.tile.warps.splits - 1) * _LANES * self.warps * tiles * 4 * self.accumulator_bytes

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block.

        At the end the sets of warps put their accumulators in the place of the stages. After that the warps put their
        outputs there. Resident weights stay, and the next inputs with them.
        """
        stays = self.tile.pipeline.resident > 0
        stored = where(stays, self.stages_bytes, self.joined_bytes) + self.warps * self.subtile_bytes
        return most(self.stages_bytes, stored) + _BARRIER_BYTES

    def shifts_that_fit(self, most_shared: int) -> int:
        """Shifts whose weights find room beside the inputs, in all stages together; negative where these do not."""
        return (most_shared - _BARRIER_BYTES - self.input_stages * self.input_stage_bytes) // self.shift_bytes

    # ---- outputs: a warp stores them in subtiles through shared memory ----

    @cached_property
    def subtile_row_tiles(self) -> int:
        """Tiles of rows of a subtile: with all column phases of their channels, where a warp has them."""
        stride, tile_phases, tiles = self.layer.stride[2], 16 // self.tile.channels, self.phase_tiles
        whole = stride // math.gcd(stride, tile_phases)
        rows = self.tile.warps.row_tiles
        all_phases = where(rows % tiles == 0, tiles, 1)
        return where((rows % whole == 0) & (tiles % whole == 0), whole, all_phases)

    @cached_property
    def staged_bytes(self) -> int:
        """Of an output in a subtile: a program takes accumulators."""
        return self.accumulator_bytes if self.layer.epilogue else self.item_bytes

    @cached_property
    def subtile_position_tiles(self) -> int:
        """Tiles of positions of a subtile: as many as fit."""
        left = where(self.tile.pipeline.resident > 0, 0, self.stages_bytes - self.joined_bytes)
        return self.position_tiles_within(most(_TURN_LEAST_BYTES, left))

    def position_tiles_within(self, most_bytes: int = _TURN_LEAST_BYTES) -> int:
        """Tiles of positions of a subtile, if all warps of a set may take so many bytes."""
        at_most = most_bytes // (16 * self.subtile_row_tiles * self.warps)
        tiles = 1
        for count in range(2, _MOST_POSITION_TILES + 1):
            fits = (self.tile.warps.position_tiles % count == 0) & (self._subtile_pitch(count) <= at_most)
            tiles = where(fits, count, tiles)
        return tiles

    @cached_property
    def subtile_bytes(self) -> int:
        """Shared memory of a warp for the outputs of a subtile."""
        return 16 * self.subtile_row_tiles * self._subtile_pitch(self.subtile_position_tiles)

    def _subtile_pitch(self, position_tiles: int) -> int:
        """Bytes from a row to the next: lanes that write neighbouring rows find different banks."""
        at_least = 8 * position_tiles * self.staged_bytes
        return at_least + ((16 if self.tile.channels_last else 8 * self.staged_bytes) - at_least) % 128

    # ---- who loads a k-tile of inputs ----

    @cached_property
    def whole_vectors(self) -> bool:
        """Whether a load loads a vector of neighbouring channels; else of each channel a patch."""
        return self.tile.channels_last > 0 and self.layer.in_channels_per_group % self.vector_items == 0

    @cached_property
    def patch_lanes(self) -> int:
        """Of a block's threads, those that share the patches of some copied channels: so that each has the fewest."""
        patches, channels, threads = self.halo_patches, self.k_tile_channels, self.threads
        best, fewest = threads, ceil_div(patches, threads) * channels
        for halvings in range(1, 6):
            lanes = most(1, threads >> halvings)
            loads = ceil_div(patches, lanes) * ceil_div(channels * lanes, threads)
            fewer = (lanes >= 8) & (threads % lanes == 0) & (loads < fewest)
            best, fewest = where(fewer, lanes, best), where(fewer, loads, fewest)
        return best

    @cached_property
    def thread_patches(self) -> int:
        """Patches that a thread loads: of a vector of channels, or of each of its channels."""
        vectors = self.k_tile_channels // self.vector_items
        transposed = ceil_div(self.halo_patches * vectors, self.threads)
        copied = self.tile.pipeline.copied > 0
        return (
            transposed if nowhere(copied) else where(copied, ceil_div(self.halo_patches, self.patch_lanes), transposed)
        )

    @cached_property
    def thread_loads(self) -> int:
        """Loads or copies with which it loads them."""
        loads = self.thread_patches * (1 if self.whole_vectors else self.vector_items)
        copied = self.tile.pipeline.copied > 0
        if nowhere(copied):
            return loads
        channels = ceil_div(self.k_tile_channels * self.patch_lanes, self.threads)
        return where(copied, self.thread_patches * channels, loads)

    # ---- what a compiler and a GPU are expected to make of it; the kernel knows nothing of this ----

    @cached_property
    def body_products(self) -> int:
        """Products of a warp for one k-tile, of each set: the body of a loop."""
        return self.shifts * self.step_products

    @cached_property
    def step_products(self) -> int:
        """Those of one shift."""
        return self.tile.pipeline.k_tile_steps * self.tile.warps.row_tiles * self.tile.warps.position_tiles

    @cached_property
    def held(self) -> int:
        """Registers of a thread's part of a k-tile of inputs."""
        words = most(1, self.tile.pipeline.patch_columns * self.item_bytes // 4)
        words = 4 if self.whole_vectors else self.vector_items * words
        return where(self.tile.pipeline.copied > 0, 0, self.thread_patches * words)

    @cached_property
    def registers_wanted(self) -> int:
        """Registers that a thread would take if it could have any number."""
        accumulators = self.tile.warps.row_tiles * self.tile.warps.position_tiles * self.accumulator_bytes
        columns = 2 * self.tile.warps.position_tiles * self.planes
        return accumulators * self.planes + columns + self.held + self.thread_patches + 56

    @cached_property
    def registers(self) -> int:
        """Registers of a thread, estimated; a compiler may take fewer."""
        return least(_MOST_REGISTERS, self.registers_wanted)

    @cached_property
    def blocks_that_fit(self) -> int:
        """Blocks that a multiprocessor holds, by shared memory and by the registers that threads may want."""
        return blocks_that_fit(self.registers * self.threads, self.shared_bytes, _MOST_BLOCKS)


def origins(block_tile: BlockTile) -> Triple:
    """Of depth, height and width."""
    return block_tile.depth_origin, block_tile.row_origin, block_tile.origin
