"""Arithmetic behind a layer, written as a function: what it is traced to, what runs, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import tconv
from tconv import epilogues, routes
from tconv.epilogues import Epilogue
from tconv.planner import Plan
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.program import parse

SHAPE, CPU = (2, 3, 8, 9), torch.device("cpu")
#: Functions, and the shapes of what they take beside the result.
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "nothing": (lambda y: y + 0, []),
    "module": (torch.nn.Hardswish(), []),
    "residual": (lambda y, skip: torch.relu(y) + skip, [SHAPE]),
    "affine": (lambda y, a, b: y * a[:, None, None] + b.view(1, -1, 1, 1), [(3,), (3,)]),
    "gate": (lambda y, gate: torch.where(y > 0, y, 0.0) * torch.sigmoid(gate), [(2, 3, 1, 1)]),
    "scalar": (lambda y, scale: functional.mish(y) * scale, [()]),
    "mask": (lambda y: y * (y > 0), []),
    "twice": (lambda y, skip: (y + skip) * skip - skip, [SHAPE]),
    "of channels first": (lambda y, a: y / (a.square() + 1).sqrt(), [(3, 1, 1)]),
    "prelu": (functional.prelu, [(3,)]),
    "batch norm": (
        lambda y, mean, var: functional.batch_norm(y, mean, var.abs() + 1, None, None, False),
        [(3,), (3,)],
    ),
    "snake": (lambda y, alpha: y + torch.sin(alpha * y) ** 2 / (alpha.abs() + 1), [(1, 3, 1, 1)]),
    "dropout in evaluation": (lambda y: functional.dropout(y, training=False).tanh(), []),
    "a number of another tensor": (lambda y: y * torch.ones(3, 1, 1), []),
    "clamp by tensors": (lambda y, low: torch.clamp(y, min=low, max=None), [(3, 1, 1)]),
    "expanded": (lambda y, row: y + row.expand(2, 3, 8, 9), [(1, 1, 1, 9)]),
    **{
        name: (getattr(functional, name), [])
        for name in (
            "relu",
            "relu6",
            "elu",
            "selu",
            "celu",
            "gelu",
            "silu",
            "mish",
            "softplus",
            "hardtanh",
            "hardswish",
        )
    },
    **{name: (getattr(functional, name), []) for name in ("hardsigmoid", "leaky_relu", "logsigmoid", "softsign")},
}


def tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_program_computes_the_function(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    y, *inputs = tensors([SHAPE, *shapes])
    traced = Epilogue(function).traced(2, SHAPE, torch.float32, CPU, inputs)
    operands = [t.reshape((1,) * (4 - t.dim()) + t.shape) for t in traced.operands(*inputs)]
    torch.testing.assert_close(evaluate(parse(traced.program), y, operands), function(y, *inputs))


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (lambda y: torch.cumsum(y, 1), [], "aten.cumsum.default is none"),
        (lambda y: y.mean(), [], "the shape ()"),
        (lambda y: y.transpose(2, 3), [], "the shape (2, 3, 9, 8)"),
        (lambda y: y.half(), [], "torch.float16, and the layer's torch.float32; cast it"),
        (lambda y, row: y + row, [(1, 1, 8, 9)], "expand it"),
        (lambda y: torch.ones(SHAPE), [], "does not depend"),
        (lambda y: (y, y), [], "gives no tensor"),
        (lambda y: functional.dropout(y), [], "none of the language's"),
        (lambda y: y**y, [], "pow takes a constant"),
        (lambda y, other: y + other.double().float().half(), [SHAPE], "torch.float16"),
    ],
)
def test_what_has_no_program_is_named(function: Callable[..., Any], shapes: list[Any], message: str) -> None:
    with pytest.raises(tconv.InvalidProgram, match=re.escape(message)):
        Epilogue(function).traced(2, SHAPE, torch.float32, CPU, tensors(shapes))


@pytest.fixture
def launched(as_gpu: list[Plan], monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that were launched for CPU tensors, as if they lay on a GPU."""
    monkeypatch.setattr(epilogues, "why_apart", partial(epilogues.why_apart, anywhere=True))
    return as_gpu


