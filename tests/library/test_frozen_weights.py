"""Frozen weights are prepared once, and results follow every change of them that can be seen. Without a GPU."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import tconv
from tconv import problem, routes
from tconv.planner import MMA, Gpu
from tconv.weights import layout_of

Layer = tconv.ConvTranspose2d
X = torch.randn(1, 32, 8, 8)


@pytest.fixture
def as_mma(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As `as_cuda`, on tensor cores: kernels that want weights in an order of their own."""
    decide = routes.decide
    monkeypatch.setattr(routes, "decide", lambda *args, **options: decide(*args, family="mma", **options))
    return as_cuda


def _layer(*, freeze: bool = True, dtype: torch.dtype = torch.float32) -> Layer:
    torch.manual_seed(2)
    return tconv.optimize(Layer(32, 32, 3, stride=2, dtype=dtype).requires_grad_(False), freeze=freeze)


def _assert_right(layer: Layer, x: torch.Tensor = X) -> None:
    x = x.to(layer.weight.dtype)
    expected = functional.conv_transpose2d(x, layer.weight, layer.bias, 2)
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-3)


def _kept(layer: Layer) -> list[torch.Tensor]:
    assert layer.frozen is not None
    return list(layer.frozen._memory.values())


@pytest.mark.parametrize("freeze", [True, False])
def test_frozen_weights_are_prepared_once(freeze: bool, as_mma: Any) -> None:
    layer = _layer(freeze=freeze)
    for x in (X, X, torch.cat([X, X]), X[0], X, torch.cat([X, X])):
        _assert_right(layer, x)
    kernels = {plan.kernel for plan in as_mma}
    assert len(as_mma) == 6 and len(kernels) <= 2
    assert len(as_mma.prepared) == (len(kernels) if freeze else 6)


def test_what_is_written_in_place_shows_when_it_is_frozen_again_or_thawed(as_mma: Any) -> None:
    layer = _layer()
    before = layer(X)
    layer.weight.data.mul_(2)
    assert torch.equal(layer(X), before), "the promise is what saves the preparation"
    tconv.optimize(layer, freeze=True)
    _assert_right(layer)
    layer.weight.data.mul_(2)
    tconv.optimize(layer)
    assert layer.frozen is None
    _assert_right(layer)
    assert "frozen" not in vars(layer)


def _load(layer: Layer, assign: bool = False) -> None:
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()}, assign=assign)


def _load_as_a_part(layer: Layer) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(layer))
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def _replace(layer: Layer) -> None:
    layer.weight = torch.nn.Parameter(layer.weight + 1, False)


def _replace_data(layer: Layer) -> None:
    layer.weight.data = layer.weight.data + 1


def _transpose_data(layer: Layer) -> None:
    """The same memory, and other strides."""
    layer.weight.data = layer.weight.data.transpose(0, 1)


def _move_and_write(layer: Layer) -> None:
    layer.to(memory_format=torch.channels_last)
    layer.weight.data.mul_(2)


def _change_type(layer: Layer) -> None:
    layer.half()


def _train(layer: Layer) -> None:
    layer.requires_grad_(True)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    layer(X).square().mean().backward()
    optimizer.step()
    layer.requires_grad_(False)


SEEN = [
    _load,
    lambda layer: _load(layer, assign=True),
    _load_as_a_part,
    _replace,
    _replace_data,
    _transpose_data,
    _move_and_write,
    _change_type,
    _train,
]


@pytest.mark.parametrize("change", SEEN, ids=lambda change: change.__name__.strip("_<>"))
def test_changes_that_are_seen(change: Callable[[Layer], None], as_mma: Any) -> None:
    layer = _layer()
    for _ in range(2):
        _assert_right(layer)
        change(layer)
        if layer.bias is not None:
            layer.bias.requires_grad_(False)
    _assert_right(layer)
    prepared = len(as_mma.prepared)
    _assert_right(layer)
    assert len(as_mma.prepared) == prepared, "it is frozen still"


def test_weights_that_come_to_lie_where_others_lay(as_mma: Any) -> None:
    layer = _layer()
    _assert_right(layer)
    address = layer.weight.data_ptr()
    layer.weight.data = layer.weight.data + 1
    others = [torch.empty_like(layer.weight) for _ in range(32)]
    assert address not in [other.data_ptr() for other in others], "it is held while a copy is known by it"
    for _ in range(8):
        for _ in range(2):
            layer.weight.data = torch.randn_like(layer.weight)
        _assert_right(layer)


