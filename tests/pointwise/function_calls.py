"""Calls of the language's functions, and PyTorch's function of each name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tconv.pointwise.functions import FUNCTIONS

THEIRS: dict[str, Any] = {name: getattr(torch, name, None) or getattr(F, name, None) for name in FUNCTIONS}
THEIRS |= {"clamp_min": torch.clamp_min, "threshold": F.threshold, "gelu": F.gelu, "hardtanh": F.hardtanh}
#: Arguments beside the input, by function; those that are not named take none.
ARGUMENTS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "leaky_relu": [((), {}), ((0.2,), {})],
    "elu": [((), {}), ((0.7,), {})],
    "celu": [((), {}), ((0.5,), {})],
    "gelu": [((), {}), ((), {"approximate": "tanh"})],
    "softplus": [((), {}), ((2.0, 10.0), {})],
    "hardtanh": [((), {}), ((-0.5, 2.0), {})],
    "clamp": [((-1.0, 2.0), {}), ((), {"max": 0.5}), ((), {"min": 0.5})],
    "clamp_min": [((0.5,), {})],
    "clamp_max": [((0.5,), {})],
    "threshold": [((0.1, 20.0), {})],
    "pow": [((exponent,), {}) for exponent in (2, 3, 0.5, -0.5, -1, -2, 1, 1.5, 4)],
    "add": [((2.0,), {}), ((2.0,), {"alpha": 3})],
    "sub": [((2.0,), {}), ((2.0,), {"alpha": 3})],
    "rsub": [((2.0,), {}), ((2.0,), {"alpha": 3})],
    "mul": [((-2.5,), {})],
    "div": [((-2.5,), {})],
}
BINARY = {"maximum", "minimum", "add", "sub", "mul", "div", "rsub", "prelu", "addcmul", "addcdiv"}
COMPARISONS = {"eq", "ge", "gt", "le", "lt", "ne"}


def cases() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    unary = [name for name in FUNCTIONS if name not in BINARY | COMPARISONS | {"where"} | set(ARGUMENTS)]
    return [(n, a, k) for n, given in (ARGUMENTS | {name: [((), {})] for name in unary}).items() for a, k in given]
