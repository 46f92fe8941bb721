"""The language: texts, what they stand for, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tconv.errors import InvalidProgram
from tconv.pointwise.operations import OPERATIONS
from tconv.pointwise.program import KINDS, MOST_OPERANDS, MOST_OPERATIONS, Builder, Operand, Program, parse


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("y", "y"),
        ("max( y*channel0 + channel1,0 )+output2", "max(y * channel0 + channel1, 0) + output2"),
        ("t7 = y + 1.0; t7 * sigmoid(t7)", "t0 = y + 1; t0 * sigmoid(t0)"),
        ("(y + 1) * sigmoid(y + 1)", "t0 = y + 1; t0 * sigmoid(t0)"),
        ("t0 = y + 1; y", "y"),
        ("y + 1 + 2", "y + 1 + 2"),
        ("y + (1 + 2)", "y + (1 + 2)"),
        ("y - (y - 1)", "y - (y - 1)"),
        ("(y * 2) / 3", "y * 2 / 3"),
        ("-(y * 2)", "-(y * 2)"),
        ("--y", "-(-y)"),
        ("-2 * y - -2", "-2 * y - -2"),
        ("where((y + 1) > 0.2, y, -inf)", "where(y + 1 > 0.2, y, -inf)"),
        ("pow(y, 3) + nan", "pow(y, 3) + nan"),
        ("y * 1e30 + 1e-9", "y * 1e+30 + 1e-09"),
        ("y * -0.0 + 0", "y * -0.0 + 0"),
        ("y * scalar0 + sample1", "y * scalar0 + sample1"),
    ],
)
def test_texts(text: str, canonical: str) -> None:
    program = parse(text)
    assert program.text == str(program) == canonical
    assert parse(canonical) == program and parse(canonical).nodes == program.nodes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no expression"),
        ("y +", "cannot be read"),
        ("y = 1", "no expression"),
        ("y = 1; y", "t0 = y + 1"),
        ("t0 = t1 = y; t0", "t0 = y + 1"),
        ("x + 1", "'x'"),
        ("t0 + 1", "'t0'"),
        ("relu(y)", "'relu'"),
        ("max(y)", "it takes 2"),
        ("max(y, y, y)", "it takes 2"),
        ("y > 0", "must be a number"),
        ("where(y, 1, 2)", "it takes a comparison"),
        ("where(y > 0, y > 1, 2)", "it takes a number"),
        ("(y > 0) + 1", "it takes a number"),
        ("0 < y < 1", "does not have"),
        ("pow(y, y)", "takes a constant"),
        ("y ** 2", "does not have"),
        ("output1", "output1"),
        ("output0 + channel0", "must stand for one"),
        ("y.real", "does not have"),
        ("__import__('os')", "does not have"),
        ("[y]", "does not have"),
        ("'y'", "does not have"),
        ("True + y", "does not have"),
        ("1j * y", "does not have"),
        ("y * 1" + "0" * 400, "cannot be read"),
        ("+".join(["y"] * 5000), "program"),
        ("(" * 500 + "y" + ")" * 500, "cannot be read"),
        (" + ".join(f"output{n}" for n in range(MOST_OPERANDS + 1)), "allowed are 8"),
        (" + ".join(f"y * {n}" for n in range(MOST_OPERATIONS)), "allowed are 64"),
    ],
)
def test_what_is_no_program_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidProgram) as refused:
        parse(text)
    assert words in str(refused.value)


def test_operands_are_in_the_order_of_a_launch() -> None:
    program = parse("output2 + y * channel0 + scalar1 * output2")
    assert program.operands == (Operand("channel", 0), Operand("scalar", 1), Operand("output", 2))
    assert program.operations == 4


def test_what_is_computed_alike_is_computed_once() -> None:
    builder = Builder()
    first, second = (builder.call("exp", builder.sum()) for _ in range(2))
    assert first == second
    zero, minus_zero = builder.constant(0.0), builder.constant(-0.0)
    assert zero != minus_zero and builder.call("neg", zero) == minus_zero
    assert builder.constant(math.nan) == builder.constant(float("nan"))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any program: a random graph over all operations."""
    builder = Builder()
    numbers = [builder.sum(), builder.constant(draw(st.floats()))]
    numbers += [builder.operand(draw(st.sampled_from(KINDS)), 0)] * draw(st.booleans())
    tests: list[int] = []
    for name in draw(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=20)):
        operation = OPERATIONS[name]
        if (operation.chooses and not tests) or name == "pow":
            continue
        arguments = [draw(st.sampled_from(numbers)) for _ in range(operation.arity)]
        if operation.chooses:
            arguments[0] = draw(st.sampled_from(tests))
        (tests if operation.tests else numbers).append(builder.call(name, *arguments))
    return builder.program(numbers[-1])


@given(programs())
def test_a_text_is_read_as_the_program_that_wrote_it(program: Program) -> None:
    again = parse.__wrapped__(program.text)
    assert again == program and again.text == program.text and again.nodes == program.nodes
