"""What families on tensor cores know alike of a layer's shifts, and of the inputs that they load."""

from __future__ import annotations

import math

from tconv.problem import Axis, Problem


def halo(axis: Axis) -> int:
    """From the lowest to the highest shift: the inputs around those of a block tile that its taps read."""
    return axis.shift_of(axis.kernel - 1) - axis.shift_of(0)


def shift_count(axis: Axis) -> int:
    """Shifts of an axis, from the lowest to the highest in steps that taps may have."""
    return halo(axis) // (axis.dilation if axis.stride == 1 else 1) + 1


def most_taps(axis: Axis) -> int:
    """The most taps that read at one shift."""
    return min(axis.kernel, -(-axis.stride // axis.dilation))


def together(problem: Problem) -> int:
    """How many neighbouring inputs may be loaded at once: 16 bytes at most, and rows begin at multiples of them."""
    return math.gcd(problem.input_size[2], 16 // problem.layer.item_bytes)
