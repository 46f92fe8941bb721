"""The tile of the `wgmma` family: every number in it is compiled in. `kernels/wgmma` has the picture."""

from __future__ import annotations

from dataclasses import dataclass

#: Threads of a block: two warpgroups that multiply, and one that loads what they need.
THREADS = 384


@dataclass(frozen=True)
class BlockTile:
    """The positions of a block: of so many images, slabs, rows and columns."""

    images: int
    depths: int
    rows: int
    columns: int


@dataclass(frozen=True)
class WgmmaTile:
    """How a block shares the work.

    A block has ``channels`` output channels in each of ``phases`` phases; a warpgroup has ``position_tiles`` tiles of
    64 positions of its block tile, which are ``stacked`` along its rows, or else follow each other. A stage of inputs
    holds a k-tile, ``k_tile_steps`` times 32 bytes of channels. Contiguous inputs are loaded ``patch_columns`` at a
    time; those of 16-bit types into ``raw_stages`` from which they are transposed, but where
    all taps read the same column, and eight columns are loaded at a time. Or input and output are ``channels_last``; or
    contiguous inputs are ``prepared_inputs``, put into that order by a kernel before.
    Where weights are ``resident`` each visit has a stage, which is filled once: from weights that a kernel before has
    prepared, or a block prepares its ``own_weights``.
    """

    block_tile: BlockTile
    channels: int
    phases: int
    position_tiles: int
    stacked: int
    k_tile_steps: int
    input_stages: int
    raw_stages: int
    weight_stages: int
    patch_columns: int
    channels_last: int
    resident: int = 0
    prepared_inputs: int = 0
    own_weights: int = 0

    @property
    def prepares_weights(self) -> bool:
        """Whether a kernel before puts the weights into another order."""
        return not self.own_weights

    @property
    def blocks(self) -> int:
        """Of each multiprocessor: a block has it alone."""
        return 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS
