"""Sizes at which a layer runs in the emulator within seconds: its own parameters, a smaller batch and smaller maps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tconv.problem import InvalidProblem, Problem, Triple

#: Multiply-adds, and outputs, of one run. The emulator does some 50 million multiply-adds a second.
BUDGET = 30_000_000
_OUTPUTS = 2_000_000
_BATCH = 2
#: Maps are not cut below this many points on an axis while there is another way.
_SMALLEST_AXIS = 5
#: What kernels load at once, at most.
_NEIGHBOURS = 8


def shrink(problem: Problem, budget: int = BUDGET) -> Problem:
    """The same layer at a size within the budget, or as near to it as the layer allows.

    A very wide layer can pass the budget even on a map of one point.
    """
    while _too_large(problem, budget):
        smaller = next(_smaller(problem), None)
        if smaller is None:
            break
        problem = smaller
    return problem


def describe_change(full: Problem, small: Problem) -> str:
    """What was made smaller: ``batch 16 → 2, 64x128 → 16x32``; empty if nothing was."""
    words = [f"batch {full.batch} → {small.batch}"] if full.batch != small.batch else []
    if full.input_size != small.input_size:
        words.append(f"{_by(full)} → {_by(small)}")
    return ", ".join(words)


def _too_large(problem: Problem, budget: int) -> bool:
    outputs = problem.batch * problem.layer.out_channels
    for length in problem.output_size:
        outputs *= length
    return problem.multiply_adds > budget or outputs > _OUTPUTS


def _smaller(problem: Problem) -> Iterator[Problem]:
    """The next steps down, the preferred one first: the batch, the longest axis, the last of the batch, short axes."""
    if problem.batch > _BATCH:
        yield replace(problem, batch=max(_BATCH, problem.batch // 2))
    for floor in (_SMALLEST_AXIS, 1):
        by_length = sorted(range(3), key=lambda axis: -problem.input_size[axis])
        for axis in by_length:
            length = problem.input_size[axis]
            # A kernel that loads several neighbours of a row at once needs rows of so many times as many.
            unit = math.gcd(length, _NEIGHBOURS) if axis == 2 else 1
            half = -(-max(floor, -(-length // 2)) // unit) * unit
            shorter = _with_axis(problem, axis, half)
            if half < length and shorter is not None:
                yield shorter
        if problem.batch > 1:
            yield replace(problem, batch=1)


def _with_axis(problem: Problem, axis: int, length: int) -> Problem | None:
    """The same on a map of that length; None where nothing would come out."""
    depth, height, width = (length if number == axis else old for number, old in enumerate(problem.input_size))
    try:
        return replace(problem, input_size=(depth, height, width))
    except InvalidProblem:
        return None


def _by(problem: Problem) -> str:
    sizes: Triple = problem.input_size
    return "x".join(map(str, sizes[3 - problem.layer.spatial_dims :]))
