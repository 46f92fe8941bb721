"""Gradients in the language, beside PyTorch's: function by function at and around kinks, infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Literal

import pytest
import torch
from function_calls import BINARY, COMPARISONS, THEIRS, cases
from torch import Tensor

from tconv.errors import InvalidProgram
from tconv.pointwise import derivative
from tconv.pointwise.calls import gradient_of, known_gradient
from tconv.pointwise.derivative import Computed, Gradient, Source, Tape
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.functions import Value
from tconv.pointwise.operations import OPERATIONS
from tconv.pointwise.program import MOST_OPERANDS

NEAR = (1 + 2.0**-40, 1 - 2.0**-40, 1.0)
KINKS = [size * near for size in (0.1, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 20.0) for near in NEAR]
SIZES = [*KINKS, 1e-30, 0.3, 2.9, 19.0, 90.0, 1e5, 1e20, math.inf]
VALUES = torch.tensor([0.0, -0.0, *SIZES, *(-size for size in SIZES), math.nan], dtype=torch.float64)
#: How far PyTorch's own are from float64: it has 1/6 in float32.
LOOSE = {"hardsigmoid": 1e-7}
#: Where PyTorch's formula multiplies infinity by 0, and ours has the limit.
LIMITS = {"mish": math.inf}
#: What PyTorch's are at NaN hangs on the instructions that it finds.
KINKED = {"celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "relu6", "selu", "softplus"}
FUNCTIONS = [case for case in cases() if case[0] not in COMPARISONS]


def theirs(function: Callable[..., Tensor], tensors: Sequence[Tensor], incoming: Tensor) -> list[Tensor]:
    given = [t.detach().requires_grad_() for t in tensors]
    return list(torch.autograd.grad(function(*given), given, incoming))


def ours(gradient: Gradient, y: Tensor, operands: Sequence[Tensor], incoming: Tensor) -> Tensor:
    return computed(gradient.of_sum, y, operands, incoming)


def computed(part: Computed, y: Tensor, operands: Sequence[Tensor], incoming: Tensor) -> Tensor:
    return evaluate(part.program, y, [*(operands[number] for number in part.reads), incoming])


def of_function(name: str, *arguments: Any, **named: Any) -> Gradient:
    tape = Tape()
    return tape.gradient(tape.functions[name](tape.value(tape.builder.sum()), *arguments, **named))


def assert_equal(found: Tensor, expected: Tensor, rtol: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-14, equal_nan=True)


def check_function(name: str, arguments: tuple[Any, ...], named: dict[str, Any], incoming: float) -> None:
    values = VALUES[LIMITS[name] != VALUES] if name in LIMITS else VALUES
    values = values[~values.isnan()] if name in KINKED else values
    y, g = values.view(1, 1, -1), torch.full((1, 1, len(values)), incoming, dtype=torch.float64)
    (expected,) = theirs(lambda y: THEIRS[name](y, *arguments, **named), [y], g)
    assert_equal(ours(of_function(name, *arguments, **named), y, (), g), expected, LOOSE.get(name, 1e-12))


@pytest.mark.parametrize("incoming", [1.0, -0.75, math.inf])
@pytest.mark.parametrize(("name", "arguments", "named"), FUNCTIONS)
def test_the_gradient_of_a_function_is_pytorchs(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any], incoming: float
) -> None:
    check_function(name, arguments, named, incoming)


def test_every_operation_has_a_rule() -> None:
    comparisons = {name for name, operation in OPERATIONS.items() if operation.tests}
    assert set(OPERATIONS) == {*derivative._OPERATIONS, *comparisons, "pow"}
    assert set(derivative._FUNCTIONS) <= set(derivative.FUNCTIONS)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_gradient_of_a_cast_is_cast(name: str) -> None:
    tape = Tape()
    gradient = tape.gradient(tape.value(tape.builder.sum()).call(name))
    y = torch.randn(1, 1, 9, dtype=torch.float64)
    expected = theirs(lambda y: y.to(getattr(torch, name)).double(), [y], y.cos())[0]
    assert_equal(ours(gradient, y, (), y.cos()), expected)


def check_two(name: str) -> None:
    """The second one's gradient is that of the same function, with the tensors the other way round."""
    y, z = VALUES.repeat_interleave(len(VALUES)).view(1, 1, -1), VALUES.repeat(len(VALUES)).view(1, 1, -1)
    first, between, given, function = "", "", (), THEIRS[name]
    if name in ("addcmul", "addcdiv"):
        first, between, given = "output0, ", ", value=0.5", (torch.ones_like(y),)
        function = lambda y, z: THEIRS[name](given[0], y, z, value=0.5)  # noqa: E731
    if name == "prelu":
        function = torch._prelu_kernel
    of_y, of_z = theirs(function, [y, z], torch.ones_like(y))
    other = f"output{len(given)}"
    for own, beside, arguments, expected in ((y, z, f"y, {other}", of_y), (z, y, f"{other}, y", of_z)):
        gradient = gradient_of(f"{name}({first}{arguments}{between})")
        assert_equal(ours(gradient, own, [*given, beside], torch.ones_like(y)), expected)


