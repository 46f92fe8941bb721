"""Frozen weights on a GPU: the same bits as without, on any stream, in graphs, in threads, and after every change."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tconv
from tconv import routes
from tconv.jit import loader

pytestmark = pytest.mark.gpu

Layer = tconv.ConvTranspose2d


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Has tensor cores run everything, and lists the memory of each preparation."""
    done: list[torch.Tensor] = []
    decide, prepare = routes.decide, loader.Launcher._prepare

    def listed(*arguments: Any) -> torch.Tensor:
        done.append(prepare(*arguments))
        return done[-1]

    monkeypatch.setattr(routes, "_routes", {})
    monkeypatch.setattr(routes, "decide", lambda *args, **options: decide(*args, family="mma", **options))
    monkeypatch.setattr(loader.Launcher, "_prepare", listed)
    return done


def _layers(dtype: torch.dtype = torch.float32) -> tuple[Layer, Layer, torch.Tensor]:
    """One that is frozen, one that is not, and an input."""
    torch.manual_seed(4)
    plain = Layer(64, 48, 4, stride=2, padding=1, device="cuda", dtype=dtype).requires_grad_(False)
    return tconv.optimize(copy.deepcopy(plain), freeze=True), plain, torch.randn(2, 64, 13, 17, device="cuda").to(dtype)


def _assert_same(frozen: Layer, x: torch.Tensor, got: torch.Tensor | None = None) -> None:
    plain = Layer(64, 48, 4, stride=2, padding=1, device=x.device, dtype=x.dtype).requires_grad_(False)
    plain.load_state_dict(frozen.state_dict())
    assert torch.equal(frozen(x) if got is None else got, plain(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_same_bits(dtype: torch.dtype, memory_format: torch.memory_format, prepared: list[torch.Tensor]) -> None:
    frozen, plain, x = _layers(dtype)
    for layer in (frozen, plain):
        layer.weight.data = torch.stack([layer.weight, -layer.weight], -1)[..., 0]
    x = x.to(memory_format=memory_format)
    expected = [plain(x), plain(x[0])]
    prepared.clear()
    for _ in range(3):
        assert torch.equal(frozen(x), expected[0])
        assert torch.equal(frozen(x[0]), expected[1])
    assert 1 <= len(prepared) <= 2, "once for each kernel"


def _load(layer: Layer) -> None:
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()})


def _replace(layer: Layer) -> None:
    layer.weight = torch.nn.Parameter(layer.weight + 1, False)


def _replace_data_twice(layer: Layer) -> None:
    for _ in range(2):
        layer.weight.data = layer.weight.data + 1


def _train(layer: Layer) -> None:
    layer.requires_grad_(True)
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    layer(torch.randn(2, 64, 13, 17, device="cuda")).square().mean().backward()
    optimizer.step()
    layer.requires_grad_(False)


def _there_and_back(layer: Layer) -> None:
    layer.cpu().weight.mul_(2)
    layer.cuda()


@pytest.mark.parametrize("change", [_load, _replace, _replace_data_twice, _train, _there_and_back])
def test_changes(change: Callable[[Layer], None], prepared: list[torch.Tensor]) -> None:
    frozen, _, x = _layers()
    for _ in range(3):
        before = frozen(x)
        _assert_same(frozen, x)
        change(frozen)
        assert not torch.equal(frozen(x), before)
    _assert_same(frozen, x)
    _assert_same(frozen.half(), x.half())
    twin = copy.deepcopy(frozen)
    twin.weight.mul_(2)
    _assert_same(twin, x.half())
    _assert_same(frozen, x.half())


def test_memory_is_given_back(prepared: list[torch.Tensor]) -> None:
    frozen, _, x = _layers()
    frozen(x)
    (size,) = {memory.nbytes for memory in prepared}
    prepared.clear()
    for end in (tconv.optimize, tconv.restore, Layer.cpu):
        tconv.optimize(frozen.cuda(), freeze=True)(x)
        prepared.clear()
        before = torch.cuda.memory_allocated()
        end(frozen)
        assert before - torch.cuda.memory_allocated() >= size


def test_another_stream_at_once(prepared: list[torch.Tensor]) -> None:
    frozen, plain, x = _layers()
    plain(x)
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(one):
        torch.cuda._sleep(20_000_000)
        frozen.weight.data.mul_(2)  # seen only by what is enqueued behind it, on this stream
        first = frozen(x)
    with torch.cuda.stream(other):
        second = frozen(x)
    torch.cuda.synchronize()
    _assert_same(frozen, x, first)
    _assert_same(frozen, x, second)


def test_threads_on_streams_of_their_own(prepared: list[torch.Tensor]) -> None:
    frozen, plain, x = _layers()
    inputs = [x + n for n in range(12)]
    plain(x)
    torch.cuda.synchronize()
    prepared.clear()
    ready, results = threading.Barrier(12), {}

    def work(n: int) -> None:
        stream = torch.cuda.Stream()
        ready.wait(60)
        with torch.cuda.stream(stream):
            results[n] = frozen(inputs[n])
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(prepared) == 1
    for n, of_input in enumerate(inputs):
        assert torch.equal(results[n], plain(of_input))


def test_a_captured_graph_reads_what_is_kept(prepared: list[torch.Tensor]) -> None:
    frozen, _, x = _layers()
    frozen(x)
    prepared.clear()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = frozen(x)
    assert prepared == []
    for renew in (lambda: None, lambda: _load(frozen), lambda: frozen.to("cuda"), lambda: _train(frozen)):
        renew()
        frozen(x)
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        _assert_same(frozen, x, y)


def test_a_graph_that_nothing_was_kept_for_prepares_itself(prepared: list[torch.Tensor]) -> None:
    frozen, plain, x = _layers()
    plain(x)  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = frozen(x)
    frozen(x)  # keeps what the graph does not use
    frozen.weight.data.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    _assert_same(frozen, x, y)


def test_gradients_of_the_input(prepared: list[torch.Tensor]) -> None:
    frozen, plain, x = _layers()
    x.requires_grad_(True)
    frozen(x)
    prepared.clear()
    (got,) = torch.autograd.grad(frozen(x).square().sum(), x)
    assert prepared == []
    torch.testing.assert_close(got, *torch.autograd.grad(plain(x).square().sum(), x), rtol=1e-2, atol=1e-2)


def test_autocast_and_compilers(prepared: list[torch.Tensor]) -> None:
    frozen, plain, x = _layers()
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.equal(frozen(x), plain(x))
        assert torch.equal(frozen(x), plain(x))
    compiled = torch.compile(frozen, fullgraph=True)
    torch.testing.assert_close(compiled(x), plain(x), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_device(prepared: list[torch.Tensor]) -> None:
    frozen, plain, x = _layers()
    expected = plain(x)
    assert torch.equal(frozen(x), expected)
    frozen.to("cuda:1")
    for _ in range(2):
        got = frozen(x.to("cuda:1"))
        assert torch.cuda.current_device() == 0 and got.device.index == 1
        assert torch.equal(got.to("cuda:0"), expected)
