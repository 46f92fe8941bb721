"""Timing inside a worker process: PyTorch's `Model` alone, or by turns with a candidate."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tconv.evaluation.model_file import LoadedModel, blamed, load
from tconv.evaluation.precision import allows_tf32
from tconv.evaluation.timing import Call, interleave, quantile

_SEED = 0
_WARM_CALLS = 3
_WARM_SECONDS = 0.3
#: Clock cycles a second that the sleeping kernel is given for; a slower clock makes it sleep longer.
_CYCLES_PER_SECOND = 2e9
#: A host that takes longer than this to queue a series is hidden by the work itself.
_LONGEST_SLEEP = 0.2


class CudaClock:
    """Times calls on the current CUDA device by events on the current stream. See `timing.Clock`."""

    def __init__(self) -> None:
        # Twice the L2 cache and more, so that nothing of the last call is left in it.
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._flush = torch.empty(2 * cache + 2**20, dtype=torch.uint8, device="cuda")
        self._now = time.perf_counter
        self._event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
        self._wait = torch.cuda.synchronize
        self._sleep: Callable[[int], None] = torch.cuda._sleep

    def device_ms(self, call: Call, count: int) -> list[float]:
        """See `timing.Clock`."""
        self._warm(call)
        started = self._now()
        self._flush.zero_()
        call()
        seconds_on_host = self._now() - started
        self._wait()
        # The device sleeps while the host queues everything; so it never waits for the host in between.
        self._sleep(int(min(2 * count * seconds_on_host, _LONGEST_SLEEP) * _CYCLES_PER_SECOND))
        events = [(self._event(), self._event()) for _ in range(count)]
        for start, end in events:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        self._wait()
        return [start.elapsed_time(end) for start, end in events]

    def synchronised_ms(self, call: Call, count: int) -> list[float]:
        """See `timing.Clock`."""
        self._warm(call)
        times = []
        for _ in range(count):
            self._flush.zero_()
            self._wait()
            started = self._now()
            call()
            self._wait()
            times.append((self._now() - started) * 1e3)
        return times

    def host_us(self, call: Call, count: int) -> float:
        """See `timing.Clock`."""
        self._warm(call)
        times = []
        for _ in range(count):
            started = self._now()
            call()
            times.append((self._now() - started) * 1e6)
            self._wait()
        return quantile(times, 0.5)

    def _warm(self, call: Call) -> None:
        for _ in range(_WARM_CALLS):
            call()
        self._wait()


class Stopwatch:
    """The target of a timing worker.

    Args:
        path: the model file, run on the current CUDA device.
    """

    def __init__(self, path: str) -> None:
        # Bound before any file is run: what the file patches is not what measures.
        self._clock = CudaClock()
        self._file = load(path)
        self._inputs = [_on_gpu(value) for value in self._file.make_inputs(_SEED)]
        args, kwargs = self._file.init_args, self._file.init_kwargs
        self._model = self._file.construct(_SEED, *args, **kwargs).cuda()

    def alone(self) -> dict[str, Any]:
        """Times of `Model` by setting: "default", "cudnn.benchmark", "channels_last" where it applies; and settings."""
        times = {"default": self._time_model(self._model, self._inputs)}
        torch.backends.cudnn.benchmark = True
        times["cudnn.benchmark"] = self._time_model(self._model, self._inputs)
        torch.backends.cudnn.benchmark = False
        memory_format = self._channels_last()
        if memory_format is not None:
            inputs = [_in_format(value, memory_format) for value in self._inputs]
            times["channels_last"] = self._time_model(self._model.to(memory_format=memory_format), inputs)
        return {"times": {name: asdict(measured) for name, measured in times.items()}, "settings": settings()}

    def together(self, candidate: str) -> dict[str, Any]:
        """Times of `Model` ("reference") and of `ModelNew` of the candidate file, by turns, with equal weights."""
        file = load(candidate, "ModelNew")
        model_new = file.construct(_SEED, *self._file.init_args, **self._file.init_kwargs).cuda()
        model_new.load_state_dict(self._model.state_dict())
        calls = {
            "candidate": _caller(file, model_new, self._inputs),
            "reference": _caller(self._file, self._model, self._inputs),
        }
        measured = interleave(self._clock, {name: _warmed_up(call) for name, call in calls.items()})
        return {name: asdict(one) for name, one in measured.items()}

    def _channels_last(self) -> torch.memory_format | None:
        """The format that fits inputs and parameters alike; None for 1-D models and for mixtures."""
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        inputs = {value.dim() for value in self._inputs if isinstance(value, Tensor)} & formats.keys()
        parameters = {parameter.dim() for parameter in self._model.parameters()} & formats.keys()
        return formats[inputs.pop()] if len(inputs) == 1 and parameters <= inputs else None

    def _time_model(self, model: nn.Module, inputs: list[Any]) -> Any:
        call = _warmed_up(_caller(self._file, model, inputs))
        return interleave(self._clock, {"model": call})["model"]


def settings() -> dict[str, str]:
    """What the reference runs under, by name."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "float32 convolutions": "TF32 allowed" if allows_tf32() else "TF32 not allowed",
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "gradients": "off",
    }


def _caller(file: LoadedModel, model: nn.Module, inputs: list[Any]) -> Call:
    path: Path = file.path

    def call() -> object:
        with torch.no_grad():
            return model(*inputs)

    with blamed(path, "forward"):
        call()
        torch.cuda.synchronize()
    return call


def _warmed_up(call: Call) -> Call:
    """The same call, after the device has run it long enough to be at its working clock."""
    end = time.perf_counter() + _WARM_SECONDS
    while time.perf_counter() < end:
        call()
        torch.cuda.synchronize()
    return call


def _on_gpu(value: Any) -> Any:
    return value.cuda() if isinstance(value, Tensor) else value


def _in_format(value: Any, memory_format: torch.memory_format) -> Any:
    fits = isinstance(value, Tensor) and value.dim() in (4, 5)
    return value.contiguous(memory_format=memory_format) if fits else value