@pytest.mark.parametrize("name", sorted(BINARY))
def test_the_gradients_of_a_function_of_two_tensors_are_pytorchs(name: str) -> None:
    check_two(name)


def clamped_by_tensors(y: Tensor, low: Tensor, high: Tensor) -> None:
    expected = theirs(torch.clamp, [y, low, high], torch.ones_like(y))
    texts = ("y, output0, output1", "output0, y, output1", "output0, output1, y")
    for text, own, others, of_own in zip(
        texts, (y, low, high), ((low, high), (y, high), (y, low)), expected, strict=True
    ):
        assert_equal(ours(gradient_of(f"clamp({text})"), own, others, torch.ones_like(y)), of_own)


def test_the_gradients_of_a_clamp_by_tensors_are_pytorchs() -> None:
    """Also where the limits are equal, or the wrong way round."""
    few = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0], dtype=torch.float64)
    clamped_by_tensors(*(t.reshape(1, 1, -1) for t in torch.meshgrid(few, few, few, indexing="ij")))


def test_the_gradient_of_where_goes_to_the_branch_that_is_taken() -> None:
    gradient = gradient_of("t0 = gt(y, output0); where(t0, y, output0)")
    y, z = VALUES.repeat_interleave(len(VALUES)).view(1, 1, -1), VALUES.repeat(len(VALUES)).view(1, 1, -1)
    g = torch.full_like(y, math.inf)
    (expected,) = theirs(lambda y: torch.where(y > z, y, z), [y], g)
    assert_equal(ours(gradient, y, [z], g), expected)
    (source,) = gradient.sources
    assert isinstance(source, Computed)
    (expected,) = theirs(lambda z: torch.where(y > z, y, z), [z], g)
    assert_equal(computed(source, y, [z], g), expected)


LAYER, GIVEN = ("layer", 1.0), ("given", 1.0)
#: Epilogues with what they compute, and whence the gradients of their operands come, "" where programs give them.
EPILOGUES: dict[str, tuple[Callable[..., Tensor], tuple[Source | Literal[""] | None, ...]]] = {
    "t0 = add(y, output0); t1 = relu(t0); add(t1, output1)": (lambda y, a, b: torch.relu(y + a) + b, (LAYER, GIVEN)),
    "t0 = sub(y, output0); t1 = mul(t0, t0); mul(t1, output1)": (
        lambda y, a, b: (y - a) ** 2 * b,
        (("layer", -1.0), ""),
    ),
    "t0 = mul(y, output0); t1 = detach(t0); t2 = add(y, t1); mul(t2, t0)": (
        lambda y, a: (y + (y * a).detach()) * (y * a),
        ("",),
    ),
    "t0 = clone(y); t1 = detach(t0); t2 = add(y, output0); t3 = add(t2, t1); t4 = mul(t3, t1); add(t4, t1)": (
        lambda y, a: (y + a + y.detach()) * y.detach() + y.detach(),
        (LAYER,),
    ),
    "t0 = relu(y); t1 = max(y, tensor(0.0)); add(t0, t1)": (lambda y: y.relu() + y.maximum(torch.zeros_like(y)), ()),
    "t0 = gt(output0, 0.5); t1 = mul(y, t0); add(t1, y)": (lambda y, a: y * (a > 0.5) + y, (None,)),
    "t0 = sigmoid(y); t1 = mul(y, t0); t2 = mul(t1, t0); sub(t2, output0)": (
        lambda y, a: y * y.sigmoid() * y.sigmoid() - a,
        (("given", -1.0),),
    ),
    "t0 = mul(y, 1e-06); t1 = add(t0, output0); mish(t1)": (  # the layer's is too small to tell of the other one
        lambda y, a: torch.nn.functional.mish(y * 1e-6 + a),
        ("",),
    ),
    "t0 = mul(y, 4.0); t1 = add(t0, output0, alpha=2.0); t2 = threshold(t1, 0.1, 20.0); radd(t2, output1)": (
        lambda y, a, b: torch.threshold(4 * y + 2 * a, 0.1, 20.0) + b,
        (("layer", 0.5), GIVEN),
    ),
}