def layer(dims: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return tensors([(2, 4, *(5, 4, 3)[:dims]), (4, 3, *(3, 2, 2)[:dims]), (3,)], dtype)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_a_call_runs_one_kernel(dims: int, batched: bool, launched: list[Plan]) -> None:
    x, weight, bias = layer(dims)
    x = x if batched else x[0]
    call = getattr(tconv, f"conv_transpose{dims}d")
    plain = getattr(functional, f"conv_transpose{dims}d")(x, weight, bias, 2)
    skip, scale = torch.randn_like(plain), torch.randn((3,) + (1,) * dims)
    epilogue = Epilogue(lambda y, skip, scale: torch.relu(y) * scale + skip)
    for _ in range(2):
        got = call(x, weight, bias, 2, epilogue=epilogue, epilogue_inputs=(skip, scale))
        torch.testing.assert_close(got, torch.relu(plain) * scale + skip)
    assert [plan.problem.layer.epilogue for plan in launched] == ["max(y, 0) * channel0 + output1"] * 2


@pytest.mark.parametrize("of_skip", [torch.contiguous_format, torch.channels_last])
def test_channels_last(of_skip: torch.memory_format, launched: list[Plan]) -> None:
    x, weight, bias = (t.half() for t in tensors([(2, 32, 9, 9), (32, 64, 3, 3), (64,)]))
    plain = functional.conv_transpose2d(x, weight, bias)
    skip = torch.randn_like(plain).contiguous(memory_format=of_skip)
    epilogue = Epilogue(lambda y, skip: y * skip)
    got = tconv.conv_transpose2d(
        x.contiguous(memory_format=torch.channels_last), weight, bias, epilogue=epilogue, epilogue_inputs=(skip,)
    )
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, plain * skip, rtol=2e-2, atol=2e-1)
    assert len(launched) == 1 and launched[0].problem.layer.epilogue == "y * output0"


def test_operands_as_odd_as_callers_have_them(launched: list[Plan]) -> None:
    x, weight, bias = layer(2)
    plain = functional.conv_transpose2d(x, weight, bias)
    skip = torch.randn(plain.shape[::-1]).permute(3, 2, 1, 0)
    one_further = torch.randn(plain.numel() + 1)[1:].view(plain.shape)
    epilogue = Epilogue(lambda y, a, b, c: y * a + b * c)
    scale = torch.randn(6)[::2].view(3, 1, 1)
    got = tconv.conv_transpose2d(x, weight, bias, epilogue=epilogue, epilogue_inputs=(skip, one_further, scale))
    torch.testing.assert_close(got, plain * skip + one_further * scale)
    assert len(launched) == 1


MEAN = torch.tensor([0.1, 0.2, 0.3])
#: Epilogues with the shapes of what they read, and the programs of a backward pass: of gradients; "" where the layer is
#: computed again for PyTorch to differentiate the epilogue; none where the gradient follows from the result.
WITH_GRADIENTS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]], list[str]]] = {
    "residual": (
        lambda y, skip: torch.relu(y + 0.5) + skip,
        [(2, 3, 7, 5)],
        ["where(max(y + 0.5, 0) <= 0, 0, output0)"],
    ),
    "scale": (lambda y, scale: y * scale, [()], ["output1 * scalar0", "output0 * y"]),
    "gate": (
        lambda y, gate, skip: torch.relu(y) * gate.sigmoid() + skip,
        [(2, 3, 1, 1), (2, 3, 7, 5)],
        ["where(max(y, 0) <= 0, 0, output1 * sample0)", "output0 * max(y, 0)"],
    ),
    "of each output": (lambda y, a: y * a, [(2, 3, 7, 5)], ["output1 * output0", "output0 * y"]),
    "prelu": (
        functional.prelu,
        [(3,)],
        ["where(y > 0, output1, output1 * channel0)", "where(y > 0, 0, output0 * y)"],
    ),
    "batch norm": (
        lambda y, scale, shift: functional.batch_norm(y, MEAN.to(y.dtype), MEAN.to(y.dtype) + 1, scale, shift, False),
        [(3,), (3,)],
        ["scaled", "normal"],
    ),
    "negative": (lambda y, a: functional.leaky_relu(a - y, 0.1) * 2, [(3, 1, 1)], ["leaky"]),
    "mish": (lambda y, gate: functional.mish(y * 2 + gate), [(2, 3, 1, 1)], ["exp"]),
    "by the result": (lambda y, a, b: torch.tanh((y + a) / 4 + b), [(3, 1, 1), (2, 3, 7, 5)], []),
    "relu": (lambda y, a: torch.relu(y * -3 + a), [()], []),
    "bias": (lambda y, a: y + 2 * a.sigmoid(), [(3, 1, 1)], []),
    "own gradients": (
        lambda y, a, b: torch.sigmoid(y) * a.exp() + b,
        [(3, 1, 1), (2, 3, 7, 5)],
        ["layer's", "its"],
    ),
    "detached": (lambda y, skip: y.detach() * y + skip, [(2, 3, 7, 5)], ["output0 * y"]),
    "branches": (lambda y, a: torch.where(y > a, y, a), [(3, 1, 1)], ["layer's", "its"]),
    "too large": (lambda y: reduce(lambda y, _: torch.sin(y), range(24), y), [], [""]),
}


