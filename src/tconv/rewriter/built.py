"""Kernels as a written file builds them: its own extension, loaded here, launched as the file launches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tconv.memory import aligned
from tconv.planner import Gpu
from tconv.problem import Problem
from tconv.sandbox.cut import SLICED, Built

#: Enqueues a kernel for x, weight, bias, the result, and what its program reads.
Launch = Callable[[Tensor, Tensor, Tensor | None, Tensor, tuple[Tensor, ...]], None]


class Extensions:
    """What the file builds with load_inline, each built once, in the pool, and loaded here when it is asked for."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._builds: dict[str, Future[None]] = {}
        self._loaded: dict[str, Any] = {}

    def begin(self, options: Mapping[str, Any]) -> None:
        """It will be asked for, here or by a process that runs the file."""
        if options["name"] not in self._builds:
            self._builds[options["name"]] = self._pool.submit(_build, options)

    def wait(self) -> None:
        """Until nothing is built any more."""
        for build in self._builds.values():
            build.exception()

    def launch(self, options: Mapping[str, Any]) -> Callable[..., int]:
        """The extension's function."""
        name = options["name"]
        if name not in self._loaded:
            self.begin(options)
            self._builds[name].result()
            self._loaded[name] = _load(options)
        launch: Callable[..., int] = self._loaded[name].launch
        return launch


def _build(options: Mapping[str, Any]) -> None:
    """Builds the extension, in a process of its own: the module that it loads there stays there."""
    _load(options)


def _load(options: Mapping[str, Any]) -> Any:
    """The extension, built unless it lies in load_inline's folder."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(**options)  # type: ignore[no-untyped-call]


def launched(extensions: Extensions, built: Built, problem: Problem, gpu: Gpu) -> Launch:
    """The launch of a built kernel, as the file makes it."""
    sizes = (*problem.input_size, *problem.output_size)

    @cache  # launches are timed
    def samples(launch: Callable[..., int]) -> int:
        """How many one launch takes."""
        most = launch(built.place, 0, gpu.multiprocessors, *[0] * 6, problem.batch, *sizes)
        return most if most >= problem.batch else most // SLICED * SLICED

    def enqueue(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, operands: tuple[Tensor, ...]) -> None:
        launch = extensions.launch(built.options)
        x, weight = x.contiguous(), weight.contiguous()
        if built.aligned:
            x, weight = aligned(x), aligned(weight)
        bias = None if bias is None else bias.contiguous()
        read = [each.data_ptr() for each in operands]
        stream = torch.cuda.current_stream().cuda_stream
        for first in range(0, problem.batch, samples(launch)):
            part = slice(first, first + samples(launch))
            own, to, prepared = x[part], y[part], None
            if built.weight_bytes or built.prepares_inputs:
                of_inputs = own.numel() * own.element_size() if built.prepares_inputs else 0
                prepared = torch.empty(built.weight_bytes + of_inputs, dtype=torch.uint8, device=x.device)
            pointers = [0 if each is None else each.data_ptr() for each in (own, weight, bias, to, prepared)]
            counts = (problem.y_channels, own.shape[0])
            error = launch(built.place, stream, gpu.multiprocessors, *pointers, *counts, *sizes, *read)
            if error:
                raise RuntimeError(f"CUDA error {error} at the launch of {problem.layer.describe()}")

    return enqueue
