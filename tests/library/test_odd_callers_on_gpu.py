"""Odd callers on a GPU: layouts, empty tensors, streams, devices, threads, forks, interrupts."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tconv
from tconv import ops, routes
from tconv.jit import loader

pytestmark = pytest.mark.gpu

Odd = Callable[[torch.Tensor], torch.Tensor]
_two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def _tensors(dims: int, device: str = "cuda") -> list[torch.Tensor]:
    torch.manual_seed(dims)
    shapes = ((3, 8, *(7, 6, 5)[:dims]), (8, 5, *(3, 4, 2)[:dims]), (10,))
    return [torch.randn(shape, dtype=torch.float64, device=device) for shape in shapes]


def _call(dims: int, tensors: list[torch.Tensor]) -> torch.Tensor:
    ours = (tconv.conv_transpose1d, tconv.conv_transpose2d, tconv.conv_transpose3d)[dims - 1]
    return ours(*tensors, stride=2, padding=1, groups=2)


def _assert_right(got: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """In float64, where the order of the sums is all that can differ."""
    exact = ops._NATIVE[tensors[1].dim() - 2](*(tensor.cpu() for tensor in tensors), stride=2, padding=1, groups=2)
    torch.testing.assert_close(got.cpu(), exact, rtol=1e-12, atol=1e-12)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Nothing is planned or loaded yet; lists what is loaded."""
    loads: list[Any] = []
    load = loader.load
    monkeypatch.setattr(routes, "_routes", {})
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.setattr(loader, "load", lambda *arguments: loads.append(arguments) or load(*arguments))
    yield loads
    torch.cuda.synchronize()  # before the kernels go


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_odd_layouts(dims: int, odd: Odd, cold: list[Any]) -> None:
    plain = _tensors(dims)
    for which in ((0,), (1,), (2,), (0, 1, 2)):
        tensors = [odd(tensor) if index in which else tensor for index, tensor in enumerate(plain)]
        _assert_right(_call(dims, tensors), tensors)
    assert len(cold) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_odd_layouts_of_narrow_types(dtype: torch.dtype, odd: Odd) -> None:
    tensors = [odd(tensor.mul(4).round().to(dtype)) for tensor in _tensors(2)]  # sums of small integers are exact
    exact = ops._NATIVE[2](*(tensor.double().cpu() for tensor in tensors), stride=2, padding=1, groups=2)
    got = _call(2, tensors)
    assert torch.equal(got.cpu(), exact.to(dtype))


def test_an_empty_batch_has_gradients() -> None:
    tensors = [tensor.requires_grad_() for tensor in _tensors(2)]
    got = _call(2, [tensors[0][:0], *tensors[1:]])
    assert got.shape[0] == 0 and got.is_cuda
    gradients = torch.autograd.grad(got.sum(), tensors)
    assert not any(gradient.any() for gradient in gradients)


def test_threads_on_streams_of_their_own_that_call_first_at_once(cold: list[Any]) -> None:
    ready = threading.Barrier(16)
    layers = [_tensors(1) for _ in range(16)]
    torch.cuda.synchronize()
    results: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        stream = torch.cuda.Stream()
        ready.wait(60)
        with torch.cuda.stream(stream):
            layers[n][0].mul_(n)  # seen only by what is enqueued behind it, on this stream
            results[n] = _call(1, layers[n])
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cold) == 1
    for n, tensors in enumerate(layers):
        _assert_right(results[n], tensors)


def test_streams_in_turn() -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    layers = [_tensors(2) for _ in streams]
    torch.cuda.synchronize()
    for turn in range(4):
        results = []
        for stream, tensors in zip(streams, layers, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                tensors[0].add_(turn)
                results.append(_call(2, tensors))
        torch.cuda.synchronize()
        for got, tensors in zip(results, layers, strict=True):
            _assert_right(got, tensors)


@_two_devices
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_devices_in_turn(order: tuple[int, int], cold: list[Any]) -> None:
    """In a new thread, which has no context yet: the current device is 0 throughout."""
    layers = {n: _tensors(2, f"cuda:{n}") for n in order}
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    results: list[tuple[int, torch.Tensor]] = []

    def work() -> None:
        for n in order * 3:
            results.append((n, _call(2, layers[n])))
            assert torch.cuda.current_device() == 0

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    assert len(cold) == 2 and len(results) == 6
    for n, got in results:
        assert got.device.index == n
        _assert_right(got, layers[n])


@_two_devices
def test_a_stream_of_another_device() -> None:
    tensors = _tensors(2, "cuda:1")
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream(1)
    with torch.cuda.stream(stream):  # and device 1
        torch.cuda._sleep(20_000_000)
        tensors[0].add_(1)  # seen only by what is enqueued behind it, on this stream
        with torch.cuda.device(0):
            got = _call(2, tensors)
    stream.synchronize()
    _assert_right(got, tensors)


@_two_devices
def test_tensors_of_two_devices_are_refused_as_by_torch() -> None:
    tensors = [*_tensors(2, "cuda:0")[:1], *_tensors(2, "cuda:1")[1:]]
    with pytest.raises(RuntimeError, match="same device"):
        _call(2, tensors)


@pytest.mark.parametrize("step", ["build", "load"])
def test_an_interrupted_first_call_is_made_again(step: str, cold: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = _tensors(3)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loader, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            _call(3, tensors)
    _assert_right(_call(3, tensors), tensors)
    assert len(cold) == 1


_FORKED = """
import os, signal, sys
import torch, tconv

def right():
    layer, x = tconv.ConvTranspose1d(4, 6, 3, stride=2).cuda().double(), torch.randn(2, 4, 50).cuda().double()
    exact = torch.nn.functional.conv_transpose1d(x.cpu(), layer.weight.cpu(), layer.bias.cpu(), 2)
    torch.testing.assert_close(layer(x).detach().cpu(), exact.detach(), rtol=1e-12, atol=1e-12)
    return layer, x

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # a child that hangs fails
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

def refused(layer, x):
    try:
        layer(x)
        torch.cuda.synchronize()
    except Exception:
        return
    raise AssertionError("CUDA does not work in the child of a process that used it, and nothing said so")

in_child(right)  # fork after import
layer, x = right()
in_child(lambda: refused(layer, x))  # fork after the first use of the GPU
shorter = x[..., :30]  # a call that was not planned before the fork
in_child(lambda: refused(layer, shorter))
right()
"""


def test_fork(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
