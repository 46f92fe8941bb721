"""Odd tensors and odd processes, as far as that goes without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tconv
from tconv import ops, routes
from tconv.jit import loader
from tconv.planner import Plan

ARGUMENTS: dict[int, tuple[Any, ...]] = {
    1: ([2], [1], [1], 2, [1]),
    2: ([2, 3], [1, 0], [1, 2], 2, [1, 2]),
    3: ([1, 2, 1], [0, 1, 0], [0, 1, 0], 2, [1, 1, 2]),
}
Odd = Callable[[torch.Tensor], torch.Tensor]


def _tensors(dims: int) -> list[torch.Tensor]:
    torch.manual_seed(dims)
    shapes = ((2, 4, *(3, 4, 2)[:dims]), (4, 2, *(2, 3, 2)[:dims]), (4,))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def _run(dims: int, tensors: list[torch.Tensor], arguments: tuple[Any, ...]) -> torch.Tensor:
    route = routes.find_route(dims, *tensors, arguments)
    assert route is not None
    return routes.run(route, *tensors)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)], ids=["input", "weight", "bias", "all"])
def test_odd_layouts(dims: int, which: tuple[int, ...], odd: Odd, as_gpu: list[Plan]) -> None:
    tensors = _tensors(dims)
    for index in which:
        tensors[index] = odd(tensors[index])
    before = [tensor.clone() for tensor in tensors]
    expected = ops._NATIVE[dims](*tensors, *ARGUMENTS[dims])
    plain = _run(dims, before, ARGUMENTS[dims])  # a route of the same shapes is known already
    for got in (plain, _run(dims, tensors, ARGUMENTS[dims]), _run(dims, tensors, ARGUMENTS[dims])):
        torch.testing.assert_close(got, expected)
    assert len(as_gpu) == 3
    assert all(map(torch.equal, tensors, before))


def test_gradients_of_odd_layouts(odd: Odd, as_gpu: list[Plan]) -> None:
    leaves = [tensor.requires_grad_() for tensor in _tensors(2)]

    def gradients(call: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(call([odd(leaf) for leaf in leaves]).sum(), leaves)

    got = gradients(lambda tensors: _run(2, tensors, ARGUMENTS[2]))
    torch.testing.assert_close(got, gradients(lambda tensors: ops._NATIVE[2](*tensors, *ARGUMENTS[2])))
    assert as_gpu


def test_axes_of_one_element_with_any_stride(as_gpu: list[Plan]) -> None:
    memory = torch.randn(500, dtype=torch.float64)
    tensors = [memory.as_strided(*layout) for layout in (((1, 4, 1, 5), (77, 5, 99, 1)), ((4, 1, 1, 1), (1, 9, 0, 50)))]
    assert all(tensor.is_contiguous() for tensor in tensors)
    arguments = (2, 0, 0, 1, 1)
    got = _run(2, [*tensors, None], arguments)
    torch.testing.assert_close(got, ops._NATIVE[2](*tensors, None, *arguments))


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((0, 4, 3), (4, 2, 3)),
        ((2, 4, 0), (4, 2, 3)),
        ((2, 4, 3), (4, 0, 3)),
        ((2, 0, 3), (0, 2, 3)),
        ((2, 4, 3), (4, 2, 0)),
    ],
    ids=["batch", "input", "out channels", "in channels", "kernel"],
)
def test_tensors_without_elements_are_pytorchs(x: tuple[int, ...], weight: tuple[int, ...], as_gpu: list[Plan]) -> None:
    assert routes.find_route(1, torch.randn(x), torch.randn(weight), None, (1, 0, 0, 1, 1)) is None
    assert not as_gpu


def test_an_empty_batch_has_gradients() -> None:
    layer = tconv.ConvTranspose2d(4, 6, 3, stride=2)
    x = torch.randn(0, 4, 5, 5, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert layer.weight.grad is not None and not layer.weight.grad.any()


def test_tensors_of_other_devices_are_pytorchs() -> None:
    x, weight = torch.randn(2, 4, 5, device="meta"), torch.randn(4, 3, 2)
    assert tconv.conv_transpose1d(x, weight.to("meta"), stride=2).shape == (2, 3, 10)
    mixed = [call(torch.randn(2, 4, 5), weight.to("meta")) for call in (tconv.conv_transpose1d, ops._NATIVE[1])]
    assert mixed[0].device == mixed[1].device and mixed[0].shape == mixed[1].shape


def test_threads_that_call_first_at_once(as_gpu: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    builds, loads, ready = [], [], threading.Barrier(16)

    def build(kernel: Any, arch: str) -> loader.Built:
        builds.append((kernel, arch))
        threading.Event().wait(0.05)  # the others arrive meanwhile
        return loader.Built(kernel, b"cubin")

    monkeypatch.setattr(loader, "build", build)
    monkeypatch.setattr(loader, "load", lambda *arguments: loads.append(arguments) or "kernel")
    weight = torch.randn(4, 2, 3, dtype=torch.float64)
    inputs = [torch.randn(9 + n % 2, 4, 40, dtype=torch.float64) for n in range(16)]  # sizes of one kernel
    results: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        ready.wait(60)
        results[n] = _run(1, [inputs[n], weight, None], (2, 0, 0, 1, 1))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, x in enumerate(inputs):
        torch.testing.assert_close(results[n], ops._NATIVE[1](x, weight, None, 2))
    assert len({plan.kernel for plan in as_gpu}) == len(builds) == len(loads) == 1


def test_a_call_that_failed_is_made_again(as_gpu: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = _tensors(1)
    for error in (KeyboardInterrupt, tconv.CompileError, MemoryError):

        def fail(*_: Any, error: type[BaseException] = error) -> None:
            raise error("of a test")

        with monkeypatch.context() as patched:
            patched.setattr(loader, "build", fail)
            with pytest.raises(error):
                _run(1, tensors, ARGUMENTS[1])
    torch.testing.assert_close(_run(1, tensors, ARGUMENTS[1]), ops._NATIVE[1](*tensors, *ARGUMENTS[1]))


_FORKED = """
import os, signal
import torch, tconv
torch.set_num_threads(1)  # OpenMP's threads do not outlive a fork
layer, x = tconv.ConvTranspose1d(4, 6, 3, stride=2), torch.randn(2, 4, 5)
for used in (False, True):  # before the fork
    if used:
        layer(x)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if torch.equal(layer(x), torch.nn.ConvTranspose1d.forward(layer, x)) else 1)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_after_import_and_after_a_call(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
