"""What follows from a layer and a tile of the `wgmma` family."""

from __future__ import annotations

import math
from enum import IntEnum
from functools import cached_property

from tconv.planner.numbers import ceil_div, gcd, least, most, where
from tconv.planner.shifts import halo, most_taps, shift_count
from tconv.planner.wgmma.tile import WgmmaTile
from tconv.problem import Axis, Layer

_STEP_BYTES = 32
#: Warpgroups that multiply, positions of a tile of each, and threads that load inputs.
CONSUMERS, TILE_POSITIONS, LOADERS = 2, 64, 96
#: Neighbouring phases that are staged, of 16 and 32 bits.
_MOST_RUN = {2: 16, 4: 12}
#: Of the L2 cache.
LINE_BYTES = 128
#: Patches of which a thread keeps the offset.
MOST_PATCHES = 8

_CONSTANTS = (
    *("item_bytes", "vector_items", "threads", "phases", "phase_sets", "channel_blocks", "weight_sets"),
    *("planes", "shifts", "taps", "products", "accumulated_products", "product_rows", "visits", "row_visits"),
    *("fragments", "visit_pieces"),
    *("batch_steps", "batches"),
    *("k_tile_bytes", "k_tile_channels", "k_tiles", "block_positions", "block_tile_positions", "stacked_rows"),
    *("halo_columns", "halo_all_rows", "row_patches", "halo_patches", "row_places", "channel_bytes", "place_bytes"),
    *(
        "input_stage_bytes",
        "raw_stage_bytes",
        "patch_lanes",
        "thread_patches",
        "piece_bytes",
        "weight_stage_bytes",
        "k_tile_pieces",
    ),
    *("weights_together", "block_units", "weight_bytes", "preparing_items"),
    *("group_by_group", "run", "by_runs", "staged_bytes", "shared_bytes"),
)


class WgmmaKind(IntEnum):
    """The kinds of blocks: those of `kernels/wgmma/shape.cuh`, which says what they are."""

    UNIFORM = 0
    ALL_PHASES = 1
    ROW_PHASES = 2
    ONE_PHASE = 3


