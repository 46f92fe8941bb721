"""Sizes that are alike, so that not every size has a kernel of its own, and sizes at which another layer does."""

from __future__ import annotations

import math
from dataclasses import replace

from tconv.problem import Problem, Triple

#: Larger batches are alike; and so are larger sizes of 1-D, 2-D and 3-D inputs.
_MOST_IMAGES, _LARGEST = 1024, {1: 2**20, 2: 2**12, 3: 2**8}


def representative(problem: Problem, together: int = 1) -> Problem:
    """A problem of about the same sizes that stands for many.

    Args:
        together: what its width has in common with this, the width of `problem` has, too: which rows are aligned.
    """
    largest = _LARGEST[problem.layer.spatial_dims]

    def rounded(size: int, limit: int) -> int:
        unit = 1 << max(0, size.bit_length() - 3)
        return min(limit, -(-size // unit) * unit)

    depth, height, width = (rounded(size, largest) for size in problem.input_size)
    common = math.gcd(problem.input_size[2], together)
    width = next((size for size in range(width, 0, -1) if math.gcd(size, together) == common), width)
    return Problem(problem.layer, rounded(problem.batch, _MOST_IMAGES), (depth, height, width), problem.output_padding)


def equivalent(problem: Problem, most_phases: int | None = None) -> Problem:
    """The same outputs by a layer with fewer zeros: along an axis of one input, the stride does not matter.

    With a stride of the kernel's length every tap is a phase of its own and reads the one input at shift 0. That may
    be more than `most_phases`: then the problem stays as it is.
    """

    def stride(axis: int) -> int:
        kernel, old, padding, dilation = problem.layer.axes[axis]
        once = problem.input_size[axis] == 1 and dilation == 1 and padding < kernel
        return kernel if once and problem.output_padding[axis] < kernel else old

    strides = stride(0), stride(1), stride(2)
    if most_phases is not None and math.prod(strides) > most_phases:
        return problem
    return replace(problem, layer=replace(problem.layer, stride=strides))


def with_strides(problem: Problem, strides: Triple) -> Problem | None:
    """The same outputs by a layer with these strides; None where that one has others."""
    if strides == problem.layer.stride:
        return problem
    other = equivalent(problem)
    known = zip(strides, problem.layer.stride, other.layer.stride, strict=True)
    if any(stride not in (own, equal) for stride, own, equal in known):
        return None
    return replace(problem, layer=replace(problem.layer, stride=strides))
