"""Gradients, the operator that compilers see, and transforms. All without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import tconv
from tconv import dispatch, ops, routes
from tconv.planner import Plan

OPERATOR = torch.ops.tconv.conv_transpose.default
#: stride, padding, output_padding, groups, dilation
CALLS: dict[int, tuple[Any, ...]] = {
    1: ([2], [1], [1], 1, [1]),
    2: ([2, 3], [1, 0], [1, 2], 2, [1, 2]),
    3: ([1, 2, 1], [0, 1, 0], [0, 1, 0], 2, [1, 1, 2]),
}


def _tensors(dims: int, groups: int, dtype: torch.dtype = torch.float64, gradient: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(dims)
    shapes = ((2, 4, *(3, 4, 2)[:dims]), (4, 4 // groups, *(2, 3, 2)[:dims]), (4,))
    return [torch.randn(shape, dtype=dtype, requires_grad=gradient) for shape in shapes]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("gradient", [True, False])
def test_opcheck(dims: int, gradient: bool) -> None:
    arguments = CALLS[dims]
    torch.library.opcheck(OPERATOR, (*_tensors(dims, arguments[3], gradient=gradient), *arguments))
    x, weight, _ = _tensors(dims, arguments[3], torch.float32, gradient)
    torch.library.opcheck(OPERATOR, (x, weight, None, *arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("of_weight", [True, False])
def test_opcheck_channels_last(dtype: torch.dtype, of_weight: bool) -> None:
    x, weight, bias = _tensors(2, 2, dtype, gradient=False)
    x = x.to(memory_format=torch.channels_last) if not of_weight else x
    weight = weight.to(memory_format=torch.channels_last) if of_weight else weight
    torch.library.opcheck(OPERATOR, (x, weight, bias, *CALLS[2]))


def test_the_operator_computes() -> None:
    for dims, arguments in CALLS.items():
        tensors = _tensors(dims, arguments[3])
        expected = ops._NATIVE[dims](*tensors, *arguments)
        torch.testing.assert_close(OPERATOR(*tensors, *arguments), expected)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_of_the_operator(dims: int) -> None:
    arguments = CALLS[dims]

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return OPERATOR(*tensors, *arguments)

    tensors = _tensors(dims, arguments[3])
    assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


def _run(dims: int, tensors: list[torch.Tensor], arguments: tuple[Any, ...]) -> torch.Tensor:
    route = routes.find_route(dims, *tensors, arguments)
    assert route is not None
    return routes.run(route, *tensors)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_eager_path(dims: int, as_gpu: list[Plan]) -> None:
    arguments = CALLS[dims]
    tensors = _tensors(dims, arguments[3], gradient=False)
    expected = ops._NATIVE[dims](*tensors, *arguments)
    for _ in range(3):
        torch.testing.assert_close(_run(dims, tensors, arguments), expected)
    assert len(as_gpu) == 3
    assert len(routes._routes) == 1
    shifted = [torch.stack([tensor, tensor], -1)[..., 1] for tensor in tensors]
    assert not any(tensor.is_contiguous() for tensor in shifted)
    torch.testing.assert_close(_run(dims, shifted, arguments), expected)
    assert len(routes._routes) == 2


def test_a_call_on_another_device_than_the_current_one(as_gpu: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory and its launch are on the tensors' device, which is -1 here."""
    tensors = _tensors(2, 2, gradient=False)
    current, used, empty = [1], [], routes.empty

    @contextmanager
    def device(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0])
    monkeypatch.setattr(routes, "empty", lambda *kind: used.append(current[0]) or empty(*kind))
    torch.testing.assert_close(_run(2, tensors, CALLS[2]), ops._NATIVE[2](*tensors, *CALLS[2]))
    assert (used, current) == ([-1], [1])


