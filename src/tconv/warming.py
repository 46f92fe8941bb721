"""Everything that a model's first call would wait for, done before it: kernels are planned, compiled and loaded."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tconv.errors import NotWarmedUp
from tconv.routes import Noted, noting

_log = logging.getLogger("tconv")


@dataclass(frozen=True)
class WarmUp:
    """What `warmup` did. ``str()`` of it is a line for people.

    Args:
        calls: how many calls of the forward pass are new and run a kernel of tconv.
        kernels: how many kernels were compiled, or found in the cache, and loaded.
        seconds: how long all of it took, in seconds.
    """

    calls: int
    kernels: int
    seconds: float

    def __str__(self) -> str:
        if not self.calls:
            return "nothing to warm up: no call that is new runs a kernel of tconv (tconv.explain says what runs)"
        return f"{self.calls} calls are warm, {self.kernels} kernels loaded for them in {self.seconds:.1f} s"


def warmup(
    model: torch.nn.Module,
    *inputs: Any,
    progress: bool | Callable[[int, int], None] = False,
    **keywords: Any,
) -> WarmUp:
    """Plans, compiles and loads the kernels of all of a model's layers, so that its next call is as fast as any later.

        model = tconv.optimize(model.cuda().eval(), freeze=True)
        print(tconv.warmup(model, x))

    Kernels are compiled side by side, one on each processor, where a first call would compile them one after the other,
    each in about a second. What the cache on disk has is only loaded. A model that runs at several shapes or types is
    warmed up with each of them.

    The model runs twice, in evaluation mode and without gradients, and is put back into its modes: first by PyTorch's
    operators, to see its calls, and then by its kernels, which prepares frozen weights. Random numbers are drawn as if
    it had not run. What a compiler traces, and kernels of gradients behind an epilogue, are not warmed up.

    Args:
        model: with layers of tconv, as `optimize` makes them, or calls of tconv's functions. One that has none, or none
            on a GPU, runs, and nothing is compiled.
        inputs, keywords: what the model is called with.
        progress: True for a progress bar on standard error; or a function that is told, after each kernel, how many are
            done, and of how many.

    Returns:
        What was done.

    Raises:
        NotWarmedUp: a CUDA graph is being captured.
        MissingToolchain: cuda-core, its bindings or NVRTC are absent or do not fit the driver.
        CompileError: NVRTC refused a kernel.
    """
    started = time.perf_counter()
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise NotWarmedUp("a CUDA graph is being captured; warm up before the capture")
    with _evaluating(model), _same_random_numbers(), torch.no_grad():
        with noting() as noted:
            model(*inputs, **keywords)
        kernels = _load(noted, progress)
        if noted:
            model(*inputs, **keywords)
    found = WarmUp(len(noted), kernels, time.perf_counter() - started)
    _log.info("%s", found)
    return found


def _load(noted: Sequence[Noted], progress: bool | Callable[[int, int], None]) -> int:
    """Compiles and loads what is not loaded yet; how many kernels that is."""
    from tconv.jit import loader
    from tconv.jit.toolchain import check_driver

    missing = {
        (each.plan.kernel, each.device, each.plan.shared_bytes): each
        for each in noted
        if not loader.is_loaded(each.plan, each.device)
    }
    if not missing:
        return 0
    check_driver()
    archs = {each.device: loader.gpu_of(each.device).arch for each in missing.values()}
    pool = ThreadPoolExecutor(os.cpu_count())  # NVRTC works without Python's lock
    try:
        building = {pool.submit(loader.build, each.plan.kernel, archs[each.device]): each for each in missing.values()}
        with _told(progress) as tell:
            for done, built in enumerate(as_completed(building), 1):
                loader.launcher(building[built].plan, building[built].device, built.result())
                tell(done, len(missing))
    finally:
        pool.shutdown(cancel_futures=True)
    return len(missing)


@contextmanager
def _told(progress: bool | Callable[[int, int], None]) -> Iterator[Callable[[int, int], None]]:
    """Who is told of each kernel."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("compiling kernels", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """In evaluation mode statistics do not move."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _same_random_numbers() -> Any:
    """On the CPU, and on GPUs if any is in use already."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.random.fork_rng(devices=range(torch.cuda.device_count() if used else 0))
