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
        torch: the function of torch that it equals; of a cast, the type that it rounds to.
        symbol: how the text writes it between its arguments, or before the only one; else it is a call.
        precedence: of the symbol, as in Python; the larger binds the tighter.
        tests: whether it gives true or false.
        chooses: whether its first argument is true or false.
    """

    name: str
    arity: int
    torch: str
    symbol: str = ""
    precedence: int = 0
    tests: bool = False
    chooses: bool = False


#: Of comparisons, sums, products and signs.
_COMPARISON, _SUM, _PRODUCT, _SIGN = 1, 2, 3, 4


def _comparison(name: str, symbol: str) -> Operation:
    return Operation(name, 2, name, symbol, _COMPARISON, tests=True)


def _function(name: str) -> Operation:
    return Operation(name, 1, name)


_ALL = (
    Operation("add", 2, "add", "+", _SUM),
    Operation("sub", 2, "sub", "-", _SUM),
    Operation("mul", 2, "mul", "*", _PRODUCT),
    Operation("div", 2, "div", "/", _PRODUCT),
    Operation("neg", 1, "neg", "-", _SIGN),
    Operation("min", 2, "minimum"),
    Operation("max", 2, "maximum"),
    Operation("pow", 2, "pow"),
    Operation("where", 3, "where", chooses=True),
    *map(_comparison, ("lt", "le", "gt", "ge", "eq", "ne"), ("<", "<=", ">", ">=", "==", "!=")),
    *map(_function, ("abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "erf", "tanh")),
    *map(_function, ("sigmoid", "float16", "bfloat16")),
)
#: By name.
OPERATIONS: Mapping[str, Operation] = MappingProxyType({operation.name: operation for operation in _ALL})
