"""The tile of the `col2im` family: every number in it is compiled in. `kernels/col2im` has the picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockTile:
    """The inputs of a block: of so many images, slabs, rows and columns."""

    images: int
    depths: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Warps:
    """How the warps of a block share its tile: ``splits`` sets of ``high * wide`` warps share the input channels."""

    high: int
    wide: int
    splits: int


@dataclass(frozen=True)
class Col2imTile:
    """How a block shares the work.

    A block has all taps of ``channels`` output channels. A set of warps has ``stages`` stages of ``k_tile_steps`` times
    32 bytes of input channels. Inputs of a channel are copied ``patch_positions`` at a time, which lie side by side. Of
    ``inputs_last``, channels are copied instead, and those lie side by side. Of ``runs``, all positions of an image lie
    side by side, and are copied from a multiple of 16 bytes on. Outputs are contiguous, or ``channels_last``. A block
    has one block tile or, with ``resident`` weights, one after the other; then ``stages`` are of inputs alone. The
    compiler limits registers so that ``blocks`` blocks fit on a multiprocessor.
    """

    warps: Warps
    block_tile: BlockTile
    channels: int
    k_tile_steps: int
    stages: int
    patch_positions: int
    runs: int
    inputs_last: int
    channels_last: int
    resident: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps.high * self.warps.wide * self.warps.splits
