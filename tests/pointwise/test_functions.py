"""PyTorch's functions in the language, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from function_calls import BINARY, COMPARISONS, THEIRS, cases

from tconv.errors import InvalidProgram
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.functions import FUNCTIONS, Value
from tconv.pointwise.program import Builder, parse

SIZES = (0.3, 1.0, 2.9, 3.1, 5.9, 6.1, 19.0, 21.0, 90.0, 1e5, float("inf"))
VALUES = torch.tensor([0.0, *SIZES, *(-size for size in SIZES), float("nan")])


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
        THEIRS[name](x.double(), *arguments, **named).to(dtype),  # in float32 some differ at infinity on CPUs
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
        THEIRS[name](x.double(), *arguments, **named).to(dtype),
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
        found, expected = FUNCTIONS[name](y, y, other, value=0.5), THEIRS[name](x, x, z, value=0.5)
    elif name == "prelu":
        found, expected = FUNCTIONS[name](y, other), torch.where(x > 0, x, z * x)
    else:
        found, expected = FUNCTIONS[name](y, other), THEIRS[name](x, z)
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
