"""Timing inside a worker process: PyTorch's `Model` alone, or by turns with a candidate."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tconv.evaluation.files.lazy import settled
from tconv.evaluation.files.timed_call import Keeps, TimedCall, are_large, copied
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import STEADY, Clock, Measured, interleave
from tconv.precision import allows_tf32
from tconv.sandbox.exchange import Exchange, Tree
from tconv.sandbox.gpu_memory import place_for, release
from tconv.sandbox.model_file import CANDIDATE, Interface, LoadedModel, blamed, load
from tconv.sandbox.records import restored_for
from tconv.sandbox.watch import Watch

_SEED = 0
#: Of settings other than the default, whose medians are told and nothing is judged by.
_ROUNDS_OF_OTHERS = 4


class Stopwatch:
    """The target of a timing worker.

    Args:
        path: the model file, run on the current CUDA device.
        interface: by what it is used, as `Interface` has it.
        directory, side, digests: of the exchange.
    """

    device = "cuda"

    def __init__(self, path: str, interface: Sequence[str], directory: str, side: str, digests: bool = True) -> None:
        # Bound before any file is run: what the file patches is not what measures.
        self._clock = self.clock()
        self._exchange = Exchange(directory, side, digests=digests)
        self._file = load(path, Interface(*interface))
        args, kwargs = self._file.init_args, self._file.init_kwargs
        self._model = self._constructed(self._file, *args, **kwargs)

    def clock(self) -> Clock:
        """What measures."""
        return CudaClock()

    def alone(self, keeps: Keeps, inputs: Tree) -> dict[str, Any]:
        """Times of `Model` by setting: "default", "cudnn.benchmark", "channels_last" where it applies.

        Beside the times, by name: `calls`, some of those that were timed by default, `changes_inputs`, and `settings`.
        """
        # Each series has a copy of its own on the GPU, where no other is meanwhile unless there is room for many.
        made = self._made(inputs)
        call = self._called(self._model, copied(made, self.device), self._file, keeps)
        times, kept = {"default": self._time(call)}, call.kept
        changes = call.changes_inputs()
        del call
        torch.backends.cudnn.benchmark = True
        call = self._called(self._model, copied(made, self.device), self._file)
        times["cudnn.benchmark"] = self._time(call, _ROUNDS_OF_OTHERS)
        del call
        torch.backends.cudnn.benchmark = False
        memory_format = _channels_last(self._model, made)
        if memory_format is not None:
            self._model.to(memory_format=memory_format)
            inputs = [_in_format(value, memory_format) for value in copied(made, self.device)]
            times["channels_last"] = self._time(self._called(self._model, inputs, self._file), _ROUNDS_OF_OTHERS)
        return {**self._found(times, kept), "changes_inputs": changes, "settings": settings()}

    def together(self, candidate: str, keeps: Keeps, inputs: Tree) -> dict[str, Any]:
        """Times of `Model` ("reference") and of `ModelNew` of the candidate file, by turns, with equal weights.

        Beside the times, by name: `calls`, some of the candidate's, `changes_inputs`, and `rebound`, what its file has
        patched.
        """
        made = self._made(inputs)  # while nobody's program but the model's was run here
        watch = Watch()
        file = load(candidate, CANDIDATE)
        model_new = self._constructed(file, *self._file.init_args, **self._file.init_kwargs)
        model_new.load_state_dict(self._model.state_dict())
        given = copied(made, self.device)
        ours = self._called(model_new, given, file, keeps)
        ours.settle()
        # Large ones both have together: two copies, and two results, can be more than there is room for.
        given = given if are_large(given) else copied(made, self.device)
        theirs = self._called(self._model, given, self._file)

        def before(call: TimedCall, other: TimedCall) -> None:
            other.settle()
            call.renew()

        renewals = {"candidate": partial(before, ours, theirs), "reference": partial(before, theirs, ours)}
        times = interleave(self._clock, {"candidate": ours, "reference": theirs}, between=renewals, steady=STEADY)
        found = {"changes_inputs": ours.changes_inputs() or theirs.changes_inputs(), "rebound": watch.rebound()}
        return {**self._found(times, ours.kept), **found}

    def _made(self, inputs: Tree) -> list[Any]:
        there: list[Any] = self._exchange.read(
            inputs, place_for(self._exchange.size(inputs), torch.device(self.device))
        )
        return there

    def _constructed(self, file: LoadedModel, *args: Any, **kwargs: Any) -> Any:
        module = file.construct(_SEED, *args, **kwargs).to(self.device)
        return settled(module, file, _SEED, torch.device(self.device))

    def _called(self, model: nn.Module, inputs: list[Any], file: LoadedModel, keeps: Keeps = "nothing") -> TimedCall:
        """Calls of the file's model, the first of which may raise and build; the device is warm then."""
        call = TimedCall(model, restored_for(file, inputs), keeps)
        with blamed(file.path, "forward"):
            self._clock.warm_up(call)
        release()  # what only building and trying out took
        return call

    def _time(self, call: TimedCall, rounds: int = 10) -> Measured:
        renewals = {"model": call.renew}
        return interleave(self._clock, {"model": call}, rounds=rounds, between=renewals, steady=STEADY)["model"]

    def _found(self, times: Mapping[str, Measured], kept: list[Any]) -> dict[str, Any]:
        tree = self._exchange.write(kept)
        return {"times": {name: asdict(measured) for name, measured in times.items()}, "calls": tree}


def settings() -> dict[str, str]:
    """What the reference runs under, by name."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "float32 convolutions": "TF32 allowed" if allows_tf32() else "TF32 not allowed",
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or "default",
        "gradients": "off",
    }


def _channels_last(model: nn.Module, inputs: list[Any]) -> torch.memory_format | None:
    """The format that fits inputs and parameters alike; None for 1-D models and for mixtures."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    dims = {value.dim() for value in inputs if isinstance(value, Tensor)} & formats.keys()
    parameters = {parameter.dim() for parameter in model.parameters()} & formats.keys()
    return formats[dims.pop()] if len(dims) == 1 and parameters <= dims else None


def _in_format(value: Any, memory_format: torch.memory_format) -> Any:
    fits = isinstance(value, Tensor) and value.dim() in (4, 5)
    return value.contiguous(memory_format=memory_format) if fits else value
