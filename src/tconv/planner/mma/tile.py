"""The tile of the `mma` family: every number in it is compiled in. `kernels/mma` has the picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Warps:
    """How the warps of a block share its tile.

    ``splits`` sets of ``high * wide`` warps share the input channels. A warp has ``row_tiles`` tiles of 16 rows by
    ``position_tiles`` tiles of 8 positions.
    """

    high: int
    wide: int
    splits: int
    row_tiles: int
    position_tiles: int


@dataclass(frozen=True)
class BlockTile:
    """The positions of a block: of so many images, slabs, rows and columns.

    Position q owns the outputs from ``q * stride - origin`` on, with an origin for each axis.
    """

    images: int
    depths: int
    rows: int
    columns: int
    depth_origin: int
    row_origin: int
    origin: int


@dataclass(frozen=True)
class Pipeline:
    """What is on its way to shared memory.

    A stage holds ``k_tile_steps`` times 32 bytes of input channels for each set of warps, and weights of
    ``k_tile_shifts`` shifts. ``resident`` weights have a stage for each k-tile, and a block goes through several block
    tiles with them. Contiguous inputs are loaded ``patch_columns`` at a time, and transposed on their way
    through registers, or ``copied`` as they lie into as many stages.
    """

    k_tile_steps: int
    k_tile_shifts: int
    patch_columns: int
    copied: int
    resident: int


@dataclass(frozen=True)
class MmaTile:
    """How a block shares the work.

    A tile of 16 rows is ``channels`` output channels in each of ``16 / channels`` phases. Input and output are
    contiguous, or ``channels_last``. A thread prepares ``taps_together`` neighbouring taps of its filters, where
    ``channels`` is 16. Tiles of rows without a tap at a shift are left out of the prepared weights as ``gaps``, or else
    are zeros there. The compiler limits registers so that ``blocks`` blocks fit on a multiprocessor.
    """

    warps: Warps
    block_tile: BlockTile
    pipeline: Pipeline
    channels: int
    channels_last: int
    taps_together: int
    gaps: int
    blocks: int

    @property
    def prepares_weights(self) -> bool:
        """Whether a kernel before puts the weights into another order."""
        return True

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps.high * self.warps.wide * self.warps.splits