def test_the_first_call_says_how_long_it_took(as_gpu: list[Plan], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tconv")
    tensors = _tensors(2, 2, torch.float32, gradient=False)
    for _ in range(3):
        _run(2, tensors, CALLS[2])
    said = [message for message in caplog.messages if message.startswith("first call of 2-D 4→4 k(2,3) s(2,3)")]
    assert len(said) == 1 and re.search(r" on 2x4x3x4: planned in 0\.\d{3} s, kernel .* loaded in \d+\.\d\d s", said[0])


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_of_the_eager_path(dims: int, as_gpu: list[Plan]) -> None:
    arguments = CALLS[dims]
    tensors = _tensors(dims, arguments[3])

    def call(*given: torch.Tensor) -> torch.Tensor:
        return _run(dims, list(given), arguments)

    assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)
    tensors[1].requires_grad_(False)
    call(*tensors).sum().backward()
    assert tensors[1].grad is None
    expected = torch.autograd.grad(ops._NATIVE[dims](*tensors, *arguments).sum(), [tensors[0], tensors[2]])
    torch.testing.assert_close([tensors[0].grad, tensors[2].grad], list(expected))
    with torch.no_grad():
        assert call(*tensors).grad_fn is None
    assert as_gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dims", [2, 3])
def test_the_memory_format_is_torchs(dims: int, dtype: torch.dtype, as_gpu: list[Plan]) -> None:
    arguments = CALLS[dims]
    tensors = _tensors(dims, arguments[3], dtype, gradient=False)
    channels_last = torch.channels_last if dims == 2 else torch.channels_last_3d
    tensors[0] = tensors[0].to(memory_format=channels_last)
    got = _run(dims, tensors, arguments)
    assert got.is_contiguous(memory_format=torch.contiguous_format if dtype == torch.float64 else channels_last)
    torch.testing.assert_close(got, ops._NATIVE[dims](*tensors, *arguments))


