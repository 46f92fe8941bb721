"""What compiling and launching need besides torch: cuda-core, the bindings and NVRTC of torch's CUDA major."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any

from tconv.errors import MissingToolchain

_DEFAULT_MAJOR = 13


def install_line() -> str:
    """The line that installs what is missing, with the CUDA major of the torch in use."""
    import torch

    version = torch.version.cuda
    if version is None:
        return f"pip install 'tconv[cu{_DEFAULT_MAJOR}]'"
    major = version.split(".")[0]
    return f"your torch is built for CUDA {major}.x: pip install 'tconv[cu{major}]'"


@cache
def cuda_core() -> Any:
    """The module `cuda.core`, imported at first use: it needs no driver.

    Raises:
        MissingToolchain: cuda-core or the CUDA bindings are not installed.
    """
    return _import("cuda.core")


@cache
def program_cache() -> Any:
    """The module `cuda.core.utils`, where the cache of compiled programs is.

    Raises:
        MissingToolchain: cuda-core or the CUDA bindings are not installed.
    """
    return _import("cuda.core.utils")


@cache
def driver() -> Any:
    """The module `cuda.bindings.driver`.

    Raises:
        MissingToolchain: the CUDA bindings are not installed.
    """
    return _import("cuda.bindings.driver")


@cache
def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of the NVRTC that compiles the kernels.

    Raises:
        MissingToolchain: there is none.
    """
    nvrtc = _import("cuda.bindings.nvrtc")
    try:
        status, major, minor = _uninterrupted(nvrtc.nvrtcVersion)  # loads the library
    except RuntimeError as error:
        raise MissingToolchain(f"NVRTC cannot be loaded ({error}); {install_line()}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise MissingToolchain(f"NVRTC does not tell its version ({status}); {install_line()}")
    return int(major), int(minor)


@cache
def driver_version() -> tuple[int, int] | None:
    """(major, minor) of the newest CUDA that the installed driver runs, or None without a driver.

    Raises:
        MissingToolchain: the CUDA bindings are not installed.
    """
    bindings = driver()
    try:
        status, version = bindings.cuDriverGetVersion()
    except RuntimeError:
        return None
    if status != bindings.CUresult.CUDA_SUCCESS or version == 0:
        return None
    return int(version) // 1000, int(version) % 1000 // 10


def check_driver() -> None:
    """Refuses an NVRTC that is of a newer major than the driver: the driver would not load what it compiles.

    Raises:
        MissingToolchain: so it is, or a part is missing.
    """
    compiler, runs = nvrtc_version(), driver_version()
    if runs is not None and compiler[0] > runs[0]:
        raise MissingToolchain(
            f"NVRTC {compiler[0]}.{compiler[1]} compiles for drivers of CUDA {compiler[0]}, this driver is of CUDA "
            f"{runs[0]}.{runs[1]}; update the driver, or pip install 'tconv[cu{runs[0]}]'"
        )


def _import(name: str) -> Any:
    try:
        return _uninterrupted(lambda: importlib.import_module(name))
    except (ImportError, RuntimeError) as error:
        raise MissingToolchain(f"{name} cannot be imported ({error}); {install_line()}") from error


def _uninterrupted(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises, run in a thread of its own: Ctrl-C interrupts the main thread, and no other.

    An extension module imported by half cannot be imported again, and an NVRTC loaded without its builtins stays so.
    After an interrupt `call` goes on; who repeats it waits for the locks of Python's import or of the bindings.
    """
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return future.result()
