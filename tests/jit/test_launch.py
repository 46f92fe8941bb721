"""What a launch hands to the driver, and what it says when the driver refuses."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.bindings import driver as bindings

from tconv.errors import MissingToolchain
from tconv.jit import launch as launching
from tconv.jit import loader
from tconv.jit.compile import compile_source
from tconv.jit.launch import launch_of

#: Uncached.
_LAUNCH_FUNCTION = launching.launch_function.__wrapped__  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_parameters_lie_where_the_driver_reads_them(driver: Any, count: int) -> None:
    """Of odd and even counts of 32-bit numbers, which lie between the addresses."""
    numbers = [-1 - number for number in range(count)]
    kernel = driver.kernel("kernel", "PPP" + "i" * count + "PP")
    launch = launch_of("it", kernel, 7, 96, 50_000, addresses=3, numbers=numbers, operands=2, overlapping=True)
    launch((1 << 64) - 1, 1 << 63, 2, 3, 4, 1 << 62)
    launch(0, 10, 20, 30, 40, 50)
    values = [1 << 63, 2, 3, *numbers, 4, 1 << 62]
    assert driver.launches[0] == ("kernel", (1 << 64) - 1, 7, 96, 50_000, True, values)
    assert driver.launches[1] == ("kernel", 0, 7, 96, 50_000, True, [10, 20, 30, *numbers, 40, 50])


def test_a_wrong_number_of_addresses_is_not_launched(driver: Any) -> None:
    launch = launch_of("it", driver.kernel("kernel", "PPi"), 1, 32, addresses=2, numbers=[1])
    for addresses in ((1,), (1, 2, 3)):
        with pytest.raises(ValueError, match="same size"):
            launch(0, *addresses)
    assert driver.launches == []


def test_threads_write_blocks_of_their_own(driver: Any) -> None:
    """Each launch is read only when all threads have written theirs."""
    count = 4
    together = threading.Barrier(count, timeout=30)
    driver.meanwhile = together.wait
    launch = launch_of("it", driver.kernel("kernel", "PPi"), 1, 32, addresses=2, numbers=[7])

    def work(number: int) -> None:
        for turn in range(3):
            launch(number, 100 * number + turn, number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [(number, [100 * number + turn, number, 7]) for number in range(count) for turn in range(3)]
    assert sorted((launched.stream, launched.values) for launched in driver.launches) == expected


def test_a_launch_within_a_launch_writes_another_block(driver: Any) -> None:
    launch = launch_of("it", driver.kernel("kernel", "P"), 1, 32, addresses=1)

    def again() -> None:
        driver.meanwhile = lambda: None
        launch(2, 20)

    driver.meanwhile = again
    launch(1, 10)
    assert [launched.values for launched in driver.launches] == [[20], [10]]


@pytest.mark.parametrize(
    ("status", "words"),
    [(1, "CUDA_ERROR_INVALID_VALUE"), (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), (98765, "error 98765")],
)
def test_what_the_driver_refuses_is_said(driver: Any, status: int, words: str) -> None:
    launch = launch_of("the kernel for a layer", driver.kernel("kernel", "P"), 1, 32, addresses=1)
    driver.status = status
    with pytest.raises(RuntimeError, match=f"the CUDA driver answered {words} at the launch of the kernel for a layer"):
        launch(0, 1)
    driver.status = 0
    launch(0, 1)


def test_the_function_is_the_drivers(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream 0 is the legacy one, as torch's is."""
    asked: list[Any] = []
    found = (bindings.CUresult.CUDA_SUCCESS, driver.address, None)
    monkeypatch.setattr(bindings, "cuGetProcAddress", lambda *what: asked.append(what) or found)
    function = _LAUNCH_FUNCTION()
    assert asked == [(b"cuLaunchKernelEx", 11060, 1)]
    monkeypatch.setattr(launching, "launch_function", lambda: function)
    launch_of("it", driver.kernel("kernel", "P"), 1, 32, addresses=1)(5, 10)
    assert driver.launches == [("kernel", 5, 1, 32, 0, False, [10])]


def test_a_driver_without_the_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for status in (bindings.CUresult.CUDA_ERROR_NOT_FOUND, bindings.CUresult.CUDA_SUCCESS):
        old = SimpleNamespace(
            CUdriverProcAddress_flags=bindings.CUdriverProcAddress_flags,
            CUresult=bindings.CUresult,
            cuGetProcAddress=lambda *_, status=status: (status, None, None),
        )
        monkeypatch.setattr(launching, "driver", lambda old=old: old)
        with pytest.raises(MissingToolchain, match="no cuLaunchKernelEx"):
            _LAUNCH_FUNCTION()


@pytest.mark.gpu
def test_a_launch_on_a_gpu(scale_source: str) -> None:
    """One that is refused leaves nothing behind."""
    kernel = loader.load(compile_source(scale_source, loader.gpu_of(0).arch, name="scale").cubin, "scale", 0, 0)
    x, y = torch.arange(32, dtype=torch.float32, device="cuda"), torch.zeros(2, 32, device="cuda")
    launch, too_many = (launch_of("scale", kernel, 1, threads, addresses=2) for threads in (32, 2048))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    launch(stream.cuda_stream, y[0].data_ptr(), x.data_ptr())
    stream.synchronize()
    with pytest.raises(RuntimeError, match=r"the CUDA driver answered CUDA_ERROR_\w+ at the launch of scale"):
        too_many(0, y[1].data_ptr(), x.data_ptr())
    launch(0, y[1].data_ptr(), x.data_ptr())
    assert torch.equal(y, 3 * x.expand(2, 32))