#: To these an axis of an unbatched result is another.
BATCHED = ("prelu", "batch norm")


def both(name: str, dtype: torch.dtype = torch.float64, batched: bool = True) -> tuple[Any, ...]:
    """The results of the kernel and of PyTorch, and all that they are computed of."""
    function, shapes, _ = WITH_GRADIENTS[name]
    x, weight, bias, *inputs = (t.requires_grad_() for t in [*layer(2, dtype), *tensors(shapes, dtype)])
    if not batched:
        x = x[0].detach().requires_grad_()
        inputs = [t[0].detach().requires_grad_() if t.dim() == 4 and len(t) == 2 else t for t in inputs]
    got = tconv.conv_transpose2d(x, weight, bias, epilogue=Epilogue(function), epilogue_inputs=inputs)
    plain = functional.conv_transpose2d(x, weight, bias)
    return got, function(plain, *inputs), (x, weight, bias, *inputs)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_are_those_of_the_function(name: str, batched: bool, launched: list[Plan]) -> None:
    if not batched and name in BATCHED:
        pytest.skip("the second axis is that of the channels")
    got, expected, of = both(name, batched=batched)
    assert len(launched) == 1 and launched[0].problem.layer.epilogue, "forward is one kernel"
    torch.testing.assert_close(got, expected)
    for change in (torch.Tensor.sum, lambda y: y.square().mean()):
        found = [torch.autograd.grad(change(y), of, retain_graph=True) for y in (got, expected)]
        torch.testing.assert_close(*found)
    backward, wanted = [plan.problem.layer.epilogue for plan in launched[1:]], WITH_GRADIENTS[name][2]
    assert len(backward) == 2 * len(wanted)
    for program, words in zip(backward, wanted * 2, strict=True):
        assert words == "" or " " not in words or not batched or words in program
        assert program or not words
    assert {plan.kernel.tile for plan in launched} == {launched[0].kernel.tile}, "by the same tile"


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_second_gradients_are_those_of_the_function(name: str, launched: list[Plan]) -> None:
    found = []
    *results, of = both(name)
    for result in results:
        first = torch.autograd.grad(result.square().sum(), of, create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), of))
    torch.testing.assert_close(*found)
    assert launched


@pytest.mark.parametrize("name", ["residual", "by the result", "own gradients"])
def test_gradients_of_some(name: str, launched: list[Plan]) -> None:
    *results, of = both(name)
    for one in range(len(of)):
        found = [torch.autograd.grad(result.exp().sum(), of[one], retain_graph=True) for result in results]
        torch.testing.assert_close(*found)


