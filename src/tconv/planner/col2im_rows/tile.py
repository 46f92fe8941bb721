"""The tile of the `col2im_rows` family: every number in it is compiled in. `kernels/col2im_rows` has the picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Col2imRowsTile:
    """How a block shares the work.

    Each of ``warpgroups`` has 64 inputs of a row of the map, and teams of them go down the rows until they have all
    sums of ``rows`` positions along the height. The inputs of a line are ``columns`` neighbours: of several warpgroups,
    or a part of those of one. A block has ``channels`` output channels. ``k_tile_steps`` times 32 bytes of input
    channels are asked for at once, and ``vector`` neighbouring inputs by one load. If there are ``input_stages`` of
    shared memory, all but one of them are on their way while one is multiplied; else one k-tile is, to registers. If
    ``channels_last``, input and output are, and neighbouring channels are loaded. The compiler limits registers so that
    ``blocks`` blocks fit on a multiprocessor.
    """

    warpgroups: int
    columns: int
    rows: int
    channels: int
    k_tile_steps: int
    vector: int
    input_stages: int
    channels_last: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.warpgroups
