"""Measures errors: sums of squares and worst elements over any number of draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tconv.evaluation.poison import looks_unwritten
from tconv.evaluation.reference import Exact, Operands, exact
from tconv.evaluation.tolerance import Tolerance
from tconv.problem import TF32, Precision, Problem

#: The share of ties that must go one way for a result to count as rounded that way.
_MOST_TIES = 0.99
#: Elements that `apart` subtracts at once.
_PIECE = 2**24
#: A result counts as near as others up to this many times their distance.
_AS_NEAR = 2.0


@dataclass(frozen=True)
class Worst:
    """The element that is furthest out. `ratio` is its difference divided by the allowed one."""

    ratio: float = 0.0
    index: tuple[int, ...] | None = None
    got: float = 0.0
    expected: float = 0.0
    allowed: float = 0.0

    def describe(self) -> str:
        """One clause: where, which values, what was allowed; empty where there was no element."""
        if self.index is None:
            return ""
        return f"at {list(self.index)} got {self.got:.9g}, expected {self.expected:.9g} ± {self.allowed:.2g}"


def worst(got: Tensor, expected: Tensor, allowed: Tensor, *, first: int = 0, row: int = 0) -> Worst:
    """The element of `got` (N, C, ...) furthest from `expected`.

    Args:
        first, row: the place of `got` in the output: its first sample, and its first row of the first spatial axis.
    """
    if not got.numel():
        return Worst()
    wide = got.double()
    # In place: on a CPU most of the time goes into new memory.
    ratio = (wide - expected).abs_().div_(allowed)
    # An element without a finite bound decides nothing, except where a number is expected and got is none.
    undecided = ~allowed.isfinite() & (wide.isfinite() | ~expected.isfinite())
    ratio.masked_fill_(undecided | (wide == expected), 0.0)
    at = _index(int(ratio.argmax()), got.shape)  # NaN counts as the largest
    furthest = float(ratio[at].nan_to_num(nan=math.inf, posinf=math.inf))
    return Worst(furthest, _place(at, first, row), float(wide[at]), float(expected[at]), float(allowed[at]))


def _index(element: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Equals `torch.unravel_index`, whose first call imports parts of torch for more than a second."""
    found = list[int]()
    for length in reversed(shape):
        element, place = divmod(element, length)
        found.append(place)
    return tuple(reversed(found))


def _place(at: tuple[int, ...], first: int, row: int) -> tuple[int, ...]:
    offsets = (first, 0, row)
    return tuple(index + offset for index, offset in itertools.zip_longest(at, offsets[: len(at)], fillvalue=0))


@dataclass
class _Distances:
    """Squared distances of results from exact arithmetic on the operands, and on operands rounded to TF32 each way."""

    exact: float = 0.0
    rounded: dict[Precision, float] = field(default_factory=lambda: dict.fromkeys(TF32, 0.0))

    def add(self, results: Tensor, part: Exact) -> None:
        self.exact += square(results - part.result)
        for precision, tensor in part.rounded.items():
            self.rounded[precision] += square(results - tensor)