def test_the_memory_of_routes_is_bounded(as_gpu: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_MOST_ROUTES", 4)
    weight = torch.randn(2, 2, 4)
    for length in range(1, 20):
        x = torch.randn(1, 2, length)
        torch.testing.assert_close(
            _run(1, [x, weight, None], (2, 1, 0, 1, 1)), functional.conv_transpose1d(x, weight, None, 2, 1)
        )
        assert len(routes._routes) <= 4


def test_layers_that_are_gone_do_not_fill_the_memory(as_gpu: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are kept by the parameters of a layer, too; here all have the same metadata."""
    monkeypatch.setattr(routes, "_MOST_ROUTES", 4)
    x, weights = torch.randn(1, 2, 9), [torch.nn.Parameter(torch.randn(2, 2, 4)) for _ in range(20)]
    for weight in weights:
        assert routes.find_route(1, x, weight, None, (2, 1, 0, 1, 1)) is not None
        assert len(routes._routes) <= 4


def test_what_torch_refuses_has_no_route(as_gpu: list[Plan]) -> None:
    x, weight = torch.randn(1, 2, 3), torch.randn(2, 2, 4)
    assert routes.find_route(1, x, weight, None, (1, (0,), 0, 1, [1])) is not None
    odd = [(0, 0, 0, 1, 1), ("two", 0, 0, 1, 1), (1, 0, 1, 1, 1), (1, 0, 0, 1.5, 1)]
    equal_to_the_ordinary_one = [(True, (0,), 0, 1, [1]), (1, (0.0,), 0, 1, [1]), (1, (0,), 0, 1.0, [1])]
    for arguments in odd + equal_to_the_ordinary_one:
        assert routes.find_route(1, x, weight, None, arguments) is None
    assert routes.find_route(1, x, weight, None, (1, (0,), 0, 1, [1])) is not None
    assert routes.find_route(1, x, None, None, (1, 0, 0, 1, 1)) is None
    assert routes.find_route(1, x.to_sparse(), weight, None, (1, 0, 0, 1, 1)) is None


def test_autocast_casts_all_but_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        x, weight, bias = (torch.randn(shape, device="cuda") for shape in ((1, 2, 3), (2, 2, 4), (2,)))
        assert ops.autocast(x, weight, bias) == (x, weight, bias)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
        assert [t.dtype for t in ops.autocast(x, weight, bias) if t is not None] == [torch.bfloat16] * 3
        assert ops.autocast(x.double(), weight, bias)[0].dtype == torch.float64


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = tconv.ConvTranspose2d(4, 6, 3, stride=2)
        self.second = tconv.ConvTranspose2d(6, 2, (2, 3), stride=(1, 2), groups=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def test_compile_in_one_graph_without_recompiling() -> None:
    model = _Layers()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 4, 5, 6, requires_grad=True)
    torch.testing.assert_close(compiled(x), model(x))
    (gradient,) = torch.autograd.grad(compiled(x).square().sum(), x)
    torch.testing.assert_close(gradient, *torch.autograd.grad(model(x).square().sum(), x))
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(torch.randn(2, 4, 5, 6, requires_grad=True))


def _pretend_cuda(model: torch.nn.Module) -> torch.nn.Module:
    """Without gradients: autograd would ask the absent GPU."""
    for module in model.children():
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, torch.nn.Parameter(torch.randn(parameter.shape, device="cuda"), False))
    return model


def test_a_compiler_sees_one_node_a_layer_on_a_gpu() -> None:
    with FakeTensorMode():
        x = torch.randn(2, 4, 5, 6, device="cuda").to(memory_format=torch.channels_last)
        exported = torch.export.export(_pretend_cuda(_Layers()), (x,))
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    assert [node.target for node in nodes] == [OPERATOR, torch.ops.aten.relu.default, OPERATOR]
    result = nodes[-1].meta["val"]
    assert result.shape == (2, 2, 12, 27)
    assert result.device.type == "cuda" and result.is_contiguous(memory_format=torch.channels_last)


def test_dynamic_batch_is_not_specialised() -> None:
    sizes = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    with FakeTensorMode():
        x = torch.randn(2, 4, 5, 6, device="cuda")
        exported = torch.export.export(_pretend_cuda(_Layers()), (x,), dynamic_shapes=sizes)
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    assert isinstance(output.args[0][0].meta["val"].shape[0], torch.SymInt)


def test_vmap_and_jvp() -> None:
    x, weight, bias = _tensors(2, 1, gradient=False)
    stacked = torch.stack([x, 2 * x])
    got = torch.func.vmap(lambda t: tconv.conv_transpose2d(t, weight, bias, 2))(stacked)
    torch.testing.assert_close(got[1], functional.conv_transpose2d(2 * x, weight, bias, 2))
    primal, tangent = torch.func.jvp(lambda t: tconv.conv_transpose2d(t, weight, bias, 2), (x,), (x,))
    torch.testing.assert_close(primal - tangent, bias.view(1, -1, 1, 1).expand_as(primal))


def test_modes_that_pass() -> None:
    assert dispatch.passing_mode() is None
    with torch.autograd.forward_ad.dual_level():
        assert "forward-mode" in str(dispatch.passing_mode())
    seen = []
    torch.func.vmap(lambda x: seen.append(dispatch.passing_mode()) or x)(torch.zeros(2))
    torch.jit.trace(lambda x: seen.append(dispatch.passing_mode()) or x + 1, torch.zeros(2), check_trace=False)
    assert "functorch" in str(seen[0]) and "torch.jit" in str(seen[1])


ANOTHER_IMPORT = """
import importlib, os, sys
import torch
import tconv
from tconv import ops, routes

first, x, weight = tconv, torch.randn(2, 4, 5, 5), torch.randn(4, 3, 4, 4)
compiled = torch.compile(lambda x: first.conv_transpose2d(x, weight, stride=2), backend="aot_eager", fullgraph=True)

def holds():
    torch.compiler.reset()
    expected = torch.nn.functional.conv_transpose2d(x, weight, stride=2)
    called = ops.LAYER(x, weight, None, [2, 2], [0, 0], [0, 0], 1, [1, 1])
    return torch.allclose(compiled(x), expected, atol=1e-5) and torch.allclose(called, expected, atol=1e-5)

assert holds()
def imported_again():
    for name in [name for name in sys.modules if name.partition(".")[0] == "tconv"]:
        del sys.modules[name]
    importlib.import_module("tconv.ops")

for again in (lambda: importlib.reload(ops), imported_again):
    try:
        again()
    except RuntimeError as error:
        assert "register the namespace tconv" in str(error), error
    else:
        raise AssertionError("a second definition took the operator's place")
    assert holds()
child = os.fork()
if not child:
    os._exit(0 if holds() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_the_operator_outlives_a_second_import_and_a_fork() -> None:
    """A second definition is refused while the first is there: nobody holds one that was destroyed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a forked process has none of OpenMP's threads
    done = subprocess.run([sys.executable, "-c", ANOTHER_IMPORT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
