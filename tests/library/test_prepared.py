"""Weights that Inductor freezes are prepared while a model is compiled, and results stay right. Without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.fx_passes import freezing_patterns
from torch.fx import Graph, Node

from tconv import compiler, ops, routes
from tconv.jit import loader

#: Each compiles by Inductor, without its caches.
pytestmark = pytest.mark.rotates(22)

CALL = ([2, 2], [0, 0], [0, 0], 1, [1, 1])
FREEZING = {"freezing": True}


class Calls(list[tuple[Any, ...]]):
    """The arguments of the calls that graphs make with prepared weights, constants as they are there."""

    def __init__(self) -> None:
        self.others: list[Any] = []

    def note(self, graph: Graph) -> None:
        def value(argument: Any) -> Any:
            if isinstance(argument, (list, tuple)):
                return list(map(value, argument))
            is_constant = isinstance(argument, Node) and argument.op == "get_attr"
            return getattr(graph.owning_module, str(argument.target)) if is_constant else argument

        for node in graph.nodes:
            if node.target is ops.LAYER_WITH_EPILOGUE and node.args[10]:
                self.append(tuple(map(value, node.args)))
            elif node.target in (ops.LAYER, ops.LAYER_WITH_EPILOGUE):
                self.others.append(node.target)


@pytest.fixture
def insist(monkeypatch: pytest.MonkeyPatch, as_gpu: Any) -> Callable[..., None]:
    """Has all calls decided with these options."""
    decide, decide_call = compiler.decide, routes.decide

    def insist(**options: Any) -> None:
        monkeypatch.setattr(compiler, "decide", lambda *a, **k: decide(*a, **k, **options))
        monkeypatch.setattr(routes, "decide", lambda *a, **k: decide_call(*a, **k, **options))

    insist(family="mma")  # kernels that want weights in an order of their own
    return insist


@pytest.fixture
def calls(insist: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """CPU tensors are taken for a GPU's."""
    found = Calls()
    of_pass = compiler.FuseEpilogues.__call__

    def note(self: compiler.FuseEpilogues, graph: Graph) -> None:
        of_pass(self, graph)
        found.note(graph)

    monkeypatch.setattr(compiler.FuseEpilogues, "__call__", note)
    monkeypatch.setattr(compiler, "_is_ours", lambda value: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
        yield found
    torch._dynamo.reset()


class Up(nn.Module):
    """A layer, and a ReLU behind it if there is an epilogue."""

    def __init__(self, epilogue: bool = True) -> None:
        super().__init__()
        self.up, self.epilogue = nn.ConvTranspose2d(32, 16, 3, 2), epilogue
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(x)) if self.epilogue else self.up(x)


X = torch.randn(2, 32, 8, 8, generator=torch.Generator().manual_seed(1))


def compare(model: nn.Module, *inputs: torch.Tensor, freezing: bool = True, **options: Any) -> None:
    compiled = torch.compile(model, backend="tconv", **options)
    with torch._inductor.config.patch(FREEZING if freezing else {}):
        for _ in range(2):
            torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


def run_as_cuda(call: tuple[Any, ...], model: nn.Module) -> None:
    """What a GPU would run, beside what the model does."""
    got = ops._cuda_epilogue(X, *call[1:])
    expected = model(X)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("epilogue", [False, True])
def test_frozen_weights_are_a_constant_of_the_graph(epilogue: bool, calls: Calls, as_gpu: Any) -> None:
    model = Up(epilogue)
    compare(model, X)
    (call,) = calls
    assert calls.others == [] and len(as_gpu.prepared) == 1
    assert call[8] == ("max(y, 0)" if epilogue else "")
    for _ in range(2):
        run_as_cuda(call, model)
    assert len(as_gpu) == 2 and len(as_gpu.prepared) == 1, "they were prepared once"


