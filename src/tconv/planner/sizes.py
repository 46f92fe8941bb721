"""Sizes that are alike, so that not every size has a kernel of its own."""

from __future__ import annotations

import math

from tconv.problem import Problem

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
