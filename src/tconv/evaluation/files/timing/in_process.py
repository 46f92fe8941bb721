"""Timing inside a worker process: one file's model alone, or by turns with another file's model."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tconv.evaluation.files.process.lazy_layers import settled
from tconv.evaluation.files.timing.timed_call import Keeps, TimedCall, are_large, copied
from tconv.evaluation.stopwatch import CudaClock, load_libraries
from tconv.evaluation.timing import STEADY, Clock, Measured, interleave
from tconv.memory import CHANNELS_LAST_FORMATS
from tconv.precision import allows_tf32
from tconv.sandbox.exchange import Exchange, Tree
from tconv.sandbox.gpu_memory import place_for, release
from tconv.sandbox.model_file import Interface, LoadedModel, ModelFileError, blamed, load
from tconv.sandbox.own_classes import restored_for
from tconv.sandbox.watch import Watch

#: The ways in which PyTorch runs a model: its default, and others.
DEFAULT, BENCHMARK, CHANNELS_LAST, COMPILED = "default", "cudnn.benchmark", "channels_last", "torch.compile"
OTHERS = (BENCHMARK, CHANNELS_LAST)
_SEED = 0
#: For settings other than the default: their medians are reported, and no verdict depends on them.
_ROUNDS_OF_OTHERS = 4


class Stopwatch:
    """The target of a timing worker: times one file's model, in one way after the other.

    A way is "default" or one of `OTHERS`. cuDNN keeps the first kernel that it chose for a layer, so a process that ran
    the default cannot time "cudnn.benchmark". The ways of `OTHERS` can follow each other.

    Args:
        path: the file, run on the current CUDA device.
        interface: the names that the file is used by, as in `Interface`.
        directory, side, digests: arguments of the exchange.
        arguments: positional and keyword arguments of the constructor.
        inputs: the inputs of a call.
    """

    device = "cuda"

    def __init__(
        self,
        path: str,
        interface: Sequence[str],
        directory: str,
        side: str,
        arguments: Tree,
        inputs: Tree,
        digests: bool = True,
    ) -> None:
        # Made before any file runs, so that patches of the file do not reach the clock.
        self._clock = self.clock()
        self._exchange = Exchange(directory, side, digests=digests)
        self._arguments = self._exchange.read(arguments)
        place = place_for(self._exchange.size(inputs), torch.device(self.device))
        self._inputs: list[Any] = self._exchange.read(inputs, place)
        self._watch = Watch()
        self._file = load(path, Interface(*interface))
        self._call: TimedCall | None = None
        self.prepare()

    def clock(self) -> Clock:
        """The clock of this process."""
        return CudaClock()

    def prepare(self) -> None:
        """Load libraries now, while other processes run. The file has run, so flags that it sets are in force."""
        load_libraries()

    def compiled(self, module: nn.Module) -> Any:
        """The module under `torch.compile`."""
        return torch.compile(module)

    def begin(self, way: str, keeps: Keeps = "nothing") -> float:
        """Build the model and call it like a program, until it is warm.

        Returns:
            Milliseconds of a call.
        """
        with self._in(way):
            model = self._made(way)
            call = TimedCall(model, self._given(way), keeps, plain=True)
            with blamed(self._file.path, "forward"):
                milliseconds = self._clock.warm_called(call, call.renew)
        release()  # what only building and trying out took
        self._call = call
        return milliseconds

    def called(self, way: str, count: int) -> Any:
        """`Clock.called_ms` for `count` calls of the model that `begin` built."""
        assert self._call is not None
        with self._in(way), blamed(self._file.path, "forward"):
            return self._clock.called_ms(self._call, count, self._call.renew)

    def end(self) -> dict[str, Any]:
        """End the way that `begin` began. Returns some `calls`, `changes_inputs`, and what the file has `rebound`."""
        assert self._call is not None
        self._call.settle()
        kept, changes = self._exchange.write(self._call.kept), self._call.changes_inputs()
        self.forget()
        return {"calls": kept, "changes_inputs": changes, "rebound": self._watch.rebound()}

    def forget(self) -> None:
        """Free the memory that `begin` took, for other processes."""
        self._call = None
        release()

    def applies(self, way: str) -> bool:
        """Whether the model can run in that way."""
        return way != CHANNELS_LAST or _channels_last(self._made("default"), self._inputs) is not None

    def runs_in_evaluation(self) -> bool:
        """Whether the model runs in evaluation mode. Else it is timed as constructed."""
        call = TimedCall(self._made("default", evaluation=True), self._given("default"))
        try:
            with blamed(self._file.path, "forward"):
                call()
        except ModelFileError:
            return False
        return True

    def inference(self, way: str, evaluation: bool, keeps: Keeps = "nothing") -> dict[str, Any]:
        """Times of inference in this way, some of the `calls`, `changes_inputs` and `settings`."""
        self.forget()
        with self._in(way):
            call = self._warmed(self._made(way, evaluation), self._given(way), self._file, keeps)
            rounds = 10 if way == DEFAULT else _ROUNDS_OF_OTHERS
            times = interleave(self._clock, {way: call}, rounds=rounds, between={way: call.renew}, steady=STEADY)
        changes = call.changes_inputs()
        return {**self._found(times, call.kept), "changes_inputs": changes, "settings": settings(evaluation)}

    def together(self, model: str, interface: Sequence[str], evaluation: bool, keeps: Keeps) -> dict[str, Any]:
        """Times of inference of this file's model ("candidate") and another file's ("reference"), with equal weights.

        The result also has some `calls` of the candidate, `changes_inputs`, and `rebound`: functions that its file has
        replaced.
        """
        rebound = self._watch.rebound()
        file = load(model, Interface(*interface))
        watch = Watch()  # the other file's patches do not count
        reference, candidate = self._constructed(file, evaluation), self._constructed(self._file, evaluation)
        candidate.load_state_dict(reference.state_dict())
        given = copied(self._inputs, self.device)
        ours = self._warmed(candidate, restored_for(self._file, given), self._file, keeps)
        ours.settle()
        # Both models share large inputs, as memory may not hold two copies and two results.
        given = given if are_large(given) else copied(self._inputs, self.device)
        theirs = self._warmed(reference, restored_for(file, given), file)

        def before(call: TimedCall, other: TimedCall) -> None:
            other.settle()
            call.renew()

        renewals = {"candidate": partial(before, ours, theirs), "reference": partial(before, theirs, ours)}
        times = interleave(self._clock, {"candidate": ours, "reference": theirs}, between=renewals, steady=STEADY)
        changes = ours.changes_inputs() or theirs.changes_inputs()
        return {**self._found(times, ours.kept), "changes_inputs": changes, "rebound": [*rebound, *watch.rebound()]}

    @contextmanager
    def _in(self, way: str) -> Iterator[None]:
        """Within the block, flags are set for the way."""
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or way == BENCHMARK
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _made(self, way: str, evaluation: bool = False) -> Any:
        """The model, built for this way."""
        model = self._constructed(self._file, evaluation)
        if way == CHANNELS_LAST:
            model.to(memory_format=_channels_last(model, self._inputs))
        if way != COMPILED:
            return model
        with blamed(self._file.path, "torch.compile"):
            return self.compiled(model)

    def _given(self, way: str) -> list[Any]:
        """A copy of the inputs on the device, in this way's memory format."""
        inputs = copied(self._inputs, self.device)
        if way == CHANNELS_LAST:
            inputs = [_in_channels_last(value) for value in inputs]
        return restored_for(self._file, inputs)

    def _constructed(self, file: LoadedModel, evaluation: bool) -> Any:
        args, kwargs = restored_for(file, self._arguments)
        module = settled(file.construct(_SEED, *args, **kwargs).to(self.device), file, _SEED, torch.device(self.device))
        return module.eval() if evaluation else module

    def _warmed(self, model: nn.Module, inputs: list[Any], file: LoadedModel, keeps: Keeps = "nothing") -> TimedCall:
        """A timed model that has been called until the device is warm. The first call may build kernels, or raise."""
        call = TimedCall(model, inputs, keeps)
        with blamed(file.path, "forward"):
            self._clock.warm_up(call)
        release()  # what only building and trying out took
        return call

    def _found(self, times: Mapping[str, Measured], kept: list[Any]) -> dict[str, Any]:
        tree = self._exchange.write(kept)
        return {"times": {name: asdict(measured) for name, measured in times.items()}, "calls": tree}


def settings(evaluation: bool) -> dict[str, str]:
    """The settings that the reference runs under, by name."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "float32 convolutions": "TF32 allowed" if allows_tf32() else "TF32 not allowed",
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or "default",
        "inference": f"{'eval()' if evaluation else 'as constructed'}, no_grad()",
    }


def _channels_last(model: nn.Module, inputs: list[Any]) -> torch.memory_format | None:
    """The format that fits inputs and parameters; None for 1-D models and for mixtures."""
    dims = {value.dim() for value in inputs if isinstance(value, Tensor)} & CHANNELS_LAST_FORMATS.keys()
    parameters = {parameter.dim() for parameter in model.parameters()} & CHANNELS_LAST_FORMATS.keys()
    return CHANNELS_LAST_FORMATS[dims.pop()] if len(dims) == 1 and parameters <= dims else None


def _in_channels_last(value: Any) -> Any:
    fits = isinstance(value, Tensor) and value.dim() in CHANNELS_LAST_FORMATS
    return value.contiguous(memory_format=CHANNELS_LAST_FORMATS[value.dim()]) if fits else value