@pytest.mark.parametrize("gradient_of", ["input", "bias", "weight"])
def test_gradients(gradient_of: str, as_mma: Any) -> None:
    layer = _layer()
    x = X.clone()
    tensors = {"input": x, "bias": layer.bias, "weight": layer.weight}
    _assert_right(layer)
    tensors[gradient_of].requires_grad_(True)
    (got,) = torch.autograd.grad(layer(x).square().sum(), tensors[gradient_of])
    expected = functional.conv_transpose2d(x, layer.weight, layer.bias, 2).square().sum()
    torch.testing.assert_close(got, *torch.autograd.grad(expected, tensors[gradient_of]), rtol=1e-3, atol=1e-2)
    assert len(as_mma.prepared) == (2 if gradient_of == "weight" else 1)
    with torch.no_grad():
        _assert_right(layer)


def test_weights_that_are_computed_are_not_kept(as_mma: Any) -> None:
    normed = torch.nn.utils.parametrizations.weight_norm(_layer())
    for _ in range(2):
        _assert_right(normed, X)
        normed.parametrizations.weight.original0.data.mul_(2)
    assert _kept(normed) == []
    normed.parametrizations.weight.original0.requires_grad_()  # torch makes a parameter of what is trained
    torch.nn.utils.parametrize.remove_parametrizations(normed, "weight")  # from now on they stay
    with torch.no_grad():
        _assert_right(normed, X)
    assert len(_kept(normed)) == 1
    layer = _layer()
    given = {"weight": torch.randn_like(layer.weight), "bias": layer.bias}
    expected = functional.conv_transpose2d(X, given["weight"], layer.bias, 2)
    torch.testing.assert_close(torch.func.functional_call(layer, given, X), expected, rtol=1e-3, atol=1e-3)
    assert _kept(layer) == []


def _saved(layer: Layer) -> Layer:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), _saved])
def test_twins_are_frozen_and_prepare_for_themselves(twin_of: Callable[[Layer], Layer], as_mma: Any) -> None:
    layer = _layer()
    plain = _layer(freeze=False)
    _assert_right(layer)
    assert layer.state_dict().keys() == plain.state_dict().keys()
    with_weights = len(pickle.dumps(plain)) + 300
    assert len(pickle.dumps(layer)) < with_weights
    twin = twin_of(layer)
    assert twin.frozen is not None and twin.frozen is not layer.frozen and _kept(twin) == []
    twin.weight.data.add_(1)
    for _ in range(2):
        _assert_right(twin)
        _assert_right(layer)
    assert len(as_mma.prepared) == 2