def test_what_is_summed_is_computed_in_slices_of_the_batch(
    launched: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias, skip, gate, scale, number = (
        t.double().requires_grad_()
        for t in tensors([(5, 4, 5, 4), (4, 3, 3, 2), (3,), (5, 3, 7, 5), (5, 3, 1, 1), (3, 1, 1), ()])
    )
    monkeypatch.setattr(epilogues, "_SUMMED_BYTES", 2 * skip[0].numel() * skip.element_size())
    function, of = lambda y, a, b, c, d: (y + 1) * a * b * c * d, (skip, gate, scale, number)
    got = tconv.conv_transpose2d(x, weight, bias, epilogue=Epilogue(function), epilogue_inputs=of)
    expected = function(functional.conv_transpose2d(x, weight, bias), *of)
    found = [torch.autograd.grad(y.square().sum(), (x, weight, *of)) for y in (got, expected)]
    torch.testing.assert_close(*found)
    batches = [plan.problem.batch for plan in launched]
    assert batches == [5, 5, 5] + 3 * [2, 2, 1], "forward, the layer's and the skip's; the others by two samples"
    assert {plan.kernel.tile for plan in launched} == {launched[0].kernel.tile}


def test_gradients_that_are_the_same_sum_lie_apart(launched: list[Plan]) -> None:
    """An optimizer that changes one in place leaves the others as they are."""
    x, weight, bias, shift = tensors([(2, 4, 5, 4), (4, 3, 3, 2), (3,), (3, 1, 1)])
    of = [bias.requires_grad_(), shift.requires_grad_(), shift.detach().flatten().clone().requires_grad_()]
    result = tconv.conv_transpose2d(
        x,
        weight,
        bias,
        epilogue=Epilogue(lambda y, a, b: functional.mish(y + a + b[:, None, None])),
        epilogue_inputs=of[1:],
    )
    found = torch.autograd.grad(result.square().sum(), of)
    for other in found[1:]:
        torch.testing.assert_close(other.flatten(), found[0])
    assert len({gradient.untyped_storage().data_ptr() for gradient in found}) == 3
    assert len(launched) == 2


def test_sums_of_slices_are_rounded_once(launched: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0, 1 and 2: PyTorch's sums of these are exact, on CPUs that add in 16 bits, too."""
    x, weight, scale = (t.bfloat16() for t in tensors([(64, 4, 5, 4), (4, 3, 3, 2), (3, 1, 1)]))
    x, weight = (t.abs().round().clamp(max=2) for t in (x, weight))
    scale.requires_grad_()
    monkeypatch.setattr(epilogues, "_SUMMED_BYTES", 1)
    result = tconv.conv_transpose2d(x, weight, epilogue=Epilogue(lambda y, s: y * s), epilogue_inputs=(scale,))
    (found,) = torch.autograd.grad(result.sum(), scale)
    exact = functional.conv_transpose2d(x.double(), weight.double()).sum((0, 2, 3)).view(3, 1, 1)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=0)
    assert found.dtype == torch.bfloat16 and len(launched) == 65


@pytest.mark.parametrize("skip_type", [torch.float32, torch.bfloat16])
def test_a_float32_operand_promotes_the_result(launched: list[Plan], skip_type: torch.dtype) -> None:
    """As under autocast, where parameters stay float32. The kernel is then the one for float32."""
    shapes = [(2, 4, 5, 4), (4, 3, 3, 2), (3,), (3, 1, 1), (2, 3, 7, 5)]
    types = [torch.bfloat16] * 3 + [torch.float32, skip_type]
    of = [t.to(dtype).requires_grad_() for t, dtype in zip(tensors(shapes), types, strict=True)]
    function = lambda y, shift, skip: torch.clamp(y + shift, -0.5, 1.0) * skip  # noqa: E731
    exact = [t.detach().double().requires_grad_() for t in of]
    got = tconv.conv_transpose2d(*of[:3], epilogue=Epilogue(function), epilogue_inputs=of[3:])
    sides = [got, function(functional.conv_transpose2d(*of[:3]), *of[3:])]
    sides.append(function(functional.conv_transpose2d(*exact[:3]), *exact[3:]))
    wanted = (of, of, exact)
    found = [[y, *torch.autograd.grad(y.sum() + (y * y).sum() / 2, to)] for y, to in zip(sides, wanted, strict=True)]
    for mine, pytorchs, right in zip(*found, strict=True):
        assert mine.dtype == pytorchs.dtype
        assert (mine - right).abs().max() <= 2 * (pytorchs - right).abs().max() + 1e-5 * right.abs().max()
    assert {plan.problem.layer.dtype for plan in launched} == {"float32"}
    assert len(launched) == 3, "forward, and of the gradients the layer's and the skip's"


def test_what_is_explained_of_a_promoted_result_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = (t.bfloat16() for t in tensors([(2, 4, 5, 4), (4, 3, 3, 2)]))
    asked = {"gpu": tconv.Gpu.h200(), "epilogue": Epilogue(torch.add), "epilogue_inputs": (torch.rand(3, 1, 1),)}
    layer = tconv.explain(x, weight, **asked).problem.layer
    assert (layer.dtype, layer.epilogue) == ("float32", "y + channel0")
    monkeypatch.setattr(epilogues, "allows_tf32", lambda: False)
    found = tconv.explain(x, weight, **asked)
    assert found.problem.layer.dtype == "bfloat16"
    assert "flags forbid TF32" in found.apart


def test_where_tf32_is_forbidden_a_promoted_result_runs_apart(
    launched: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epilogues, "allows_tf32", lambda: False)
    x, weight = (t.bfloat16() for t in tensors([(2, 4, 5, 4), (4, 3, 3, 2)]))
    shift = torch.rand(3, 1, 1)
    got = tconv.conv_transpose2d(x, weight, epilogue=Epilogue(torch.add), epilogue_inputs=(shift,))
    torch.testing.assert_close(got, functional.conv_transpose2d(x, weight) + shift)
    assert not any(plan.problem.layer.epilogue for plan in launched)


def test_gradients_in_channels_last(launched: list[Plan]) -> None:
    x, weight, bias = (t.half().requires_grad_() for t in tensors([(2, 32, 9, 9), (32, 64, 3, 3), (64,)]))
    skip = torch.randn(2, 64, 11, 11).half().requires_grad_()
    last, function = torch.channels_last, lambda y, skip: functional.softplus(y) - skip
    got = tconv.conv_transpose2d(
        x.contiguous(memory_format=last), weight, bias, epilogue=Epilogue(function), epilogue_inputs=(skip,)
    )
    expected = function(functional.conv_transpose2d(x.contiguous(memory_format=last), weight, bias), skip)
    assert got.is_contiguous(memory_format=last)
    for incoming in (torch.randn_like(got), torch.ones(2, 64, 11, 11).half()):
        found = [torch.autograd.grad(y, (x, weight, bias, skip), incoming, retain_graph=True) for y in (got, expected)]
        torch.testing.assert_close(*found, rtol=2e-2, atol=2e-1)
    assert len(launched) == 3


def test_a_number_on_the_cpu_gets_its_gradient_there(launched: list[Plan]) -> None:
    x, weight, bias = layer(2)
    scale = torch.tensor(0.5, requires_grad=True)
    tconv.conv_transpose2d(
        x, weight, bias, epilogue=Epilogue(lambda y, s: y - s), epilogue_inputs=(scale,)
    ).sum().backward()
    assert scale.grad is not None and scale.grad.item() == -2 * 3 * 7 * 5


def test_what_the_function_holds_may_change_between_forward_and_backward(launched: list[Plan]) -> None:
    """Gradients are those of what was computed."""
    held = {"scale": 2.0}
    x, weight, bias = (t.requires_grad_() for t in layer(2))
    gate = torch.randn(3, 1, 1, requires_grad=True)
    epilogue = Epilogue(lambda y, gate: y * held["scale"] * gate)
    got = tconv.conv_transpose2d(x, weight, bias, epilogue=epilogue, epilogue_inputs=(gate,))
    held["scale"] = 9.0
    found = torch.autograd.grad(got.sum(), (x, gate))
    plain = functional.conv_transpose2d(x, weight, bias)
    torch.testing.assert_close(found, torch.autograd.grad((plain * 2 * gate).sum(), (x, gate)))


def test_a_tensor_that_is_written_to_in_between_is_refused(launched: list[Plan]) -> None:
    for name in ("residual", "by the result"):
        got, _, of = both(name)
        with torch.no_grad():
            of[3].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            got.sum().backward()


def test_a_call_plans_and_loads_no_kernel_without_the_epilogue(launched: list[Plan]) -> None:
    x, weight, bias = layer(2)
    before = set(routes._routes)
    for _ in range(2):
        tconv.conv_transpose2d(x, weight, bias, epilogue=Epilogue(torch.sigmoid))
    assert [key[2] for key in set(routes._routes) - before] == ["sigmoid(y)"]


def test_a_number_on_the_cpu_goes_with_any_device_and_other_tensors_do_not() -> None:
    scale, meta = torch.tensor(2.0), torch.device("meta")
    assert Epilogue(lambda y, s: y * s).traced(2, SHAPE, torch.float32, meta, [scale]).program == "y * scalar0"
    with pytest.raises((RuntimeError, tconv.InvalidProgram), match=r"device|is on cpu"):
        Epilogue(lambda y, s: y * s).traced(2, SHAPE, torch.float32, meta, [torch.ones(SHAPE)])


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ([], "got 0 operands; the program reads 1"),
        ([torch.ones(2, 3, 4, 4)], "it takes (2, 3, 7, 5), torch.float32"),
        ([torch.ones(2, 3, 7, 5).double()], "torch.float64; it takes"),
    ],
)
def test_an_operand_of_another_size_is_never_read(
    operands: list[torch.Tensor], message: str, launched: list[Plan]
) -> None:
    x, weight, bias = layer(2)
    with pytest.raises(tconv.InvalidProgram, match=re.escape(message)):
        routes.fused(2, x, weight, bias, (1, 0, 0, 1, 1), "y + output0", operands)
    assert not launched