class WgmmaShape:
    """The constants of a kernel: `WgmmaShape` of `kernels/wgmma/shape.cuh` has those of the same names.

    The tile may stand for many (`tconv.planner.numbers`).
    """

    def __init__(self, layer: Layer, tile: WgmmaTile) -> None:
        self.layer = layer
        self.tile = tile

    def constants(self) -> tuple[str, ...]:
        """The names of those that the template must agree on."""
        return _CONSTANTS

    @cached_property
    def item_bytes(self) -> int:
        return self.layer.item_bytes

    @cached_property
    def vector_items(self) -> int:
        """Items in 16 bytes."""
        return 16 // self.item_bytes

    @cached_property
    def exact(self) -> bool:
        """Whether float32 factors are split, and three products added."""
        return self.layer.precision == "fp32"

    @cached_property
    def planes(self) -> int:
        """Numbers that stand for a factor."""
        return 2 if self.exact else 1

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    # ---- rows: output channels of some phases ----

    @cached_property
    def phases(self) -> int:
        return math.prod(self.layer.stride)

    @cached_property
    def phase_sets(self) -> int:
        """Blocks that share the phases of a block tile and some channels."""
        return self.phases // self.tile.phases

    @cached_property
    def channel_blocks(self) -> int:
        """Blocks that share the output channels of a group."""
        return ceil_div(self.layer.out_channels_per_group, self.tile.channels)

    @cached_property
    def weight_sets(self) -> int:
        """Blocks with different weights, which share a block tile."""
        return self.layer.groups * self.channel_blocks * self.phase_sets

    # ---- shifts ----

    @cached_property
    def shifts(self) -> int:
        return math.prod(map(shift_count, self.layer.axes))

    @cached_property
    def taps(self) -> int:
        return math.prod(self.layer.kernel)

    @cached_property
    def kind(self) -> int:
        """The `WgmmaKind` of its blocks."""
        if is_uniform(self.layer):
            return WgmmaKind.UNIFORM
        of_some = where(self.tile.phases == 1, WgmmaKind.ONE_PHASE, WgmmaKind.ROW_PHASES)
        return where(self.tile.phases == self.phases, WgmmaKind.ALL_PHASES, of_some)

    @cached_property
    def one_row_phase(self) -> bool:
        """Whether a block has one phase along depth and height."""
        return (self.kind == WgmmaKind.ROW_PHASES) | (self.kind == WgmmaKind.ONE_PHASE)

    @cached_property
    def share_with_taps(self) -> float:
        """The part of the blocks' works that have a tap."""
        of_axes = [axis.phases_with_taps / axis.stride for axis in self.layer.axes]
        of_width = where(self.kind == WgmmaKind.ONE_PHASE, of_axes[2], 1.0)
        return where(self.one_row_phase, of_axes[0] * of_axes[1] * of_width, 1.0)

    @cached_property
    def accumulated_products(self) -> int:
        """Products that have accumulators: those of a phase that has taps."""
        return 1 if self.kind is WgmmaKind.UNIFORM else accumulated_phases(self.layer, self.tile.phases)

    @cached_property
    def share_staged(self) -> float:
        """The part of the outputs that comes from accumulators: of phases along depth and height that have taps."""
        depth, height = (axis.phases_with_taps / axis.stride for axis in self.layer.axes[:2])
        return where(self.kind == WgmmaKind.ALL_PHASES, depth * height, self.share_with_taps)

    @cached_property
    def products(self) -> int:
        """Products that a visit takes at most, for each tile of positions."""
        return 1 if self.kind is WgmmaKind.UNIFORM else self.tile.phases

    @cached_property
    def product_rows(self) -> int:
        """Rows of weights of each."""
        return self.tile.channels * (self.tile.phases if self.kind is WgmmaKind.UNIFORM else 1)

    @cached_property
    def row_phase_taps(self) -> int:
        """Along depth and height, of the phases that have the most."""
        return self.layer.axes[0].taps_per_phase * self.layer.axes[1].taps_per_phase

    @cached_property
    def visits(self) -> int:
        """How often a block stops in a k-tile: at each shift, or at each tap of its phase."""
        width = self.layer.axes[2]
        of_width = where(self.kind == WgmmaKind.ONE_PHASE, width.taps_per_phase, shift_count(width))
        return where(self.one_row_phase, self.row_phase_taps * of_width, self.shifts)

    @cached_property
    def row_visits(self) -> int:
        """Visits that share their fragments of positions."""
        return where(self.tile.stacked > 0, shift_count(self.layer.axes[1]), 1)

    @cached_property
    def fragments(self) -> int:
        """Of positions, for a step."""
        return self.tile.position_tiles + self.row_visits - 1

    @cached_property
    def batch_steps(self) -> int:
        """Steps whose products are on their way together."""
        if self.exact:
            return least(self.tile.k_tile_steps, where(self.row_visits > 2, 1, 4 // self.row_visits))
        return where((self.tile.k_tile_steps == 4) & (2 * self.fragments <= 6), 2, 1)

    @cached_property
    def batches(self) -> int:
        """Batches of steps whose fragments are in registers."""
        return 1 if self.exact else 2

    # ---- channels ----

    @cached_property
    def k_tile_bytes(self) -> int:
        return self.tile.k_tile_steps * _STEP_BYTES

    @cached_property
    def k_tile_channels(self) -> int:
        return self.k_tile_bytes // self.item_bytes

    @cached_property
    def k_tiles(self) -> int:
        return ceil_div(self.layer.in_channels_per_group, self.k_tile_channels)

    # ---- positions ----

    @cached_property
    def block_positions(self) -> int:
        return CONSUMERS * TILE_POSITIONS * self.tile.position_tiles

    @cached_property
    def block_tile_positions(self) -> int:
        block_tile = self.tile.block_tile
        return block_tile.images * block_tile.depths * block_tile.rows * block_tile.columns

    @cached_property
    def stacked_rows(self) -> int:
        """Rows of the block tile that follow each other in one tile."""
        return self.tile.block_tile.rows // where(self.tile.stacked > 0, self.tile.position_tiles, 1)

    @cached_property
    def halo_columns(self) -> int:
        return self.tile.block_tile.columns + _halo(self.layer.axes[2], self.kind == WgmmaKind.ONE_PHASE)

    @cached_property
    def halo_all_rows(self) -> int:
        depth, height = (_halo(axis, self.one_row_phase) for axis in self.layer.axes[:2])
        block_tile = self.tile.block_tile
        return block_tile.images * (block_tile.depths + depth) * (block_tile.rows + height)

    # ---- inputs ----

    @cached_property
    def inputs_last(self) -> bool:
        """Whether inputs lie with the channels of a place together."""
        return (self.tile.channels_last > 0) | (self.tile.prepared_inputs > 0)

    @cached_property
    def straight(self) -> bool:
        """Whether 16-bit inputs that lie channel by channel are read from there by eight neighbours of a channel."""
        width = self.layer.axes[2]
        same_column = shift_count(width) == 1 and width.shift_of(width.kernel - 1) % 8 == 0 and self.item_bytes == 2
        return same_column & (self.inputs_last == 0) & (self.tile.patch_columns == 8)

    @cached_property
    def by_channel(self) -> bool:
        """Whether inputs lie channel by channel in shared memory."""
        return (self.inputs_last == 0) & ((self.item_bytes == 4) | self.straight)

    @cached_property
    def transposed(self) -> bool:
        """Whether inputs are copied channel by channel, and transposed from there."""
        return (self.inputs_last == 0) & (self.item_bytes == 2) & (self.straight == 0)

    @cached_property
    def unaligned(self) -> bool:
        """Whether their rows begin anywhere, and come by all 16 bytes that hold a part of them."""
        return self.transposed & (self.tile.patch_columns == 1)

    @cached_property
    def by_place(self) -> bool:
        """Whether vectors of channels are copied."""
        return self.inputs_last & (self.layer.in_channels_per_group % self.vector_items == 0)

    @cached_property
    def group_by_group(self) -> bool:
        """Whether blocks go through one group after the other."""
        of_position = self.layer.in_channels_per_group * self.item_bytes
        whole_lines = (self.inputs_last == 0) | (of_position >= LINE_BYTES)
        return (self.layer.groups > 1) & (self.tile.resident == 0) & whole_lines

    @cached_property
    def row_patches(self) -> int:
        width, together = self.layer.axes[2], self.tile.patch_columns
        # What comes before a block tile's columns in its first patch, with its halo: of all phases, or the most of any
        # one's.
        around = -width.shift_of(width.kernel - 1) % together + halo(width)
        of_one = 0
        for shift, taps in {(width.shift_of(t[-1]), len(t)) for t in map(width.taps, range(width.stride)) if t}:
            of_one = most(of_one, -shift % together + (taps - 1) * width.shift_period)
        loaded = where(self.transposed, 8, together)
        columns = self.tile.block_tile.columns + where(self.kind == WgmmaKind.ONE_PHASE, of_one, around)
        aligned = ceil_div(columns, loaded) * (loaded // together)
        return where(self.unaligned, ceil_div(self.halo_columns + 7, 8), aligned)

    @cached_property
    def halo_patches(self) -> int:
        return self.halo_all_rows * self.row_patches

    @cached_property
    def row_places(self) -> int:
        """Places of a row of the halo in shared memory."""
        whole_patches = self.by_channel | (self.transposed & (self.tile.patch_columns > 1))
        return where(whole_patches, self.row_patches * self.tile.patch_columns, self.halo_columns)

    @cached_property
    def channel_bytes(self) -> int:
        """From a channel to the next, where they lie one by one."""
        bytes_of_channel = self.halo_patches * where(self.unaligned, 16, self.tile.patch_columns * self.item_bytes)
        shift = 16 if self.item_bytes == 2 else 32
        one_by_one = (bytes_of_channel + 127 - shift) // 128 * 128 + shift
        return where(self.by_channel | self.transposed, one_by_one, self.item_bytes)

    @cached_property
    def place_bytes(self) -> int:
        """From a place to the next."""
        return where(self.by_channel, self.item_bytes, self.k_tile_bytes + 16)

    @cached_property
    def input_stage_bytes(self) -> int:
        by_place = self.halo_all_rows * self.row_places * self.place_bytes
        return where(self.by_channel, self.k_tile_channels * self.channel_bytes, by_place)

    @cached_property
    def raw_stage_bytes(self) -> int:
        """What is transposed from."""
        return where(self.transposed, self.k_tile_channels * self.channel_bytes, 0)

    @cached_property
    def patch_lanes(self) -> int:
        """Threads that share the patches of some channels."""
        best, fewest = LOADERS, self._copies(LOADERS)
        for lanes in (lanes for lanes in range(LOADERS, 7, -1) if LOADERS % lanes == 0):
            copies = self._copies(lanes)
            better = (ceil_div(self.halo_patches, lanes) <= MOST_PATCHES) & (copies < fewest)
            best, fewest = where(better, lanes, best), where(better, copies, fewest)
        return where(self.by_channel | self.transposed, best, LOADERS)

    def _copies(self, lanes: int) -> int:
        return ceil_div(self.halo_patches, lanes) * ceil_div(self.k_tile_channels, LOADERS // lanes)

    @cached_property
    def thread_patches(self) -> int:
        """Patches of which a thread keeps the offset."""
        return where(self.by_channel | self.transposed, ceil_div(self.halo_patches, self.patch_lanes), 1)

    # ---- weights ----

    @cached_property
    def piece_bytes(self) -> int:
        """One tap's channels of a block in a k-tile."""
        return self.planes * self.tile.channels * self.k_tile_bytes

    @cached_property
    def weight_stage_bytes(self) -> int:
        return self.visit_pieces * self.piece_bytes

    @cached_property
    def visit_pieces(self) -> int:
        """The most pieces of a visit."""
        if self.kind is WgmmaKind.UNIFORM:
            return self.tile.phases
        of_width = most_taps(self.layer.axes[2])
        of_some = where(self.kind == WgmmaKind.ONE_PHASE, 1, of_width)
        return where(self.kind == WgmmaKind.ALL_PHASES, math.prod(map(most_taps, self.layer.axes)), of_some)

    @cached_property
    def k_tile_pieces(self) -> int:
        if self.kind is WgmmaKind.UNIFORM:
            return self.shifts * self.tile.phases
        of_row = self.row_phase_taps * self.layer.kernel[2]
        of_some = where(self.kind == WgmmaKind.ONE_PHASE, self.visits, of_row)
        return where(self.kind == WgmmaKind.ALL_PHASES, self.taps, of_some)

    @cached_property
    def set_bytes(self) -> int:
        """Prepared weights of a block."""
        return self.k_tiles * self.k_tile_pieces * self.piece_bytes

    @cached_property
    def weight_bytes(self) -> int:
        """Of all weights that a kernel before prepares."""
        return where(self.tile.own_weights > 0, 0, self.weight_sets * self.set_bytes)

    @cached_property
    def block_weights(self) -> int:
        """Weights of an input channel in a block."""
        return self.tile.channels * self.taps

    @cached_property
    def weights_together(self) -> int:
        """Those of them that are loaded at once: neighbours in memory, in each block from a multiple of as many on."""
        layer = self.layer
        if layer.weights_last:
            return gcd(gcd(self.tile.channels, layer.out_channels_per_group), self.vector_items)
        return gcd(gcd(self.block_weights, layer.out_channels_per_group * self.taps), self.vector_items)

    @cached_property
    def block_units(self) -> int:
        """What a thread prepares at once, vectors of input channels of as many weights, in a block."""
        return self.k_tiles * (self.k_tile_bytes // 16) * (self.block_weights // self.weights_together)

    @cached_property
    def preparing_items(self) -> int:
        """Threads that prepare the weights, each a unit."""
        return where(self.tile.own_weights > 0, 0, self.layer.groups * self.channel_blocks * self.block_units)

    # ---- shared memory and registers ----

    @cached_property
    def run(self) -> int:
        """Neighbouring column phases that are stored together."""
        together = gcd(self.tile.phases, self.layer.stride[2])
        found = 1
        for several in range(2, _MOST_RUN[self.item_bytes] + 1):
            found = where(together % several == 0, several, found)
        return found

    @cached_property
    def by_runs(self) -> bool:
        """Whether a thread stores the neighbouring phases of a position as it has them, where rows allow it."""
        run = self.run
        of_row = (self.tile.channels_last == 0) & (run > 1) & (run == self.layer.stride[2])
        return of_row & ((run & (run - 1)) == 0) & (run <= self.vector_items)

    @cached_property
    def staged_bytes(self) -> int:
        """What a warpgroup stages of its outputs at once."""
        channels = where(
            (self.run > (3 if self.item_bytes == 2 else 2)) | (self.tile.channels % 16 != 0),
            8,
            where((self.run > 1) | (self.tile.channels % 32 != 0), 16, 32),
        )
        return where(self.tile.channels_last > 0, 0, channels * (TILE_POSITIONS * self.run + 4) * 4)

    @cached_property
    def offsets_bytes(self) -> int:
        """Where places of the halo lie in memory."""
        places = ceil_div(self.halo_all_rows * self.halo_columns, 8) * 8
        return where(self.by_place, places * 8, 0)

    @cached_property
    def shared_bytes(self) -> int:
        return self.shared_bytes_with(self.tile)

    def shared_bytes_with(self, stages: WgmmaTile) -> int:
        """Those of a tile that differs in its stages alone."""
        weights = where(self.tile.resident > 0, self.set_bytes, stages.weight_stages * self.weight_stage_bytes)
        inputs = stages.input_stages * self.input_stage_bytes + stages.raw_stages * self.raw_stage_bytes
        barriers = 16 * (stages.weight_stages + stages.input_stages)
        return weights + inputs + CONSUMERS * self.staged_bytes + self.offsets_bytes + barriers

    @cached_property
    def accumulators(self) -> int:
        """Registers of a thread for them; exact ones leave those of a batch."""
        phases = accumulated_phases(self.layer, self.tile.phases)
        return self.planes * self.tile.position_tiles * phases * self.tile.channels // 2


def _halo(axis: Axis, one_phase: bool) -> int:
    """The inputs around those of a block tile that its taps read; of `one_phase`, of the one that has the most."""
    return where(one_phase, (axis.taps_per_phase - 1) * axis.shift_period, halo(axis))


def accumulated_phases(layer: Layer, phases: int) -> int:
    """Of a block's phases, those that ever have a tap, and so have accumulators."""
    every = math.prod(axis.phases_with_taps for axis in layer.axes)
    of_row = where(phases == 1, 1, layer.axes[2].phases_with_taps * (phases // layer.stride[2]))
    return where(phases == math.prod(layer.stride), every, of_row)


def is_uniform(layer: Layer) -> bool:
    """Whether every phase has a tap at every shift."""
    shifts = math.prod(map(shift_count, layer.axes))
    return math.prod(layer.stride) * shifts == math.prod(layer.kernel)
