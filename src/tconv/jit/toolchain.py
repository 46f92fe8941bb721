"""What compiling and launching need besides torch: cuda-core, the bindings and NVRTC of torch's CUDA major."""

from __future__ import annotations

import _thread
import atexit
import importlib
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from tconv.errors import MissingToolchain

T = TypeVar("T")

_DEFAULT_MAJOR = 13
_importing = threading.Lock()


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
        status, major, minor = uninterrupted(nvrtc.nvrtcVersion)  # loads the library
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
    def one_at_a_time() -> Any:  # cuda.core, while it is imported, is seen by halves from other threads
        with _importing:
            return importlib.import_module(name)

    try:
        return uninterrupted(one_at_a_time)
    except (ImportError, RuntimeError) as error:
        raise MissingToolchain(f"{name} cannot be imported ({error}); {install_line()}") from error


def uninterrupted(call: Callable[[], T]) -> T:
    """What `call` returns or raises, run in a thread of its own: Ctrl-C interrupts the main thread, and no other.

    An extension module imported by half cannot be imported again, an NVRTC loaded without its builtins stays so, and
    Python's own library leaves locks held where it is interrupted (in `tempfile`, in `threading.Thread.start`: hence a
    bare thread). After an interrupt `call` goes on; who repeats it waits for the locks of Python's import or of the
    bindings. The process ends after it.
    """
    outcome: list[tuple[bool, Any]] = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def work() -> None:
        try:
            outcome.append((True, call()))
        except BaseException as error:
            outcome.append((False, error))
        finally:
            ended.release()

    try:
        _thread.start_new_thread(work, ())
        ended.acquire()
    except KeyboardInterrupt:  # an exit under a compiler that runs is a crash
        atexit.register(lambda: outcome or ended.acquire(timeout=60))
        raise
    returned, result = outcome[0]
    if returned:
        return cast(T, result)
    raise result