def test_what_pytorch_refuses_raises_its_error(launched: list[Plan]) -> None:
    x, weight, bias = layer(2)
    for arguments in ((1, 0, 5), ((1, 1, 1),), (1, 90)):
        with pytest.raises(RuntimeError):
            tconv.conv_transpose2d(x, weight, bias, *arguments, epilogue=Epilogue(torch.relu))  # type: ignore[arg-type]


def test_a_tensor_that_the_function_holds_gets_its_gradient(launched: list[Plan]) -> None:
    x, weight, bias = layer(2)
    scale = torch.randn(3, 1, 1, requires_grad=True)
    epilogue = Epilogue(lambda y: y * scale)
    tconv.conv_transpose2d(x, weight, bias, epilogue=epilogue).sum().backward()
    plain = functional.conv_transpose2d(x, weight, bias)
    torch.testing.assert_close(scale.grad, plain.sum((0, 2, 3)).view(3, 1, 1))
    with torch.no_grad():
        torch.testing.assert_close(tconv.conv_transpose2d(x, weight, bias, epilogue=epilogue), plain * scale)
    assert [plan.problem.layer.epilogue for plan in launched] == ["y * channel0", "output0 * y", "y * channel0"]


def test_on_a_cpu_the_function_runs() -> None:
    x, weight, bias = layer(1)
    got = tconv.conv_transpose1d(x, weight, bias, epilogue=Epilogue(torch.cumsum), epilogue_inputs=(1,))  # type: ignore[arg-type]
    torch.testing.assert_close(got, functional.conv_transpose1d(x, weight, bias).cumsum(1))


