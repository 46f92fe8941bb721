"""The kernel that brings contiguous inputs into channels_last order: `ChannelsLast` of `kernels/primitives`."""

from __future__ import annotations

import math

from tconv.planner.block_tiles import PREPARING_THREADS
from tconv.planner.numbers import ceil_div
from tconv.planner.plan import InputPreparation
from tconv.problem import Layer, Problem

#: What a block transposes at once: positions, and bytes of channels.
_TILE_POSITIONS, _TILE_BYTES = 64, 64
#: Blocks for each multiprocessor at most.
_BLOCKS = 8
_VECTOR_BYTES = 16


def input_preparation(problem: Problem, multiprocessors: int) -> InputPreparation:
    """How it is launched for the inputs of `problem`."""
    layer = problem.layer
    channels = _TILE_BYTES // layer.item_bytes
    tiles = ceil_div(_positions(problem), _TILE_POSITIONS) * ceil_div(layer.in_channels, channels)
    return InputPreparation(min(tiles, _BLOCKS * multiprocessors), PREPARING_THREADS)


def counted(problem: Problem) -> int:
    """What it counts, and must stay below 2^31: positions or channels of all images."""
    return max(_positions(problem), problem.batch * problem.layer.in_channels)


def _positions(problem: Problem) -> int:
    """Of all images."""
    return problem.batch * math.prod(problem.input_size)


def has_vectors(layer: Layer) -> bool:
    """Whether a group's channels of a position are whole vectors, which it writes."""
    return layer.in_channels_per_group * layer.item_bytes % _VECTOR_BYTES == 0
