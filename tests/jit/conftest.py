"""A cache directory of one test's own, a kernel that needs nothing of ours, a small one of ours, and a driver."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from cuda.bindings import driver as bindings

from tconv.jit import launch, loader
from tconv.jit.cache import default_cache
from tconv.planner import DIRECT, Gpu, Kernel
from tconv.problem import Layer, Problem
from tconv.settings import settings


@pytest.fixture
def scale_source() -> str:
    return 'extern "C" __global__ void scale(float* y, const float* x) { y[threadIdx.x] = 3.0f * x[threadIdx.x]; }\n'


@pytest.fixture
def kernel() -> Kernel:
    return DIRECT.plan(Problem(Layer(1, 2, 2, kernel=(1, 1, 3)), 1, (1, 1, 9)), Gpu.h200()).kernel


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What TCONV_CACHE_DIR names during the test; not created yet."""
    directory = tmp_path / "kernels of a test"
    monkeypatch.setenv("TCONV_CACHE_DIR", str(directory))
    settings.cache_clear()
    default_cache.cache_clear()
    yield directory
    settings.cache_clear()
    default_cache.cache_clear()


class Launched(NamedTuple):
    """What the driver was given: the kernel's name, its launch, and its parameters."""

    kernel: str
    stream: int
    grid: int
    threads: int
    shared_bytes: int
    overlaps: bool
    values: list[int]


class Driver:
    """Stands in for the driver and for torch's CUDA half.

    Its cuLaunchKernelEx is called as the driver's is, and reads what it is pointed to as cuda.h declares it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[Launched] = []
        self.status = 0
        #: What else happens within a launch.
        self.meanwhile: Callable[[], object] = lambda: None
        self.threads_given_context: list[int] = []
        self.current_stream = 0xA0
        self.overlaps = True
        self._kernels: dict[int, tuple[str, list[Any]]] = {}
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self._launch)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value
        core = SimpleNamespace(Device=lambda index: SimpleNamespace(set_current=self._set_current))
        monkeypatch.setattr(launch, "launch_function", lambda: ctypes.CFUNCTYPE(ctypes.c_int)(self.address))
        monkeypatch.setattr(launch, "cuda_core", lambda: core)
        monkeypatch.setattr(loader, "overlaps", lambda device: self.overlaps)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: self.current_stream, raising=False)

    def kernel(self, name: str, parameters: str) -> launch.Function:
        """A loaded one: of its parameters, a letter each, ``P`` is an address and ``i`` a number of 32 bits."""
        handle = 0x1_0000_0000 + len(self._kernels)
        self._kernels[handle] = name, [ctypes.c_uint64 if letter == "P" else ctypes.c_int32 for letter in parameters]
        return launch.Function(handle, None)

    def _launch(self, config_at: int, function: int, places_at: int, extra: int | None) -> int:
        config = bindings.CUlaunchConfig(_ptr=config_at)
        assert (config.gridDimY, config.gridDimZ, config.blockDimY, config.blockDimZ) == (1, 1, 1, 1)
        assert extra is None
        if threading.get_ident() not in self.threads_given_context:
            return int(bindings.CUresult.CUDA_ERROR_INVALID_CONTEXT)
        self.meanwhile()
        name, kinds = self._kernels[function]
        places = (ctypes.c_void_p * len(kinds)).from_address(places_at)
        values = [kind.from_address(place).value for kind, place in zip(kinds, places, strict=True)]
        launched = (config.gridDimX, config.blockDimX, config.sharedMemBytes, self._overlaps(config_at), values)
        self.launches.append(Launched(name, int(config.hStream), *launched))
        return self.status

    def _overlaps(self, config_at: int) -> bool:
        count = bindings.CUlaunchConfig(_ptr=config_at).numAttrs
        if not count:
            return False
        assert count == 1
        attribute = bindings.CUlaunchAttribute(_ptr=ctypes.c_uint64.from_address(config_at + 40).value)
        name = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        assert (attribute.id, attribute.value.programmaticStreamSerializationAllowed) == (name, 1)
        return True

    def _set_current(self) -> None:
        self.threads_given_context.append(threading.get_ident())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)