def test_other_shapes_are_traced_anew(launched: list[Plan]) -> None:
    epilogue = Epilogue(lambda y, other: y + other)
    x, weight, bias = layer(2)
    plain = functional.conv_transpose2d(x, weight, bias)
    for shape in (plain.shape, (*plain.shape[1:2], 1, 1), ()):
        other = torch.randn(shape)
        got = tconv.conv_transpose2d(x, weight, bias, epilogue=epilogue, epilogue_inputs=(other,))
        torch.testing.assert_close(got, plain + other)
    assert [plan.problem.layer.epilogue[4:] for plan in launched] == ["output0", "channel0", "scalar0"]


def test_the_operator() -> None:
    operator = torch.ops.tconv.conv_transpose_epilogue.default
    x, weight, bias = layer(2)
    plain = functional.conv_transpose2d(x, weight, bias)
    arguments = ([1, 1], [0, 0], [0, 0], 1, [1, 1], "max(y, 0) * channel1 + output0")
    operands = [torch.randn_like(plain), torch.randn(1, 3, 1, 1)]
    got = operator(x, weight, bias, *arguments, operands, [], [])
    torch.testing.assert_close(got, torch.relu(plain) * operands[1] + operands[0])
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(operator, (x, weight, bias, *arguments, operands, [], []), test_utils=tests)


def test_explain_shows_the_program_and_what_it_saves() -> None:
    x, weight = torch.empty(8, 64, 32, 32, device="meta"), torch.empty(64, 64, 4, 4, device="meta")
    skip = torch.empty(8, 64, 66, 66, device="meta")
    epilogue = Epilogue(lambda y, skip: torch.relu(y) + skip)
    found = tconv.explain(x, weight, stride=2, epilogue=epilogue, epilogue_inputs=(skip,), gpu=tconv.Gpu.h200())
    assert found.plan is not None and found.plan.problem.layer.epilogue == "max(y, 0) + output0"
    assert found.saved_bytes == 2 * math.prod(skip.shape) * 4
    assert "max(y, 0) + output0, which saves 17.8 MB a call" in str(found)


def test_explain_says_why_a_epilogue_runs_by_itself() -> None:
    x, weight = torch.empty(8, 64, 32, 32, device="meta"), torch.empty(64, 64, 4, 4, device="meta")
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = tconv.explain(x, weight, stride=2, epilogue=Epilogue(torch.relu), gpu=tconv.Gpu.h200())
    assert found.apart == "PyTorch traces the call" and f"runs by itself: {found.apart}" in str(found)
