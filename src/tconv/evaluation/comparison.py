"""The arithmetic of a comparison: sums of squares and worst elements over any number of draws."""

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

#: The part of the ties that must go one way for a result to count as rounded that way.
_MOST_TIES = 0.99
#: Elements of which `apart` makes differences at once.
_PIECE = 2**24
#: Results are as near as others up to this many times their distance.
_AS_NEAR = 2.0


@dataclass(frozen=True)
class Worst:
    """The element that is furthest out, `ratio` being its difference in units of what is allowed there."""

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
        first, row: what index 0 counts as, of the batch and of the first spatial axis.
    """
    if not got.numel():
        return Worst()
    wide = got.double()
    # In place: on a CPU most of the time goes into new memory.
    ratio = (wide - expected).abs_().div_(allowed)
    # What is infinite, or no number, decides nothing; only that a number is none is wrong all the same.
    undecided = ~allowed.isfinite() & (wide.isfinite() | ~expected.isfinite())
    ratio.masked_fill_(undecided | (wide == expected), 0.0)
    at = _index(int(ratio.argmax()), got.shape)  # NaN counts as the largest
    furthest = float(ratio[at].nan_to_num(nan=math.inf, posinf=math.inf))
    return Worst(furthest, _place(at, first, row), float(wide[at]), float(expected[at]), float(allowed[at]))


def _index(element: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Equals `torch.unravel_index`, which imports a good second's worth of torch when it is first called."""
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
    """Squared distances of some results from exact arithmetic on operands that are not rounded, or as "tf32" says."""

    exact: float = 0.0
    rounded: dict[Precision, float] = field(default_factory=lambda: dict.fromkeys(TF32, 0.0))

    def add(self, results: Tensor, part: Exact) -> None:
        self.exact += square(results - part.result)
        for precision, tensor in part.rounded.items():
            self.rounded[precision] += square(results - tensor)


@dataclass
class Comparison:
    """A candidate's results beside float64 and beside PyTorch's, added up over draws.

    The squares are sums over all elements: of differences from the float64 result and from exact arithmetic on rounded
    operands (`candidate`, `baseline`), between those two (`rounded`), between the two ways to round (`roundings`), and
    of the float64 result itself.
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
        """Count in one draw: `got` and PyTorch's own `baseline`, both shaped as the output, for these operands.

        Args:
            first: the number of the first sample, where these are some of a draw's.
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
        """The norm that belongs to a sum of squares, relative to the float64 result's."""
        if self.result == 0.0:
            return 0.0 if square == 0.0 else math.inf
        return math.sqrt(square / self.result)

    @property
    def candidate_ran(self) -> Precision:
        """The arithmetic that the candidate's results come from."""
        return self._ran(self.candidate)

    @property
    def baseline_ran(self) -> Precision:
        """The arithmetic that PyTorch's results come from."""
        return self._ran(self.baseline)

    def _ran(self, distances: _Distances) -> Precision:
        if self.tolerance.dtype != torch.float32:
            return self.tolerance.precision
        nearest = min(distances.rounded, key=distances.rounded.__getitem__)
        # A result that is simply wrong is further from both than they are from each other.
        return nearest if distances.rounded[nearest] < min(distances.exact, self.rounded) else "fp32"

    @property
    def same_arithmetic(self) -> bool:
        """Whether candidate and PyTorch differ by the order of their sums only.

        One tie in 2^13 operands makes two ways of rounding differ by a unit of TF32, which in large outputs is more
        than allclose allows; and a program may round its two operands in different ways.
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
    """How far results are from others, pooled relative to those, and in the worst element; NaN where one has a NaN."""
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
