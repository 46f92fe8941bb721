"""What a program may give where its sum is known to lie between two numbers: interval arithmetic, rounding included.

After R. E. Moore, "Interval Analysis" (1966): each operation gives the hull of what it gives on its arguments'
intervals, widened by its own rounding. Where a comparison may have either answer, `where` gives the hull of both
branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tconv.pointwise.program import SUM, Operand, Program

#: How many units of rounding a function may be wrong by, on CUDA and elsewhere, a quotient among them, which may be a
#: product with a rounded inverse; other arithmetic by half of one.
_FUNCTION_UNITS, _ARITHMETIC_UNITS = 8.0, 0.5
_EXACT = ("neg", "abs", "min", "max", "where", "float16", "bfloat16")
_ARITHMETIC = ("add", "sub", "mul")
#: Functions that grow so fast that the rounding of what they are computed by, an argument times a constant, shows.
_STEEP = ("exp", "sigmoid")


class Interval(NamedTuple):
    """From `low` to `high`, elementwise, in float64; of a comparison, whether it may be true and whether false."""

    low: Tensor
    high: Tensor


def bounds(program: Program, y: Interval, operands: Sequence[Tensor], unit: float) -> Interval:
    """Between which numbers the program's result lies.

    Args:
        y: of the sums.
        operands: exact, in shapes that broadcast to y's.
        unit: the distance from 1 to the next number of the type that it computes in: 2**-23 for float32.
    """
    exact = [Interval(operand.double(), operand.double()) for operand in operands]
    low, high = intervals(program, y, exact, unit)[-1]
    return Interval(low.expand(y.low.shape), high.expand(y.low.shape))


def intervals(program: Program, y: Interval, operands: Sequence[Interval], unit: float) -> list[Interval]:
    """Of every value of the program, as `bounds`."""
    found: list[Interval] = []
    for node in program.nodes:
        arguments = [found[argument] for argument in node.arguments]
        if isinstance(node.what, float):
            value = torch.full((), node.what, dtype=torch.float64, device=y.low.device)
            # Of a number that is compiled in, its rounding.
            found.append(_widened(Interval(value, value), unit, 0.5))
        elif isinstance(node.what, Operand):
            found.append(operands[node.what.number])
        elif node.what == SUM:
            found.append(y)
        else:
            name = node.what
            if name == "pow":
                exponent = program.nodes[node.arguments[1]].what
                assert isinstance(exponent, float)
                result = _power(arguments[0], exponent)
            else:
                if name in _STEEP:
                    arguments = [_widened(arguments[0], unit, 1.0)]
                result = _OF[name](*arguments)
            if (node.operation is not None and node.operation.tests) or name in _EXACT:
                found.append(result)
            else:
                found.append(_widened(result, unit, _ARITHMETIC_UNITS if name in _ARITHMETIC else _FUNCTION_UNITS))
    return found


def _widened(interval: Interval, unit: float, units: float) -> Interval:
    """By so many units of the larger end; and by the smallest normal number of float32, below which units are fixed."""
    least = 2.0**-126 if unit > 1e-12 else 0.0
    low = interval.low - units * unit * interval.low.abs() - least
    high = interval.high + units * unit * interval.high.abs() + least
    return Interval(low, high)


def _hull(*ends: Tensor) -> Interval:
    """Of some numbers; NaN if any is."""
    low = high = ends[0]
    for end in ends[1:]:
        low, high = torch.minimum(low, end), torch.maximum(high, end)
    return Interval(low, high)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Of two ends: that of 0 with an end that is infinite because it is not known is 0."""
    return torch.where(((a == 0) & b.isinf()) | ((b == 0) & a.isinf()), 0.0, a * b)


def _mul(a: Interval, b: Interval) -> Interval:
    return _hull(*(_product(x, y) for x in a for y in b))


def _reciprocal(a: Interval) -> Interval:
    holds_zero = (a.low <= 0) & (a.high >= 0)
    at_zero = holds_zero & (a.low == 0) & (a.high == 0)
    low = torch.where(holds_zero & (a.low < 0) | at_zero, -math.inf, 1 / a.high)
    high = torch.where(holds_zero & (a.high > 0) | at_zero, math.inf, 1 / a.low)
    return Interval(torch.where(holds_zero & (a.high == 0), -math.inf, low), high)


