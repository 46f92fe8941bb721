"""A program on tensors: operands of every kind, casts, and results that do not depend on the sum."""

from __future__ import annotations

import pytest
import torch

from tconv.errors import InvalidProgram
from tconv.pointwise.evaluate import evaluate, shape_of, values
from tconv.pointwise.operations import OPERATIONS
from tconv.pointwise.program import KINDS, parse

SHAPE = (2, 3, 4, 5)


def test_operands_of_every_kind() -> None:
    y, *operands = (torch.randn(shape) for shape in (SHAPE, *(shape_of(kind, SHAPE) for kind in KINDS)))
    assert [operand.shape for operand in operands] == [SHAPE, (2, 3, 1, 1), (1, 3, 1, 1), (1, 1, 1, 1)]
    output, sample, channel, scalar = operands
    got = evaluate(parse("(y + output0) * sample1 - channel2 / scalar3"), y, operands)
    torch.testing.assert_close(got, (y + output) * sample - channel / scalar)


def test_operands_take_the_dtype_of_the_sum() -> None:
    y, scale = torch.randn(SHAPE, dtype=torch.float64), torch.randn(1, 3, 1, 1)
    assert torch.equal(evaluate(parse("y * channel0"), y, [scale]), y * scale.double())


def test_a_result_that_does_not_depend_on_the_sum_has_its_shape() -> None:
    got = evaluate(parse("channel0 + 1"), torch.empty(SHAPE), [torch.ones(1, 3, 1, 1)])
    assert got.shape == SHAPE and got.is_contiguous() and bool((got == 2).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casts_round(dtype: torch.dtype) -> None:
    y = torch.randn(SHAPE)
    got = evaluate(parse(f"{str(dtype).removeprefix('torch.')}(y) + 1"), y, ())
    assert torch.equal(got, y.to(dtype).float() + 1)


def test_all_values_on_the_way_but_comparisons() -> None:
    y = torch.randn(SHAPE)
    found = values(parse("where(y > 0, y, 0.5 * y)"), y, ())
    expected = [y, torch.tensor(0.0), torch.tensor(0.5), 0.5 * y, torch.where(y > 0, y, 0.5 * y)]
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("count", [0, 2])
def test_as_many_operands_as_the_program_reads(count: int) -> None:
    with pytest.raises(InvalidProgram, match=f"got {count} operands"):
        evaluate(parse("y + output0"), torch.empty(SHAPE), [torch.empty(SHAPE)] * count)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_one_of_torch(name: str) -> None:
    assert hasattr(torch, OPERATIONS[name].torch)
