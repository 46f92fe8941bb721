"""What families on tensor cores know alike of a layer's shifts, and of the inputs that they load."""

from __future__ import annotations

import math
from typing import NamedTuple

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


class Uncropped(NamedTuple):
    """An axis by positions of its output before padding cuts it: `UncroppedAxis` of the kernel.

    Args:
        phases: outputs of a position.
        shifts: neighbouring inputs that a position sums.
        first_position: the first one with an output.
    """

    phases: int
    shifts: int
    first_position: int

    @classmethod
    def of(cls, axis: Axis) -> Uncropped:
        shifts = (axis.kernel - 1) * axis.dilation // axis.stride + 1
        return cls(axis.stride, shifts, axis.padding // axis.stride)


def uncropped_positions(axis: Axis, output_size: int) -> int:
    """How many positions of the uncropped output have outputs."""
    return (output_size - 1 + axis.padding) // axis.stride + 1 - axis.padding // axis.stride
