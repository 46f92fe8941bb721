"""Compares the parts of an output one by one: its channels, its samples, and its elements of similar size.

A norm over a whole output sees little but the largest elements. It misses errors in a channel that is far smaller than
others, and one huge element hides the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

#: A part of fewer elements is left to the rules for the whole output.
_FEWEST = 64
#: The error of a part is the one that this share of its elements does not exceed: a threshold may move a few far.
_SHARE = 0.9
#: The error of a part may be this many times the errors of PyTorch, of rounded operands and of the output's rounding.
_SLACK = 4.0
#: Elements within this many powers of two are of similar size.
_POWERS = 8


@dataclass(frozen=True)
class Part:
    """A part of an output, with its error from float64.

    Args:
        name: words such as ``channel 3``.
        got: the candidate's error.
        allowed: the error that PyTorch's error, rounded operands and the output's rounding allow.
        size: the size of a typical element, which a few huge ones hardly change.
    """

    name: str
    got: float
    allowed: float
    size: float


def further_out(got: Tensor, exact: Tensor, others: Sequence[Tensor], rounding: Tensor, first: int) -> list[Part]:
    """The parts of some rows whose errors exceed the allowed ones. All tensors are in float64.

    Args:
        got, exact: (N, C, ...), or with fewer axes.
        others: results of the same shape whose errors are allowed.
        rounding: the largest change by the output's rounding.
        first: the number of the first row.
    """
    if exact.numel() < _FEWEST:
        return []
    size = float(exact.abs().sqrt().mean().square())
    found = []
    for names, part in _parts(exact, first):
        ours, *theirs = (_quantile(part((result - exact).abs())) for result in (got, *others))
        allowed = _SLACK * torch.stack([*theirs, _quantile(part(rounding))]).amax(0)
        for place in (ours > allowed).nonzero().flatten().tolist():
            found.append(Part(names(place), float(ours[place]), float(allowed[place]), size))
    return found


def _parts(exact: Tensor, first: int) -> Iterator[tuple[_Names, Callable[[Tensor], Tensor]]]:
    """The names of parts, and a function that splits a tensor into (parts, elements)."""
    for axis, kind, begin in ((0, "sample", first), (1, "channel", 0)):
        if exact.dim() > axis + 1 and exact.shape[axis] and exact.numel() // exact.shape[axis] >= _FEWEST:
            yield _Names(kind, begin), partial(_along, axis)
    powers = exact.abs().log2_().div_(_POWERS).floor_().float()  # -inf of 0
    for power in torch.unique(powers).tolist():
        alike = powers == power
        if int(alike.sum()) >= _FEWEST:
            yield _Names("elements", power=power), partial(_where, alike)


def _along(axis: int, tensor: Tensor) -> Tensor:
    return tensor.movedim(axis, 0).flatten(1)


def _where(mask: Tensor, tensor: Tensor) -> Tensor:
    return tensor[mask][None]


@dataclass(frozen=True)
class _Names:
    kind: str
    first: int = 0
    power: float = 0.0

    def __call__(self, place: int) -> str:
        if self.kind != "elements":
            return f"{self.kind} {place + self.first}"
        if self.power == -math.inf:
            return "elements that are 0"
        low, high = (2.0 ** (_POWERS * power) for power in (self.power, self.power + 1))
        return f"elements from {low:.2g} to {high:.2g}"


def _quantile(of_parts: Tensor) -> Tensor:
    """The error of each part, from (parts, elements)."""
    place = max(1, math.ceil(_SHARE * of_parts.shape[1]))
    if of_parts.is_cuda:  # which leaves a part to one multiprocessor, unless it sorts
        return of_parts.sort(1).values[:, place - 1]
    return of_parts.kthvalue(place, 1).values