def test_a_capture_uses_what_is_kept_and_keeps_nothing(as_mma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, loads = _layer(), _layer(freeze=False)
    loads(X)
    for kept in (0, 1):
        with monkeypatch.context() as patched:
            patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            before = len(as_mma.prepared)
            _assert_right(layer)
            assert len(as_mma.prepared) == before + (0 if kept else 1) and len(_kept(layer)) == kept
        _assert_right(layer)


def test_copies_are_made_while_nobody_reads_them(as_mma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the same memory, as captured graphs may read it."""
    layer, steps = _layer(), []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: steps.append(len(as_mma.prepared)))
    _assert_right(layer)
    assert steps == [1], "waits behind the preparation"
    (memory,) = _kept(layer)
    for change in (_load, _replace, _replace_data, _train, lambda layer: layer.to(X.device)):
        change(layer)
        steps.clear()
        _assert_right(layer)
        assert steps == [len(as_mma.prepared) - 1, len(as_mma.prepared)], "before and behind"
        assert _kept(layer)[0] is memory
    for end in (Layer.half, tconv.optimize, tconv.restore):
        steps.clear()
        end(layer)
        assert len(steps) == 1, "before the memory is given back"
        assert layer.__dict__.get("frozen") is None or _kept(layer) == []
        tconv.optimize(layer, freeze=True)
        _assert_right(layer)


def test_threads_prepare_once(as_mma: Any) -> None:
    layer, ready, results = _layer(), threading.Barrier(8), {}
    inputs = [torch.randn(1, 32, 8, 8) for _ in range(8)]

    def work(n: int) -> None:
        ready.wait(60)
        with torch.no_grad():
            results[n] = layer(inputs[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, x in enumerate(inputs):
        expected = functional.conv_transpose2d(x, layer.weight, layer.bias, 2)
        torch.testing.assert_close(results[n], expected, rtol=1e-3, atol=1e-3)
    assert len(as_mma) == 8 and len(as_mma.prepared) == 1


def test_a_preparation_that_failed_is_made_again(as_mma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = _layer()
    _assert_right(layer)
    _load(layer)

    def interrupted(device: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "synchronize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            layer(X)
    _assert_right(layer)


def test_autocast_and_other_types_have_copies_of_their_own(as_mma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = _layer()
    for lowered in (False, True) * 2:
        with monkeypatch.context() as patched:
            if lowered:
                patched.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
                patched.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
            # Tensors of the CPU, for which PyTorch must be in the mode as well.
            torch.set_autocast_enabled("cpu", lowered)
            got = layer(X)
            torch.set_autocast_enabled("cpu", False)
        assert got.dtype == (torch.bfloat16 if lowered else torch.float32)
        expected = functional.conv_transpose2d(X, layer.weight, layer.bias, 2)
        torch.testing.assert_close(got.float(), expected, rtol=2e-2, atol=2e-2)
    assert len(as_mma.prepared) == len(_kept(layer)) == 2


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_weights_in_any_layout(memory_format: torch.memory_format, as_mma: Any) -> None:
    layer = _layer()
    layer.weight.data = torch.stack([layer.weight, -layer.weight], -1)[..., 0]
    for x in (X, X.to(memory_format=torch.channels_last)):
        layer.weight.data = layer.weight.data.to(memory_format=memory_format)
        _assert_right(layer, x)
        _assert_right(layer, x)
    assert len(as_mma) == 4


def test_how_weights_lay_before_makes_no_difference_to_prepared_ones() -> None:
    layer = problem.Layer(2, 64, 32, (1, 4, 4), (1, 2, 2), precision="fp16")
    layers = (layer, layer.in_channels_last())
    plan, of_last = (MMA.plan(problem.Problem(each, 2, (1, 8, 8)), Gpu.h200()) for each in layers)
    assert of_last.kernel.layer.weights_last and replace(of_last.kernel, layer=plan.kernel.layer) == plan.kernel
    assert layout_of(plan) == layout_of(of_last) != ""


def test_kernels_that_take_weights_as_they_are(as_cuda: Any) -> None:
    layer = tconv.optimize(Layer(64, 64, 3, stride=2, groups=64).requires_grad_(False), freeze=True)
    x = torch.randn(2, 64, 9, 9)
    for _ in range(2):
        torch.testing.assert_close(layer(x), functional.conv_transpose2d(x, layer.weight, layer.bias, 2, groups=64))
        layer.weight.data.mul_(2)
    assert as_cuda[-1].kernel.family == "direct" and _kept(layer) == []


def test_compilers_see_the_ordinary_call() -> None:
    layer, plain = _layer(), _layer(freeze=False)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X), plain(X))
    with FakeTensorMode():
        x = torch.randn(X.shape, device="cuda")
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(torch.randn(parameter.shape, device="cuda"), False))
        exported = torch.export.export(layer, (x,))
    (node,) = (node for node in exported.graph.nodes if node.op == "call_function")
    assert node.target == torch.ops.tconv.conv_transpose.default and _kept(layer) == []


def test_on_a_cpu_nothing_is_kept() -> None:
    layer = _layer()
    _assert_right(layer)
    assert _kept(layer) == []
    tconv.restore(layer.double())


def test_explain() -> None:
    frozen, plain = _layer(), _layer(freeze=False)
    explained = tconv.explain(frozen, X, gpu=Gpu.h200(), family="mma")
    assert explained.frozen and "frozen: prepared once" in str(explained)
    for other in (
        tconv.explain(plain, X, gpu=Gpu.h200(), family="mma"),
        tconv.explain(frozen, X, gpu=Gpu.h200(), family="direct"),
        tconv.explain(frozen, X),
        tconv.explain(torch.nn.utils.parametrizations.weight_norm(frozen), X, gpu=Gpu.h200(), family="mma"),
    ):
        assert not other.frozen and "frozen" not in str(other)
