"""The tile of the `col2im_wgmma` family: every number in it is compiled in. `kernels/col2im_wgmma` has the picture."""

from __future__ import annotations

from dataclasses import dataclass

from tconv.planner.col2im.tile import BlockTile


@dataclass(frozen=True)
class Warpgroups:
    """How warpgroups share a block's tile: ``splits`` sets of ``high * wide`` share the input channels."""

    high: int
    wide: int
    splits: int


@dataclass(frozen=True)
class Col2imWgmmaTile:
    """How a block shares the work.

    A block has ``channels`` output channels, and one block tile of inputs. Of each channel it has all taps, or those of
    so many neighbouring ``phases`` along the width where these are not 0. A set of warpgroups has
    ``stages`` stages of ``k_tile_steps`` times 32 bytes of input channels. ``patch_positions``, ``runs`` and
    ``inputs_last`` say how inputs are copied, as in `Col2imTile`. Outputs are contiguous, or ``channels_last``. The
    compiler limits registers so that ``blocks`` blocks fit on a multiprocessor. If ``prepared_inputs``, a kernel before
    brings contiguous inputs into the order of ``inputs_last``.
    """

    warpgroups: Warpgroups
    block_tile: BlockTile
    channels: int
    phases: int
    k_tile_steps: int
    stages: int
    patch_positions: int
    runs: int
    inputs_last: int
    channels_last: int
    blocks: int
    prepared_inputs: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.warpgroups.high * self.warpgroups.wide * self.warpgroups.splits
