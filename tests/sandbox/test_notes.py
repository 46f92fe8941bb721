"""What is noted of the lines behind a layer is what they compute: function by function, against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tconv.codegen.spelled import spelled
from tconv.errors import InvalidProgram
from tconv.pointwise.calls import known_calls, program_of
from tconv.pointwise.evaluate import evaluate, shape_of
from tconv.sandbox.epilogues import POINTWISE
from tconv.sandbox.notes import Notes

SHAPE = (2, 3, 4, 5)
Function = Callable[..., Any]
Y = Any

FUNCTIONS: dict[str, Function] = {
    "operators": lambda y: ((1 - y) * 2 + y - 0.5) / 3 + 2 / (y * y + 1) - (-y) ** 3,
    "operators with tensors": lambda y, o, c: (o + y) * c - (c - y) / (o * o + 1) + o / (2 + y * y),
    "in place": lambda y: y.add_(1).mul_(2).clamp_(max=3).sub_(0.5).div_(1.5),
    "in place by operators": lambda y: in_place(y),
    "in place by functions": lambda y: F.relu(torch.relu_(y + 0) - 0.1, inplace=True) + F.leaky_relu_(y, 0.3),
    "named numbers": lambda y: torch.add(y, 1, alpha=2) + torch.sub(y, 2.0, alpha=0.5) + torch.rsub(y, 1),
    "other names": lambda y: torch.multiply(torch.true_divide(y, 3), torch.negative(y)) + torch.absolute(y).subtract(1),
    "clamps": lambda y: y.clamp(-0.5, 0.7) + torch.clamp_min(y, 0.1) + torch.clip(y, max=0.3) + y.clamp_max(0.4),
    "extremes": lambda y, o: torch.max(y, o) + torch.min(o, y) + torch.maximum(y, o * 2) - y.minimum(o),
    "comparisons": lambda y, o: torch.where(y > o, y, o * 2) + (y <= 0.1) * 3 + torch.where(y.ne(0), 1.0, y),
    "exponentials": lambda y: torch.exp(y) + torch.expm1(y) + torch.log1p(y.abs()) + (y * y + 1).log(),
    "roots": lambda y: (y * y + 1).sqrt() + torch.rsqrt(y * y + 2) + torch.reciprocal(y * y + 3) + torch.square(y),
    "powers": lambda y: y**2 + torch.pow(y.abs() + 1, 1.7) + (y.abs() + 1) ** -0.5 + y.pow(3),
    "snake": lambda y, c: y + (c * c + 1e-9).reciprocal() * torch.sin(c * y).pow(2),
    "erf, tanh, sigmoid": lambda y: (
        torch.erf(y) + torch.tanh(y) + torch.sigmoid(y) + F.tanh(y) + F.sigmoid(y) + y.tanh()
    ),
    "special": lambda y: torch.special.expit(y) + torch.special.erf(y) + torch.special.expm1(y),
    "gelu": lambda y: F.gelu(y) + F.gelu(y, approximate="tanh"),
    "exponential units": lambda y: F.elu(y, 0.7) + F.celu(y, 1.3) + F.selu(y) + F.elu(y, alpha=0.5, inplace=False),
    "linear units": lambda y: F.relu6(y * 5) + F.leaky_relu(y) + F.leaky_relu(y, 0.2, False) + torch.selu(y) + y.relu(),
    "hard": lambda y: F.hardtanh(y, -0.4, 0.3) + F.hardsigmoid(y * 4) + F.hardswish(y * 4) + F.threshold(y, 0.1, -2.0),
    "soft": lambda y: F.softplus(y) + F.softplus(y, 2, 3) + F.softsign(y) + F.logsigmoid(y) + F.tanhshrink(y),
    "mish and silu": lambda y: F.mish(y) + F.silu(y) + F.silu(y, inplace=False),
    "prelu": lambda y, v, s: F.prelu(y, v) + torch.prelu(y, s),
    "batch norm": lambda y, v, w: (
        F.batch_norm(y, v, w * w + 0.1, w, v, False, 0.1, 1e-3) + F.batch_norm(y, v, w * w + 1)
    ),
    "addcmul": lambda y, o, c: torch.addcmul(y, o, c, value=0.5) + torch.addcdiv(o, y, c * c + 1),
    "tensors of a number": lambda y: (
        torch.min(y + torch.tensor(0.1), torch.tensor(0.3, dtype=y.dtype, device=y.device))
        + torch.where(y > torch.tensor(0), y.clamp(torch.tensor(-math.inf), torch.tensor(1)), torch.tensor(True)) / 3
        + (y.abs() + 1).pow(torch.tensor(1.7)) * (torch.tensor(2.0) - y) ** torch.tensor(2)
    ),
    "what changes nothing": lambda y: F.dropout(y.clone().detach().contiguous(), training=False) * 2,
}
#: Tensors that functions take, by the names of their parameters.
OPERANDS = {"o": SHAPE, "c": (3, 1, 1), "v": (3,), "w": (3,), "s": (1,), "n": (2, 3, 1, 1)}


def in_place(y: Y) -> Y:
    held = y
    y += 1
    y *= held
    y -= 0.5
    y /= 2
    return held + y


def noted(
    function: Function,
    operands: list[Tensor],
    shape: tuple[int, ...] = SHAPE,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> tuple[str, list[Tensor]]:
    notes = Notes(torch.empty(shape, dtype=dtype, device=device))
    return notes.of(lambda y: function(y, *operands)), notes.operands


def drawn(function: Function, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    return [torch.randn(OPERANDS[name], generator=generator, dtype=torch.float64) for name in names]


def as_operands(program: Any, tensors: list[Tensor]) -> list[Tensor]:
    shapes = [shape_of(operand.kind, SHAPE) for operand in program.operands]
    return [tensor.reshape(shape) for tensor, shape in zip(tensors, shapes, strict=True)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_program_is_the_function(name: str) -> None:
    function, operands = FUNCTIONS[name], drawn(FUNCTIONS[name])
    calls, read = noted(function, operands)
    program = program_of(calls)
    y = 2 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected = function(y.clone(), *operands)
    assert torch.allclose(evaluate(program, y, as_operands(program, read)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_calls_spelled_as_pytorchs_are_the_function(name: str) -> None:
    """To the last bit, its gradients and second gradients, too, whatever was done in place."""
    function, operands = FUNCTIONS[name], drawn(FUNCTIONS[name])
    y = 2 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    of = [y] if name == "batch norm" else [y, *operands]  # PyTorch's statistics have no gradients
    for each in of:
        each.requires_grad_()
    calls, read = noted(function, operands)
    exec(spelled(calls, "spelled_out"), own := {"torch": torch, "nn": nn})
    again = own["spelled_out"](y.clone(), *read)
    theirs = function(y.clone(), *operands)
    assert torch.equal(again, theirs)
    if name not in _NOT_DIFFERENTIABLE:
        order = 1 if name in _ONCE_DIFFERENTIABLE else 2
        for one, another in zip(*(gradients(made, of, order) for made in (again, theirs)), strict=True):
            assert (one is None) == (another is None) and (one is None or torch.allclose(one, another, rtol=1e-12))


#: PyTorch refuses these, or their second gradients; one is constant.
_NOT_DIFFERENTIABLE, _ONCE_DIFFERENTIABLE = ("in place by operators", "what changes nothing"), ("hard",)


def gradients(made: Tensor, of: list[Tensor], order: int) -> list[Tensor | None]:
    """Of a weighted sum, and of the sum of their squares."""
    weights = torch.linspace(-1, 2, made.numel(), dtype=made.dtype).view(made.shape)
    first = torch.autograd.grad((made * weights).sum(), of, create_graph=True, allow_unused=True)
    squares = [(each * each).sum() for each in first if each is not None and each.requires_grad]
    second = torch.autograd.grad(torch.stack(squares).sum(), of, allow_unused=True) if order > 1 and squares else ()
    return [*first, *second]


def modules() -> list[nn.Module]:
    arguments: dict[str, tuple[Any, ...]] = {"Threshold": (0.1, 2.0), "PReLU": (3,)}
    made = [getattr(nn, name)(*arguments.get(name, (3,) * name.startswith("BatchNorm"))) for name in sorted(POINTWISE)]
    return [module.double().eval() for module in made]


@pytest.mark.parametrize("module", modules(), ids=lambda module: type(module).__name__)
def test_every_pointwise_module_has_a_program(module: nn.Module) -> None:
    shape = {"1d": (2, 3, 7), "3d": (2, 3, 2, 3, 4)}.get(type(module).__name__[-2:].lower(), SHAPE)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    calls, read = noted(module, [], shape)
    program = program_of(calls)
    y = 2 * torch.randn(shape, dtype=torch.float64)
    operands = [t.detach().reshape(shape_of(o.kind, shape)) for t, o in zip(read, program.operands, strict=True)]
    assert torch.allclose(evaluate(program, y, operands), module(y.clone()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda y: F.dropout(y), "dropout draws numbers"),
        (lambda y, v, w: F.batch_norm(y, v, w, training=True), "statistics of the batch"),
        (lambda y: y.max(1), "of two tensors"),
        (lambda y: torch.max(y, 1), "of two tensors"),
        (lambda y, c: y + c[:, :, :, None, None], "has not one value"),
        (lambda y: y + torch.ones(4, 1, dtype=torch.float64), "has not one value"),
        (lambda y: y + torch.ones(3, 1, 1), "has not one value"),  # of another type
        (lambda y: y + torch.ones(1, 1, 1, 1, 1, dtype=torch.float64), "has not one value"),  # with more axes
        (lambda y: torch.div(y, 2, rounding_mode="floor"), "rounding_mode"),
        (lambda y: torch.cumsum(y, 1), "none of the language"),
        (lambda y: y.half(), "none of the language"),
        (lambda y: y.clamp(torch.nn.functional, 1), "something else"),
        (lambda y: y**y, "pow takes a constant"),
        (lambda y: 1, "gives a number"),
    ],
)
def test_what_has_no_program_says_why(function: Function, words: str) -> None:
    calls, _ = noted(function, drawn(function))
    with pytest.raises(InvalidProgram, match=words):
        program_of(calls)


def test_numbers_are_told_apart() -> None:
    """Also those that are equal to Python: a note is text."""
    numbers = (0.0, -0.0, 1, 1.0, True, math.inf, -math.inf, None, "none")
    assert len({noted(lambda y, n=n: y.clamp(n), [])[0] for n in numbers}) == len(numbers)
    assert program_of(noted(lambda y: y.clamp(-math.inf), [])[0]).text == "max(y, -inf)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_tensor_of_a_number_is_the_number(dtype: torch.dtype) -> None:
    """As PyTorch takes it: rounded to its own type, and to that of the result."""
    for number, options in (
        *((0.1, {"dtype": own}) for own in (None, dtype, torch.float16, torch.float64)),
        *((number, {}) for number in (0.0, 2, True, math.inf)),
    ):
        calls, operands = noted(lambda y, n=number, o=options: y * torch.tensor(n, **o), [], dtype=dtype)
        (_, value), computed = program_of(calls).nodes[:2], torch.promote_types(dtype, torch.float32)
        expected = torch.ones((), dtype=dtype) * torch.tensor(number, **options).to(dtype)
        assert torch.equal(torch.tensor(value.what, dtype=computed), expected.to(computed)), calls
        assert not operands
    assert noted(lambda y: y * torch.tensor(0.1, dtype=y.dtype), [], dtype=torch.float32)[0].startswith(
        "t0 = mul(y, tensor(0.1));"
    )


def test_a_type_may_be_pretended() -> None:
    """Of the result and of all tensors beside it."""
    y, scale = torch.empty(SHAPE), torch.randn(3, 1, 1)
    for dtype, number in ((torch.float32, 0.1), (torch.bfloat16, 0.10009765625)):
        notes = Notes(y, dtype)
        assert notes.of(lambda y: y * scale + torch.tensor(0.1)) == (
            f"t0 = mul(y, channel0); t1 = add(t0, tensor({number})); t1"
        )
    assert "?" in Notes(y, torch.float16).of(lambda y: y * scale.half())


def test_no_tensor_of_a_number_is_made_on_the_results_device() -> None:
    """There it would wait for a copy; "meta" stands for the GPU."""

    def function(y: Y) -> Y:
        return torch.min(y, torch.tensor(0.5, device=y.device)) * torch.tensor(2.0) + torch.tensor(1.0, device="meta")

    calls, operands = noted(function, [], dtype=torch.float32, device="meta")
    assert program_of(calls).text == "min(y, 0.5) * 2 + 1" and not operands
    assert isinstance(torch.tensor(0.5), Tensor)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda y: y * torch.tensor(0.5, requires_grad=True), "t0 = mul(y, scalar0); t0"),
        (lambda y: y * torch.tensor([0.5]), "t0 = mul(y, scalar0); t0"),
        (lambda y: y * torch.tensor([0.1, 0.2, 0.3]).view(1, -1, 1, 1), "t0 = mul(y, channel0); t0"),
        (lambda y: y * torch.tensor(0.5, device="meta"), "t0 = mul(y, ?); t0"),  # PyTorch's error to tell
        (lambda y: y * torch.tensor(1j), "t0 = mul(y, ?); t0"),
    ],
)
def test_other_tensors_are_made(function: Function, said: str) -> None:
    assert noted(function, [], dtype=torch.float32)[0] == said


@pytest.mark.parametrize(
    "function",
    [
        lambda y: (y > 0) * torch.tensor(0.5),
        lambda y: (y > 0) + torch.tensor(1) * y,
        lambda y: torch.where(torch.tensor(0.1) < y, torch.tensor(1.0), torch.tensor(0.0, dtype=y.dtype)),
    ],
)
def test_a_number_of_another_type_beside_a_comparison_alone_is_not_taken(function: Function) -> None:
    """It would give that type to what they make."""
    for dtype in (torch.float16, torch.float64):
        assert "?" in noted(function, [], dtype=dtype)[0] or function(torch.zeros(SHAPE, dtype=dtype)).dtype == dtype
    assert "?" not in noted(lambda y: torch.where(y > 0, torch.tensor(0.5), y), [], dtype=torch.float16)[0]
    own = noted(lambda y: torch.where(y > 0, torch.tensor(0.5), torch.tensor(1.0)), [], dtype=torch.float32)[0]
    assert program_of(own).text == "where(y > 0, 0.5, 1)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "function",
    [
        lambda y: y > 0,
        lambda y: (y > 0) * 2,
        lambda y: (y > 0) * 2.0,
        lambda y: torch.where(y > 0, 1, 0),
        lambda y: torch.where(y > 0, 1.0, 0.0),
        lambda y: torch.where(y > 0, 1.0, 0.0) * y,
        lambda y: (y > 0) * 2 * y,
        lambda y: (y > 0) * y,
        lambda y: torch.where(y > 0, torch.tensor(1.0), 0),
    ],
)
def test_a_result_of_another_type_has_no_program(function: Function, dtype: torch.dtype) -> None:
    """Kernels write results of the layer's type; float32 takes numbers as they are."""
    calls = noted(function, [], dtype=dtype)[0]
    if function(torch.zeros(SHAPE, dtype=dtype)).dtype != dtype:
        assert "?" in calls
    elif dtype == torch.float32:
        assert program_of(calls) is not None


def test_all_names_are_functions_or_methods() -> None:
    missing = [
        name
        for name in known_calls()
        if not any(hasattr(place, name) for place in (torch, F, Tensor, torch.special))
        and not hasattr(Tensor, f"__{name}__")
        and not hasattr(torch._C._nn, name)
        and not name.startswith(("special_", "_"))
    ]
    assert missing == []
