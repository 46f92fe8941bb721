"""What the planner decides: which kernel is compiled, and how one call launches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from tconv.problem import Layer, Problem

Family = Literal["direct", "mma"]


@dataclass(frozen=True)
class DirectTile:
    """The tile of the `direct` family; every field is compiled in. `kernels/direct.cuh` has the picture.

    ``position_lanes * phase_lanes`` threads own ``position_lanes * positions * rows`` positions, ``channels`` output
    channels and ``phase_lanes * phases`` column phases, of all phases of height if ``stacked``, else of one row phase.
    A block has ``splits`` such sets of threads, which share the input channels. A warp's positions are runs of
    ``columns * positions`` neighbours in each of ``rows`` rows; position q owns the outputs from ``q * stride -
    origin`` on, in height from ``q * stride - row_origin``. Weights pass through shared memory ``chunk_rows`` row taps,
    ``chunk_channels`` input channels and ``chunk_taps`` taps a phase at a time; inputs of ``unroll`` channels are
    asked for at once. The compiler limits registers so that ``blocks`` blocks fit on a multiprocessor.
    """

    position_lanes: int
    phase_lanes: int
    splits: int
    columns: int
    positions: int
    stacked: int
    rows: int
    warps_wide: int
    channels: int
    phases: int
    chunk_rows: int
    chunk_channels: int
    chunk_taps: int
    unroll: int
    ahead: int
    origin: int
    row_origin: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.position_lanes * self.phase_lanes * self.splits


@dataclass(frozen=True)
class MmaTile:
    """The tile of the `mma` family; every field is compiled in. `kernels/mma.cuh` has the picture.

    A block has ``splits`` sets of ``warps_high * warps_wide`` warps; the sets share the input channels. A warp has
    ``row_tiles`` tiles of 16 rows by ``position_tiles`` tiles of 8 positions. A tile of rows is ``channels`` output
    channels in each of ``16 / channels`` phases. The positions are those of a box of ``box_images`` images,
    ``box_depths`` slabs, ``box_rows`` rows and ``box_columns`` columns; position q owns the outputs from
    ``q * stride - origin`` on, with an origin for each axis. A stage holds ``chunk_steps`` times 32 bytes of input
    channels for each set, and weights of ``chunk_shifts`` shifts. ``resident`` weights have a stage for each chunk, and
    a block goes through several boxes with them. Input and output are contiguous, or ``channels_last``; contiguous
    inputs are loaded ``patch_columns`` at a time, and turned on their way through registers, or ``copied`` as they lie
    into as many stages. A thread prepares ``taps_together`` neighbouring taps of its filters,
    where ``channels`` is 16. Tiles of rows without a tap at a shift are left out of the prepared weights as ``gaps``,
    or else are zeros there. The compiler limits registers so that ``blocks`` blocks fit on a multiprocessor.
    """

    warps_high: int
    warps_wide: int
    splits: int
    row_tiles: int
    position_tiles: int
    channels: int
    box_images: int
    box_depths: int
    box_rows: int
    box_columns: int
    chunk_steps: int
    chunk_shifts: int
    depth_origin: int
    row_origin: int
    origin: int
    channels_last: int
    patch_columns: int
    copied: int
    resident: int
    taps_together: int
    gaps: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_high * self.warps_wide * self.splits


Tile = TypeVar("Tile", bound=DirectTile | MmaTile)


@dataclass(frozen=True)
class Kernel(Generic[Tile]):
    """Everything that is compiled in: the key of the cache, together with the arch."""

    family: Family
    layer: Layer
    tile: Tile
    wide_index: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    @property
    def prepares(self) -> bool:
        """Whether its unit has a second function, which brings the weights into an order of its own."""
        return self.family == "mma"


@dataclass(frozen=True)
class Preparation:
    """The launch that brings the weights into the order in which the kernel loads them, before each call.

    Args:
        grid, threads: of the launch.
        bytes: of the prepared weights.
    """

    grid: int
    threads: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """One launch: the kernel, its grid, its dynamic shared memory in bytes, and why it was chosen.

    `preparation` is the launch before it, of the same unit's function ``NAME_weights``; None where the kernel takes the
    weights as they are. `predicted_seconds` says how long the family's model takes all of it for, at sizes like these
    (`representative`); None where the tile was measured instead.
    """

    problem: Problem
    kernel: Kernel[Any]
    grid: int
    shared_bytes: int
    reasons: tuple[str, ...] = field(default=(), compare=False)
    preparation: Preparation | None = None
    predicted_seconds: float | None = field(default=None, compare=False)


class Unplannable(ValueError):
    """No kernel of the family runs this problem; the message says which limit is passed."""
