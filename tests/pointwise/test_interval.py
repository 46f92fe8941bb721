"""Interval arithmetic is sound: what a program gives of sums in an interval, rounded or not, lies in the result's."""

from __future__ import annotations

import math

import pytest
import torch

from tconv.pointwise.evaluate import evaluate, shape_of
from tconv.pointwise.functions import FUNCTIONS, Value
from tconv.pointwise.interval import Interval, bounds
from tconv.pointwise.program import Builder, Program, parse

SHAPE = (2, 3, 40)
_UNARY = (
    *(
        "celu",
        "elu",
        "gelu",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "leaky_relu",
        "logsigmoid",
        "mish",
        "relu",
        "relu6",
    ),
    *(
        "selu",
        "silu",
        "softplus",
        "softsign",
        "square",
        "tanh",
        "tanhshrink",
        "abs",
        "erf",
        "exp",
        "expm1",
        "neg",
        "sin",
    ),
    *("sigmoid", "reciprocal"),
)
TEXTS = (
    "max(y * channel0 + channel1, 0) + output2",
    "min(max(y, -1), 1) / scalar0",
    "where(y > 0.2, y, output0 * 0.1)",
    "where(y <= sample0, -y, y) * where(y != 0, 1, 2)",
    "log1p(y * y) + sqrt(y * y + 0.5) - rsqrt(y * y + 1)",
    "pow(y, 4) - pow(y, 3.0) + pow(abs(y) + 0.1, 1.7) + pow(y * y + 1, -2)",
    "y / (y * y + 1) + 1 / (y + 8)",
    "float16(y) * bfloat16(y)",
    "log(abs(y) + 0.5) * min(y, output0)",
)


def of_function(name: str) -> Program:
    builder = Builder()
    return FUNCTIONS[name](Value(builder, builder.sum())).program()


PROGRAMS = {**{text: parse(text) for text in TEXTS}, **{name: of_function(name) for name in _UNARY}}


@pytest.mark.parametrize("width", [0.0, 1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_lie_within(name: str, width: float) -> None:
    program, generator = PROGRAMS[name], torch.Generator().manual_seed(5)
    middle = 3 * torch.randn(SHAPE, generator=generator).double()
    operands = [torch.randn(shape_of(o.kind, SHAPE), generator=generator) for o in program.operands]
    low, high = bounds(program, Interval(middle - width, middle + width), operands, unit=2.0**-23)
    assert bool((low <= high).all())
    for share in (-1.0, -0.5, 0.0, 0.3, 1.0):
        y = (middle + share * width).clamp(middle - width, middle + width)
        exact = evaluate(program, y, [operand.double() for operand in operands])
        assert bool(((low <= exact) & (exact <= high)).all()), program.text
        rounded = evaluate(program, y.float(), operands).double()
        apart = (y.float().double() - middle).abs() > width  # sums of float32 that are outside
        assert bool((((low <= rounded) & (rounded <= high)) | apart).all()), program.text


@pytest.mark.parametrize(
    "name", [name for name in PROGRAMS if name not in ("float16(y) * bfloat16(y)", TEXTS[2], TEXTS[3])]
)
def test_intervals_are_narrow(name: str) -> None:
    """An interval without width has that of the rounding of some steps: a wrong result of float32 is outside."""
    program, generator = PROGRAMS[name], torch.Generator().manual_seed(6)
    y = torch.rand(SHAPE, generator=generator).double() + 0.3
    operands = [torch.rand(shape_of(o.kind, SHAPE), generator=generator) + 0.3 for o in program.operands]
    low, high = bounds(program, Interval(y, y), operands, unit=2.0**-23)
    exact = evaluate(program, y, [operand.double() for operand in operands])
    assert bool((high - low <= 2e-4 * (1 + exact.abs())).all())


def test_a_divisor_that_may_be_zero_leaves_nothing_known() -> None:
    low, high = bounds(parse("1 / y"), Interval(torch.tensor([-1.0, 1.0]), torch.tensor([1.0, 2.0])), [], unit=2.0**-23)
    assert low.tolist()[0] == -math.inf and high.tolist()[0] == math.inf
    assert 0.49 < float(low[1]) < 0.5 and 1 < float(high[1]) < 1.01


def test_where_gives_the_hull_only_where_the_answer_is_not_known() -> None:
    y = Interval(torch.tensor([-2.0, -0.5, 0.5]).double(), torch.tensor([-1.0, 0.5, 1.0]).double())
    low, high = bounds(parse("where(y > 0, 10, 20)"), y, [], unit=0.0)
    assert low.tolist() == [20, 10, 10] and high.tolist() == [20, 20, 10]
