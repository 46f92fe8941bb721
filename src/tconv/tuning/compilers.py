"""What compiles: processes and threads. No torch is imported here: they load what they need as their user does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, get_all_start_methods, get_context

#: What compiles, and what it loads at its first use: loaded once, by the process that all others are forked from.
_LOADED = ["tconv.jit.loader", "torch.utils.cpp_extension", "cuda.core", "cuda.bindings.nvrtc"]


def begin() -> None:
    """Starts the process that `compilers` are forked from, and does not wait for it."""
    if "forkserver" in get_all_start_methods():
        get_context("forkserver").set_forkserver_preload(_LOADED)
        forkserver.ensure_running()


@contextmanager
def compilers() -> Iterator[Executor]:
    """Processes that compile, all but one of the processors. What still waits when the block ends is dropped.

    Where the system can fork, they are forked from one that has imported torch, which it begins to do at once.
    """
    begin()
    workers = max(1, (os.cpu_count() or 2) - 1)
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def threads() -> Iterator[Executor]:
    """Threads for what works without Python, as NVRTC does. What still waits when the block ends is dropped."""
    pool = ThreadPoolExecutor()
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C ends the process that asks, which ends these."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