def _div(a: Interval, b: Interval) -> Interval:
    inverse = _reciprocal(b)
    holds_zero = (b.low <= 0) & (b.high >= 0)
    quotients = _hull(*(x / y for x in a for y in b))
    unknown = _mul(a, inverse)
    return Interval(
        torch.where(holds_zero, unknown.low, quotients.low), torch.where(holds_zero, unknown.high, quotients.high)
    )


def _abs(a: Interval) -> Interval:
    low, high = _hull(a.low.abs(), a.high.abs())
    return Interval(torch.where((a.low <= 0) & (a.high >= 0), 0.0, low), high)


def _rsqrt(a: Interval) -> Interval:
    return Interval(a.high.rsqrt(), torch.where(a.low <= 0, math.inf, a.low.clamp(min=0).rsqrt()))


def _wave(name: str) -> Callable[[Interval], Interval]:
    """Of a sine or a cosine, which is no steeper than 1."""
    function = getattr(torch, name)

    def of(a: Interval) -> Interval:
        middle, half = function((a.low + a.high) / 2), (a.high - a.low) / 2
        return Interval((middle - half).clamp(-1, 1), (middle + half).clamp(-1, 1))

    return of


def _power(a: Interval, exponent: float) -> Interval:
    if not exponent.is_integer():
        a = _from(0.0, a)
    elif exponent % 2 == 0:
        a = _abs(a)
    if exponent < 0 and exponent.is_integer():
        low, high = _reciprocal(Interval(a.low.pow(-exponent), a.high.pow(-exponent)))
        return Interval(low, high)
    ends = [end.pow(exponent) for end in a]
    return _hull(*ends)


def _monotone(name: str) -> Callable[[Interval], Interval]:
    function = getattr(torch, name)
    return lambda a: Interval(function(a.low), function(a.high))


def _domain(name: str, least: float) -> Callable[[Interval], Interval]:
    """Of a function that has no value below `least`."""
    function = getattr(torch, name)

    def of(a: Interval) -> Interval:
        low, high = _from(least, a)
        return Interval(function(low), function(high))

    return of


def _from(least: float, a: Interval) -> Interval:
    """An interval that reaches below `least` begins there, unless it ends below."""
    return Interval(torch.where(a.high >= least, a.low.clamp(min=least), a.low), a.high)


def _cast(dtype: torch.dtype) -> Callable[[Interval], Interval]:
    return lambda a: Interval(a.low.float().to(dtype).double(), a.high.float().to(dtype).double())


def _less(a: Interval, b: Interval) -> Interval:
    return Interval(a.low < b.high, a.high >= b.low)


def _less_or_equal(a: Interval, b: Interval) -> Interval:
    return Interval(a.low <= b.high, a.high > b.low)


def _equal(a: Interval, b: Interval) -> Interval:
    may = (a.low <= b.high) & (b.low <= a.high)
    must = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return Interval(may, ~must)


def _not(a: Interval) -> Interval:
    return Interval(a.high, a.low)


def _where(test: Interval, a: Interval, b: Interval) -> Interval:
    both = _hull(a.low, b.low).low, _hull(a.high, b.high).high
    known_true, known_false = test.low & ~test.high, test.high & ~test.low
    return Interval(
        torch.where(known_true, a.low, torch.where(known_false, b.low, both[0])),
        torch.where(known_true, a.high, torch.where(known_false, b.high, both[1])),
    )


_OF: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: Interval(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Interval(a.low - b.high, a.high - b.low),
    "mul": _mul,
    "div": _div,
    "neg": lambda a: Interval(-a.high, -a.low),
    "abs": _abs,
    "min": lambda a, b: Interval(torch.minimum(a.low, b.low), torch.minimum(a.high, b.high)),
    "max": lambda a, b: Interval(torch.maximum(a.low, b.low), torch.maximum(a.high, b.high)),
    "where": _where,
    "lt": _less,
    "le": _less_or_equal,
    "gt": lambda a, b: _less(b, a),
    "ge": lambda a, b: _less_or_equal(b, a),
    "eq": _equal,
    "ne": lambda a, b: _not(_equal(a, b)),
    "reciprocal": _reciprocal,
    "rsqrt": _rsqrt,
    "sin": _wave("sin"),
    "cos": _wave("cos"),
    "log": _domain("log", 0.0),
    "log1p": _domain("log1p", -1.0),
    "sqrt": _domain("sqrt", 0.0),
    "float16": _cast(torch.float16),
    "bfloat16": _cast(torch.bfloat16),
    **{name: _monotone(name) for name in ("exp", "expm1", "erf", "tanh", "sigmoid")},
}
