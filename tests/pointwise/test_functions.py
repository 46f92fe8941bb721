"""PyTorch's functions in the language, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tconv.errors import InvalidProgram
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.functions import FUNCTIONS, Value
from tconv.pointwise.program import Builder, parse

SIZES = (0.3, 1.0, 2.9, 3.1, 5.9, 6.1, 19.0, 21.0, 90.0, 1e5, float("inf"))
VALUES = torch.tensor([0.0, *SIZES, *(-size for size in SIZES), float("nan")])
_THEIRS: dict[str, Any] = {name: getattr(torch, name, None) or getattr(F, name, None) for name in FUNCTIONS}
_THEIRS |= {"clamp_min": torch.clamp_min, "threshold": F.threshold, "gelu": F.gelu, "hardtanh": F.hardtanh}
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "arguments", "named"), cases())
def test_a_function_is_pytorchs(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any], dtype: torch.dtype
) -> None:
    builder = Builder()
    program = FUNCTIONS[name](Value(builder, builder.sum()), *arguments, **named).program()
    x = VALUES.to(dtype).view(1, 1, -1)
    torch.testing.assert_close(
        evaluate(parse(program.text), x, ()),
        _THEIRS[name](x.double(), *arguments, **named).to(dtype),  # in float32 some differ at infinity on CPUs
        rtol=32 * torch.finfo(dtype).eps,
        atol=torch.finfo(dtype).eps,
        equal_nan=True,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "arguments", "named"), cases())
def test_a_function_of_every_number_of_16_bits_is_pytorchs(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any], dtype: torch.dtype
) -> None:
    """No step of our own way to write it leaves what 16 bits hold, or what float32 does."""
    builder = Builder()
    program = FUNCTIONS[name](Value(builder, builder.sum()), *arguments, **named).program()
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[(x.abs() <= 2.0**60) | ~x.isfinite()].view(1, 1, -1)
    torch.testing.assert_close(
        evaluate(parse(program.text), x, ()),
        _THEIRS[name](x.double(), *arguments, **named).to(dtype),
        rtol=4 * torch.finfo(dtype).eps,
        atol=2.0**-20,
        equal_nan=True,
    )


@pytest.mark.parametrize("name", sorted(BINARY | COMPARISONS))
def test_a_function_of_two_tensors_is_pytorchs(name: str) -> None:
    builder = Builder()
    y, other = Value(builder, builder.sum()), Value(builder, builder.operand("output", 0))
    x, z = VALUES.repeat_interleave(len(VALUES)).view(1, 1, -1), VALUES.repeat(len(VALUES)).view(1, 1, -1)
    if name in ("addcmul", "addcdiv"):
        found, expected = FUNCTIONS[name](y, y, other, value=0.5), _THEIRS[name](x, x, z, value=0.5)
    elif name == "prelu":
        found, expected = FUNCTIONS[name](y, other), torch.where(x > 0, x, z * x)
    else:
        found, expected = FUNCTIONS[name](y, other), _THEIRS[name](x, z)
    if name in COMPARISONS:
        found, expected = FUNCTIONS["where"](found, 1.0, 2.0), torch.where(expected, 1.0, 2.0)
    torch.testing.assert_close(evaluate(found.program(), x, [z]), expected, rtol=1e-6, atol=1e-37, equal_nan=True)


def test_numbers_alone_and_unknown_ways_are_refused() -> None:
    builder = Builder()
    y = Value(builder, builder.sum())
    for wrong in (
        lambda: FUNCTIONS["add"](1.0, 2.0),
        lambda: FUNCTIONS["gelu"](y, approximate="fast"),
        lambda: FUNCTIONS["div"](y, 2.0, rounding_mode="floor"),
        lambda: FUNCTIONS["pow"](y, y),
    ):
        with pytest.raises(InvalidProgram):
            wrong()