def test_each_layer_has_its_own(calls: Calls, as_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    freezing_patterns.lazy_init()
    monkeypatch.setattr(freezing_patterns, "pass_patterns", [])  # those for CPUs put oneDNN's convolution for PyTorch's
    one, other = Up(), Up()
    compare(nn.Sequential(one, nn.Conv2d(16, 32, 10), nn.ReLU(), other), X)
    # Inductor may make what leads to its own convolution channels_last; what comes from there is.
    assert [len(set(call[11])) for call in calls] == [2, 1]
    assert len(as_gpu.prepared) == 3
    assert not torch.equal(calls[0][10][0], calls[1][10][0])
    for call, model in zip(calls, (one, other), strict=True):
        run_as_cuda(call, model)


def test_scalings_are_not_folded_along_the_wrong_axis(calls: Calls, as_gpu: Any) -> None:
    """As Inductor does in transposed convolutions with as many outputs as inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(32, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU()).eval()
    for values in (model[1].weight, model[1].bias, model[1].running_mean):
        nn.init.normal_(values)  # type: ignore[arg-type]
    compare(model, X)
    assert len(calls) == 1 and calls[0][8].startswith("max(") and len(calls[0][9]) == 4


def test_the_users_own_pass_runs_too(calls: Calls) -> None:
    graphs: list[Graph] = []
    compare(Up(), X, options={"joint_custom_pre_pass": graphs.append})
    assert len(graphs) == len(calls) == 1


def test_weights_in_another_layout(calls: Calls, as_gpu: Any) -> None:
    model = Up()
    model.up.weight.data = model.up.weight.data.transpose(0, 1).contiguous().transpose(0, 1)
    compare(model, X)
    run_as_cuda(calls[0], model)
    assert len(as_gpu.prepared) == 1


@pytest.mark.parametrize("epilogue", [False, True])
def test_another_kernel_than_the_one_that_they_were_prepared_for(
    epilogue: bool, calls: Calls, as_gpu: Any, insist: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Up(epilogue)
    compare(model, X)
    before = torch.backends.cudnn.allow_tf32
    for allowed, prepared in ((not before, 2), (before, 2), (not before, 3)):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        run_as_cuda(calls[0], model)
        assert len(as_gpu.prepared) == prepared, "another kernel prepares its weights for each call"
    routes._routes.clear()
    insist(family="direct")
    run_as_cuda(calls[0], model)
    assert len(as_gpu.prepared) == 3 and as_gpu[-1].kernel.family == "direct"
    monkeypatch.setattr(routes, "find_route", lambda *call: None)
    run_as_cuda(calls[0], model)
    assert len(as_gpu) == 4


def test_without_freezing_nothing_is_kept(calls: Calls, as_gpu: Any) -> None:
    compare(Up(), X, freezing=False)
    assert calls == [] and calls.others == [ops.LAYER_WITH_EPILOGUE] and as_gpu.prepared == []


def test_kernels_that_take_weights_as_they_are(calls: Calls, as_gpu: Any, insist: Callable[..., None]) -> None:
    insist(family="direct")
    compare(Up(), X)
    assert calls == [] and calls.others == [ops.LAYER_WITH_EPILOGUE] and as_gpu.prepared == []


def test_weights_that_are_given_with_each_call(calls: Calls, as_gpu: Any) -> None:
    class Given(nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.relu(nn.functional.conv_transpose2d(x, weight, None, 2))

    compare(Given(), X, torch.randn(32, 16, 3, 3))
    assert calls == [] and calls.others == [ops.LAYER_WITH_EPILOGUE] and as_gpu.prepared == []


def test_sizes_that_are_not_known(calls: Calls, as_gpu: Any) -> None:
    compare(Up(), X, dynamic=True)
    assert calls == [] and calls.others == [ops.LAYER_WITH_EPILOGUE] and as_gpu.prepared == []


def test_too_little_memory(calls: Calls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(loader.Launcher, "prepare", fails)
    with caplog.at_level(logging.INFO, "tconv"):
        compare(Up(), X)
    assert calls == [] and calls.others == [ops.LAYER_WITH_EPILOGUE] and "no memory to keep it prepared" in caplog.text


def test_a_model_gets_nothing_of_another_from_inductors_cache(
    calls: Calls, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes two graphs for the same where only the values of frozen weights differ."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._inductor.config.patch(force_disable_caches=False, fx_graph_cache=True):
        for _ in range(2):
            torch._dynamo.reset()
            compare(Up(), X)
    assert len(calls) == 2
    assert compiler.FuseEpilogues().uuid()
    with torch._inductor.config.patch(FREEZING):
        assert compiler.FuseEpilogues().uuid() is None


def test_freezing_among_the_options_is_too_late(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    compare(Up(), X, freezing=False, options=FREEZING)
    assert calls == [] and "freezing among the options comes too late" in caplog.text


@pytest.mark.parametrize("epilogue", ["", "max(y, 0) * channel1 + output0"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_operator(epilogue: str, memory_format: torch.memory_format) -> None:
    x, weight, bias = X.to(memory_format=memory_format), torch.randn(32, 16, 3, 3), torch.randn(16)
    plain = nn.functional.conv_transpose2d(x, weight, bias, 2)
    operands = [torch.randn_like(plain), torch.randn(1, 16, 1, 1)] if epilogue else []
    call = (x, weight, bias, *CALL, epilogue, operands, [torch.zeros(64, dtype=torch.uint8)], ["of no kernel"])
    got = ops.LAYER_WITH_EPILOGUE(*call)
    torch.testing.assert_close(got, torch.relu(plain) * operands[1] + operands[0] if epilogue else plain)
    assert got.stride() == plain.stride()
    torch.library.opcheck(ops.LAYER_WITH_EPILOGUE, call, test_utils=("test_schema", "test_faketensor"))
