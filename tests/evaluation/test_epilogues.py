"""The judgement of layers with programs: what PyTorch gives passes, and small mistakes of every kind do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tconv.evaluation.epilogues import check_program
from tconv.evaluation.reference import conv_transpose, rounded_tf32
from tconv.evaluation.verdict import Verdict
from tconv.kernels.cases import PROGRAMS
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.program import parse
from tconv.problem import Layer, Precision, Problem

MORE = {
    "norm": "max((y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3, 0)",
    "gelu": "y * 0.5 * (1 + erf(y * 0.7071067811865476))",
    "jump": "where(y > 0, y + 1, y - 1)",
    "snake": "y + sin(y * channel0) * sin(y * channel0) / (channel0 * channel0 + 1)",
}
#: Of some sums they give no number, or one that a type or an interval does not hold.
ODD = {
    "overflow": "exp(y * y)",
    "quotient": "1 / y",
    "power": "pow(y, 1.5)",
    "logarithm": "log(y) + sqrt(y)",
    "domain": "y * rsqrt(y)",
    "mish of much": "t0 = y * 8; t1 = exp(min(t0, 20)); t2 = t1 * (t1 + 2); min(t0 * (t2 / (t2 + 2)) + 0.5, 9) * 2",
}
ALL = {**PROGRAMS, **MORE}


def problem(program: str, precision: Precision = "fp32") -> Problem:
    epilogue = (ALL | ODD)[program]
    layer = Layer(2, 20, 6, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=True, precision=precision, epilogue=epilogue)
    return Problem(layer, 2, (1, 9, 7), (0, 1, 1))


def judged(
    asked: Problem,
    change: Callable[[Tensor], Tensor] = lambda y: y,
    program: str | None = None,
    sums: Callable[[Tensor], Tensor] = lambda y: y,
    rounds: bool = False,
) -> Verdict:
    """The verdict on what kernels give: float32 sums, changed, the program of these, and its result changed."""
    text = program or asked.layer.epilogue

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *operands: Tensor) -> Tensor:
        if rounds:
            x, weight = rounded_tf32(x), rounded_tf32(weight)
        y = conv_transpose(x.float(), weight.float(), None if bias is None else bias.float(), asked)
        return change(evaluate(parse(text), sums(y), [o.float() for o in operands]).to(x.dtype))

    wanted = "tf32" if asked.layer.precision == "tf32" else "fp32"
    return check_program(candidate, asked, wanted)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("program", [*ALL, *ODD])
def test_what_a_kernel_gives_is_equal(program: str, precision: Precision) -> None:
    verdict = judged(problem(program, precision), rounds=precision == "tf32")
    assert verdict.equal, verdict.reasons
    assert all(check.passed or check.name.startswith("infinities") for check in verdict.checks), verdict.checks


@pytest.mark.parametrize("program", ODD)
@pytest.mark.parametrize(
    "change",
    [
        lambda y: y * (1 + 2e-5),
        lambda y: torch.zeros_like(y),
        lambda y: torch.full_like(y, math.inf),
        lambda y: torch.full_like(y, math.nan),
        lambda y: y.flip(1),
    ],
)
def test_where_little_is_known_of_some_elements_the_others_are_judged(
    program: str, change: Callable[[Tensor], Tensor]
) -> None:
    assert not judged(problem(program), change).equal


def first(value: float) -> Callable[[Tensor], Tensor]:
    """One element, changed by so much."""

    def change(y: Tensor) -> Tensor:
        y = y.clone()
        y.view(-1)[17] += value
        return y

    return change


@pytest.mark.parametrize("program", ALL)
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (first(1e-3), "every element"),
        (lambda y: y * (1 + 2e-5), "pooled error"),
        (lambda y: y.half().float(), "pooled error"),
        (lambda y: torch.full_like(y, math.nan), "every element"),
        (lambda y: torch.zeros_like(y), "every element"),
        (lambda y: y.flip(1), "every element"),
        (lambda y: y[..., :-1], "shape, dtype, memory format"),
        (lambda y: y.nan_to_num(nan=0.0, posinf=1e30, neginf=-1e30), "infinities and NaN"),
    ],
)
def test_a_small_mistake_is_not(program: str, change: Callable[[Tensor], Tensor], rule: str) -> None:
    verdict = judged(problem(program), change)
    assert not verdict.equal and rule in {check.name for check in verdict.checks if check.passed is False}


@pytest.mark.parametrize(
    ("program", "other"),
    [
        ("relu", "where(y > 0, y, y * 0.0001)"),
        ("affine", "max(y * (channel0 * 2 + 1), scalar2) + channel1 * 0"),
        ("residual", "t0 = y + output0; where(t0 > 1.001, t0, -t0) * output1"),
        ("gated", "min(max(y, -4), 6) * sample0 - output1 - channel2"),
        ("mish", "y * tanh(exp(y)) + 0.5 * output0"),
        ("norm", "max((y - channel0) * (channel2 * rsqrt(channel1 + 1e-03)) + channel3, 0)"),
        ("gelu", "0.5 * y * (1 + tanh(0.7978845608028654 * (y + 0.044715 * (y * y * y))))"),
        ("jump", "where(y > 0.01, y + 1, y - 1)"),
        ("snake", "y + sin(y * channel0) * sin(y * channel0) / (channel0 * channel0 + 1.001)"),
    ],
)
def test_another_program_is_not(program: str, other: str) -> None:
    """GELU by tanh differs by less than a thousandth."""
    assert not judged(problem(program), program=other).equal


def test_operands_of_rounded_sums_are_told_from_exact_ones() -> None:
    exact = problem("norm")
    assert judged(exact).equal and not judged(exact, rounds=True).equal
    allowed = replace(exact, layer=replace(exact.layer, precision="tf32"))
    assert judged(allowed, rounds=True).equal and judged(allowed).equal


def test_what_an_infinity_becomes_may_hang_on_rounding() -> None:
    """A sum near zero has either sign in TF32, and its product with an infinity is an infinity or NaN."""
    layer = replace(problem("relu", "tf32").layer, epilogue="max(y, 0) * output0", bias=False)
    many = Problem(layer, 2, (1, 40, 41), (0, 1, 1))
    assert judged(many, rounds=True).equal and not judged(many, program="max(-y, 0) * output0", rounds=True).equal


def test_the_side_of_a_jump_may_hang_on_rounding() -> None:
    """But near the jump alone."""
    asked = problem("jump")
    assert judged(asked, sums=lambda y: torch.nextafter(y, y + 1)).equal
    assert not judged(asked, sums=lambda y: y + 1e-4).equal


def test_a_second_run_must_give_the_same() -> None:
    calls: list[int] = []

    def change(y: Tensor) -> Tensor:
        calls.append(1)
        return first(1e-6 * (len(calls) % 2))(y)

    assert not judged(problem("mish"), change).check("same bits twice").passed


def test_a_call_that_changes_what_it_reads_is_refused() -> None:
    asked = problem("residual")

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *operands: Tensor) -> Tensor:
        y = evaluate(parse(asked.layer.epilogue), conv_transpose(x, weight, bias, asked), operands)
        operands[0].add_(0.5)
        return y

    assert "the call changed" in " ".join(check_program(candidate, asked, "fp32").reasons)


GRADIENT_OF_GELU = (
    "t0 = y * 4 + channel1; "
    "output0 * (0.5 * (1 + erf(t0 * 0.7071067811865476)) + t0 * (exp(t0 * t0 * -0.5) * 0.3989422804014327))"
)


@pytest.mark.parametrize("flushes", [False, True])
def test_what_an_infinity_becomes_may_hang_on_a_number_too_small_for_the_type(flushes: bool) -> None:
    """GELU's slope at -15 is 1e-47 in float64, a subnormal number or 0 in float32. Infinity times that is either."""
    layer = replace(problem("relu").layer, epilogue=GRADIENT_OF_GELU)
    many = Problem(layer, 2, (1, 40, 41), (0, 1, 1))

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *operands: Tensor) -> Tensor:
        return evaluate(parse(GRADIENT_OF_GELU), conv_transpose(x, weight, bias, many), operands, flushes=flushes)

    verdict = check_program(candidate, many, "fp32")
    assert verdict.equal, verdict.reasons


def test_numbers_that_the_type_holds_decide_what_an_infinity_becomes() -> None:
    layer = replace(problem("relu").layer, epilogue=GRADIENT_OF_GELU)
    many = Problem(layer, 2, (1, 40, 41), (0, 1, 1))
    assert not judged(many, lambda y: y.nan_to_num(posinf=math.nan)).equal
    assert not judged(many, lambda y: y.nan_to_num(nan=0.0)).equal
