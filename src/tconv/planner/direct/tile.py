"""The tile of the `direct` family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DirectTile:
    """How a block shares the work; every field is compiled in. `kernels/direct` has the picture.

    ``position_lanes * phase_lanes`` threads own ``position_lanes * positions * rows`` positions, ``channels`` output
    channels and ``phase_lanes * phases`` column phases, of all phases of height if ``stacked``, else of one row phase.
    A block has ``splits`` such sets of threads, which share the input channels. A warp's positions are runs of
    ``columns * positions`` neighbours in each of ``rows`` rows; position q owns the outputs from ``q * stride -
    origin`` on, in height from ``q * stride - row_origin``. A k-tile of weights passes through shared memory at a time:
    ``k_tile_rows`` row taps, ``k_tile_channels`` input channels and ``k_tile_taps`` taps a phase. Inputs of ``unroll``
    channels are asked for at once. The compiler limits registers so that ``blocks`` blocks fit on a multiprocessor.
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
    k_tile_rows: int
    k_tile_channels: int
    k_tile_taps: int
    unroll: int
    ahead: int
    origin: int
    row_origin: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.position_lanes * self.phase_lanes * self.splits