@dataclass
class Comparison:
    """The errors of a candidate's results against float64 and against PyTorch's results, added up over draws.

    These are sums of squares over all elements, with r the float64 result and t exact arithmetic on rounded operands:

    - candidate, baseline: of the candidate's and PyTorch's differences from r and from t
    - rounded: of t - r, with ties to even
    - roundings: of the difference between t with ties to even and t with ties away from zero
    - result: of r
    - half_ulp: of half an ulp of the output's type at r
    """

    tolerance: Tolerance
    candidate: _Distances = field(default_factory=_Distances)
    baseline: _Distances = field(default_factory=_Distances)
    rounded: float = 0.0
    roundings: float = 0.0
    result: float = 0.0
    half_ulp: float = 0.0
    beyond_bound: Worst = Worst()
    baseline_beyond_bound: Worst = Worst()
    beyond_pytorch: Worst = Worst()
    unwritten: tuple[int, ...] | None = None

    def add(self, got: Tensor, baseline: Tensor, operands: Operands, problem: Problem, first: int = 0) -> None:
        """Add one draw: the candidate's result `got` and PyTorch's `baseline` for these operands.

        Args:
            first: the number of the first sample, where these are a slice of a draw.
        """
        close = self.tolerance.close
        size = math.sqrt(float(square(baseline)) / max(1, baseline.numel()))
        for part in exact(operands, problem, rounded=got.dtype == torch.float32):
            ours, theirs = part.of(got), part.of(baseline)
            there = {"first": first + part.samples.start, "row": part.rows.start}
            bound = self.tolerance.bound(part.result, part.magnitude)
            self._find_unwritten(ours, part.result, **there)
            self.beyond_bound = further(self.beyond_bound, worst(ours, part.result, bound, **there))
            theirs_beyond = worst(theirs, part.result, bound, **there)
            self.baseline_beyond_bound = further(self.baseline_beyond_bound, theirs_beyond)
            beside = close * theirs.double().abs() + close * max(1.0, size)
            self.beyond_pytorch = further(self.beyond_pytorch, worst(ours, theirs.double(), beside, **there))
            self.candidate.add(ours, part)
            self.baseline.add(theirs, part)
            self.result += square(part.result)
            self.half_ulp += square(bound - self.tolerance.factor * part.magnitude)
            if part.rounded:
                even, away = (part.rounded[precision] for precision in TF32)
                self.rounded += square(even - part.result)
                self.roundings += square(even - away)

    def _find_unwritten(self, got: Tensor, result: Tensor, first: int, row: int) -> None:
        holes = looks_unwritten(got) & (result.abs() < torch.finfo(got.dtype).max)
        if self.unwritten is None and bool(holes.any()):
            self.unwritten = _place(tuple(map(int, holes.nonzero()[0])), first, row)

    def relative(self, square: float) -> float:
        """The square root of a sum of squares, relative to the norm of the float64 result."""
        if self.result == 0.0:
            return 0.0 if square == 0.0 else math.inf
        return math.sqrt(square / self.result)

    @property
    def candidate_ran(self) -> Precision:
        """The arithmetic that the candidate ran, as its results tell."""
        return self._ran(self.candidate)

    @property
    def baseline_ran(self) -> Precision:
        """The arithmetic that PyTorch ran, as its results tell."""
        return self._ran(self.baseline)

    def _ran(self, distances: _Distances) -> Precision:
        if self.tolerance.dtype != torch.float32:
            return self.tolerance.precision
        nearest = min(distances.rounded, key=distances.rounded.__getitem__)
        # A wrong result is further from r and from t than they are from each other.
        return nearest if distances.rounded[nearest] < min(distances.exact, self.rounded) else "fp32"

    @property
    def same_arithmetic(self) -> bool:
        """Whether candidate and PyTorch differ in nothing but the order of their sums.

        Two ways to round to TF32 differ by a unit at each tie, and one of 2^13 operands is a tie. In large outputs that
        is more than allclose allows. A kernel may also round its two operands in different ways.
        """
        ran = self.candidate_ran
        return ran == self.baseline_ran and (
            ran not in TF32 or (self._rounds_alike(self.candidate) and self._rounds_alike(self.baseline))
        )

    def _rounds_alike(self, distances: _Distances) -> bool:
        """Whether both operands are rounded in the same way: independent errors cancel in this difference."""
        even, away = distances.rounded.values()
        return abs(even - away) >= _MOST_TIES * self.roundings


def square(tensor: Tensor) -> float:
    """Sum of squares in float64."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2


def further(one: Worst, other: Worst) -> Worst:
    """The one that is further out."""
    return other if other.ratio > one.ratio else one


def apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The distance of results from others: pooled and relative to the others, and in the worst element. NaN if one
    has a NaN."""
    total = size = worst_of_all = 0.0
    for ours, theirs in zip(_pieces(one), _pieces(other.to(one.device)), strict=True):
        difference = ours - theirs
        total, size = total + square(difference), size + square(theirs)
        worst_of_all = max(worst_of_all, float(difference.abs().max()))
    return (math.sqrt(total / size) if size else total), (math.nan if math.isnan(total) else worst_of_all)


def as_near(distance: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    """Whether a distance, as `apart` gives it, is not much larger than the largest of others; NaN is not."""
    largest = [max(of_others) for of_others in zip(*others, strict=True)]
    return all(each <= _AS_NEAR * most for each, most in zip(distance, largest, strict=True))


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    flat = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.flatten()
    for first in range(0, len(flat), _PIECE):
        piece = flat[first : first + _PIECE]
        yield piece if piece.dtype in (torch.float32, torch.float64) else piece.double()
