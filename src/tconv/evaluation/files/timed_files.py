"""Timing inside a worker process: PyTorch's `Model` alone, or by turns with a candidate."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tconv.evaluation.files.timed_call import TimedCall
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import Clock, Measured, interleave
from tconv.precision import allows_tf32
from tconv.sandbox.exchange import Exchange
from tconv.sandbox.model_file import blamed, load
from tconv.sandbox.watch import Watch

_SEED = 0


class Stopwatch:
    """The target of a timing worker.

    Args:
        path: the model file, run on the current CUDA device.
        directory, side: of the exchange.
    """

    device = "cuda"

    def __init__(self, path: str, directory: str, side: str) -> None:
        # Bound before any file is run: what the file patches is not what measures.
        self._clock = self.clock()
        self._exchange = Exchange(directory, side)
        self._file = load(path)
        self._inputs = [_moved(value, self.device) for value in self._file.make_inputs(_SEED)]
        args, kwargs = self._file.init_args, self._file.init_kwargs
        self._model = self._file.construct(_SEED, *args, **kwargs).to(self.device)

    def clock(self) -> Clock:
        """What measures."""
        return CudaClock()

    def alone(self, by_samples: bool) -> dict[str, Any]:
        """Times of `Model` by setting: "default", "cudnn.benchmark", "channels_last" where it applies.

        Beside the times, by name: `calls`, some of those that were timed by default, and `settings`. Where the model
        goes `by_samples` none are kept: the judge computes it.
        """
        first = self._called(self._model, self._inputs, self._file.path)
        times = {"default": self._time(first)}
        torch.backends.cudnn.benchmark = True
        times["cudnn.benchmark"] = self._time(self._called(self._model, self._inputs, self._file.path))
        torch.backends.cudnn.benchmark = False
        memory_format = self._channels_last()
        if memory_format is not None:
            self._model.to(memory_format=memory_format)
            inputs = [_in_format(value, memory_format) for value in self._inputs]
            times["channels_last"] = self._time(self._called(self._model, inputs, self._file.path))
        if by_samples:
            first.kept.clear()
        return {**self._found(times, first), "settings": settings()}

    def together(self, candidate: str, by_samples: bool) -> dict[str, Any]:
        """Times of `Model` ("reference") and of `ModelNew` of the candidate file, by turns, with equal weights.

        Beside the times, by name: `calls`, some of the candidate's, and `rebound`, what its file has patched.
        """
        watch = Watch()
        file = load(candidate, "ModelNew")
        model_new = file.construct(_SEED, *self._file.init_args, **self._file.init_kwargs).to(self.device)
        model_new.load_state_dict(self._model.state_dict())
        calls = {
            "candidate": self._called(model_new, self._inputs, file.path, by_samples),
            "reference": self._called(self._model, self._inputs, self._file.path),
        }
        renewals = {name: call.renew for name, call in calls.items()}
        times = interleave(self._clock, calls, between=renewals)
        return {**self._found(times, calls["candidate"]), "rebound": watch.rebound()}

    def _called(self, model: nn.Module, inputs: list[Any], path: Path, by_samples: bool = False) -> TimedCall:
        """Calls of the model, the first of which may raise and build; the device is warm then."""
        call = TimedCall(model, inputs, by_samples)
        with blamed(path, "forward"):
            self._clock.warm_up(call)
        return call

    def _time(self, call: TimedCall) -> Measured:
        return interleave(self._clock, {"model": call}, between={"model": call.renew})["model"]

    def _found(self, times: Mapping[str, Measured], call: TimedCall) -> dict[str, Any]:
        tree = self._exchange.write(call.kept)
        return {"times": {name: asdict(measured) for name, measured in times.items()}, "calls": tree}

    def _channels_last(self) -> torch.memory_format | None:
        """The format that fits inputs and parameters alike; None for 1-D models and for mixtures."""
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        inputs = {value.dim() for value in self._inputs if isinstance(value, Tensor)} & formats.keys()
        parameters = {parameter.dim() for parameter in self._model.parameters()} & formats.keys()
        return formats[inputs.pop()] if len(inputs) == 1 and parameters <= inputs else None


def settings() -> dict[str, str]:
    """What the reference runs under, by name."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "float32 convolutions": "TF32 allowed" if allows_tf32() else "TF32 not allowed",
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "gradients": "off",
    }


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _in_format(value: Any, memory_format: torch.memory_format) -> Any:
    fits = isinstance(value, Tensor) and value.dim() in (4, 5)
    return value.contiguous(memory_format=memory_format) if fits else value