@pytest.mark.parametrize("calls", EPILOGUES)
def test_the_gradients_of_a_epilogue_are_pytorchs(calls: str) -> None:
    function, sources = EPILOGUES[calls]
    gradient = gradient_of(calls)
    assert ["" if isinstance(each, Computed) else each for each in gradient.sources] == list(sources)
    generator = torch.Generator().manual_seed(0)
    y, incoming, *operands = (
        torch.randn(2, 3, 50, generator=generator, dtype=torch.float64) for _ in range(2 + len(sources))
    )
    y[0, 0, :4] = 0
    given = [t.requires_grad_() for t in (y, *operands)]
    found = torch.autograd.grad(function(*given), given, incoming, allow_unused=True)
    of_layer = ours(gradient, y.detach(), [t.detach() for t in operands], incoming)
    assert found[0] is not None
    assert_equal(of_layer, found[0])
    for source, expected in zip(gradient.sources, found[1:], strict=True):
        if source is not None:
            assert expected is not None
        if isinstance(source, Computed):
            assert_equal(computed(source, y.detach(), [t.detach() for t in operands], incoming), expected)
        elif source is not None:
            assert_equal((of_layer if source[0] == "layer" else incoming) * source[1], expected)
        else:
            assert expected is None


@pytest.mark.parametrize(
    ("calls", "function", "factor"),
    [
        ("y", "", 1.0),
        ("t0 = mul(y, 2.5); add(t0, channel0)", "", 2.5),
        ("t0 = add(y, channel0); t1 = relu(t0); t1", "relu", 1.0),
        ("t0 = neg(y); tanh(t0)", "tanh", -1.0),
        ("t0 = div(y, 4.0); sigmoid(t0)", "sigmoid", 0.25),
        ("t0 = relu(y); mul(t0, 2.0)", None, 1.0),  # the result is not relu's
        ("t0 = mul(y, channel0); relu(t0)", None, 1.0),
        ("t0 = mul(y, 2.0); t1 = add(t0, y); relu(t1)", None, 1.0),
        ("t0 = mul(y, 2.0); t1 = neg(t0); t2 = div(t1, 8.0); relu(t2)", "relu", -0.25),
        ("t0 = relu(y); add(t0, y)", None, 1.0),
        ("leaky_relu(y, 0.1)", None, 1.0),  # PyTorch keeps what it takes
    ],
)
def test_where_a_gradient_follows_from_the_result(calls: str, function: str | None, factor: float) -> None:
    gradient = gradient_of(calls)
    assert (gradient.function, gradient.factor) == (function, factor)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ("t0 = detach(y); add(t0, output0)", "no gradient reaches"),
        ("t0 = gt(y, 0.0); where(t0, 1.0, 2.0)", "no gradient reaches"),
        ("cumsum(y, 1)", "none of the language's functions"),
        (
            "; ".join(
                [f"t{n} = mul({'y' if n == 0 else f't{n - 1}'}, output{n})" for n in range(MOST_OPERANDS)]
                + [f"t{MOST_OPERANDS - 1}"]
            ),
            f"got {MOST_OPERANDS + 1} operands",
        ),
        ("; ".join([*(f"t{n} = sin({'y' if n == 0 else f't{n - 1}'})" for n in range(40)), "t39"]), "operations"),
    ],
)
def test_what_has_no_gradient_says_why(calls: str, words: str) -> None:
    with pytest.raises(InvalidProgram, match=words):
        gradient_of(calls)
    assert known_gradient(calls) is None


def wrong(rule: Callable[..., Sequence[Value | None]]) -> Callable[..., Sequence[Value | None]]:
    """The rule with too large gradients."""

    def gradients(g: Value, r: Value, *arguments: Any) -> Sequence[Value | None]:
        return [None if part is None else part * 1.001 for part in rule(g, r, *arguments)]

    return gradients


@pytest.mark.parametrize("name", sorted({*derivative._OPERATIONS, *derivative._FUNCTIONS} - {"float16", "bfloat16"}))
def test_a_wrong_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts are of no function, and have a test of their own."""
    for table in ("_OPERATIONS", "_FUNCTIONS"):
        rules = dict(getattr(derivative, table))
        if name in rules:
            monkeypatch.setattr(derivative, table, MappingProxyType({**rules, name: wrong(rules[name])}))
    called = {"min": "minimum", "max": "maximum", "where": "threshold"}.get(name, name)
    with pytest.raises(AssertionError):
        for case in FUNCTIONS:
            if case[0] == called:
                check_function(*case, 1.0)
        if called in BINARY:
            check_two(called)
