"""The operations of the pointwise language, and nothing else: the one place that lists them.

Each is a function of PyTorch, which says what it computes, NaN and infinities included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Operation:
    """One operation.

    Args:
        name: in the text of a program.
        arity: how many arguments it takes.
        torch: the function of torch that it equals.
        cuda: an expression in CUDA, with ``{0}`` and so on for its arguments and ``{f}`` for the ``f`` behind the name
            of a function of C that takes float.
        cost: instructions that a GPU issues for it in float, about.
        symbol: how the text writes it between its arguments, or before the only one; else it is a call.
        precedence: of the symbol, as in Python; the larger binds the tighter.
        tests: whether it gives true or false.
        chooses: whether its first argument is true or false.
    """

    name: str
    arity: int
    torch: str
    cuda: str
    cost: int
    symbol: str = ""
    precedence: int = 0
    tests: bool = False
    chooses: bool = False


#: Of comparisons, sums, products and signs.
_COMPARISON, _SUM, _PRODUCT, _SIGN = 1, 2, 3, 4


def _comparison(name: str, symbol: str) -> Operation:
    return Operation(name, 2, name, f"{{0}} {symbol} {{1}}", 1, symbol, _COMPARISON, tests=True)


def _function(name: str, cost: int) -> Operation:
    return Operation(name, 1, name, f"{name}{{f}}({{0}})", cost)


_ALL = (
    Operation("add", 2, "add", "{0} + {1}", 1, "+", _SUM),
    Operation("sub", 2, "sub", "{0} - {1}", 1, "-", _SUM),
    Operation("mul", 2, "mul", "{0} * {1}", 1, "*", _PRODUCT),
    Operation("div", 2, "div", "{0} / {1}", 8, "/", _PRODUCT),
    Operation("neg", 1, "neg", "-{0}", 1, "-", _SIGN),
    Operation("abs", 1, "abs", "fabs{f}({0})", 1),
    Operation("min", 2, "minimum", "tconv::smaller({0}, {1})", 2),
    Operation("max", 2, "maximum", "tconv::larger({0}, {1})", 2),
    Operation("where", 3, "where", "{0} ? {1} : {2}", 1, chooses=True),
    _comparison("lt", "<"),
    _comparison("le", "<="),
    _comparison("gt", ">"),
    _comparison("ge", ">="),
    _comparison("eq", "=="),
    _comparison("ne", "!="),
    _function("exp", 6),
    _function("expm1", 14),
    _function("log", 12),
    _function("log1p", 16),
    _function("sqrt", 8),
    _function("rsqrt", 4),
    Operation("reciprocal", 1, "reciprocal", "1 / {0}", 7),
    _function("sin", 18),
    _function("erf", 16),
    _function("tanh", 16),
    Operation("sigmoid", 1, "sigmoid", "1 / (1 + exp{f}(-{0}))", 14),
    Operation("pow", 2, "pow", "pow{f}({0}, {1})", 40),
    Operation("float16", 1, "half", "tconv::to_accumulator(tconv::from_accumulator<tconv::Half>({0}))", 2),
    Operation("bfloat16", 1, "bfloat16", "tconv::to_accumulator(tconv::from_accumulator<tconv::BFloat16>({0}))", 4),
)
#: By name.
OPERATIONS: Mapping[str, Operation] = MappingProxyType({operation.name: operation for operation in _ALL})
