"""The operations of the pointwise language, and nothing else: the one place that lists them.

Each is a function of PyTorch, which says what it computes, NaN and infinities included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True)
class Operation:
    """One operation.

    Args:
        name: in the text of a program.
        arity: how many arguments it takes.
        torch: the function of torch that it equals; of a cast, the type that it rounds to.
        cuda: the same in CUDA, where that is neither the symbol nor a call by the name; {0} and so on are its
            arguments.
        symbol: how the text writes it between its arguments, or before the only one; else it is a call.
        precedence: of the symbol, as in Python; the larger binds the tighter.
        tests: whether it gives true or false.
        chooses: whether its first argument is true or false.
    """

    name: str
    arity: int
    torch: str
    cuda: str = ""
    symbol: str = ""
    precedence: int = 0
    tests: bool = False
    chooses: bool = False


#: Of comparisons, sums, products and signs.
_COMPARISON, _SUM, _PRODUCT, _SIGN = 1, 2, 3, 4


def _symbol(name: str, symbol: str, precedence: int) -> Operation:
    return Operation(name, 2, name, symbol=symbol, precedence=precedence, tests=precedence == _COMPARISON)


def _function(name: str, cuda: str = "") -> Operation:
    return Operation(name, 1, name, cuda)


_ALL = (
    _symbol("add", "+", _SUM),
    _symbol("sub", "-", _SUM),
    _symbol("mul", "*", _PRODUCT),
    replace(_symbol("div", "/", _PRODUCT), cuda="tconv::quotient({0}, {1})"),
    Operation("neg", 1, "neg", symbol="-", precedence=_SIGN),
    Operation("min", 2, "minimum", "tconv::minimum({0}, {1})"),
    Operation("max", 2, "maximum", "tconv::maximum({0}, {1})"),
    Operation("pow", 2, "pow", "pow({0}, {1})"),
    Operation("where", 3, "where", "tconv::select({0}, {1}, {2})", chooses=True),
    *(
        _symbol(name, symbol, _COMPARISON)
        for name, symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
    ),
    _function("abs", "fabs({0})"),
    _function("exp", "tconv::exponential({0})"),
    *map(_function, ("expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "erf", "tanh")),
    _function("reciprocal", "tconv::quotient(Sum(1), {0})"),
    _function("sigmoid", "tconv::sigmoid({0})"),
    _function("float16", "tconv::rounded<tconv::Half>({0})"),
    _function("bfloat16", "tconv::rounded<tconv::BFloat16>({0})"),
)
#: By name.
OPERATIONS: Mapping[str, Operation] = MappingProxyType({operation.name: operation for operation in _ALL})
