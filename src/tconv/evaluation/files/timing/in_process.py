"""Timing inside a worker process: one file's model alone, or by turns with that of another."""

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
from tconv.precision import allows_tf32
from tconv.sandbox.exchange import Exchange, Tree
from tconv.sandbox.gpu_memory import place_for, release
from tconv.sandbox.model_file import Interface, LoadedModel, ModelFileError, blamed, load
from tconv.sandbox.own_classes import restored_for
from tconv.sandbox.watch import Watch

#: Ways in which PyTorch runs a model: as it comes, and otherwise.
DEFAULT, BENCHMARK, CHANNELS_LAST, COMPILED = "default", "cudnn.benchmark", "channels_last", "torch.compile"
OTHERS = (BENCHMARK, CHANNELS_LAST)
_SEED = 0
#: What channels_last is, by the number of axes.
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: Of settings other than the default, whose medians are told and nothing is judged by.
_ROUNDS_OF_OTHERS = 4


class Stopwatch:
    """The target of a timing worker: one file's model, in one way after the other.

    A way is "default" or one of `OTHERS`. cuDNN keeps the kernel that it took first for a layer, whatever is asked for
    later: a process that ran the default has no "cudnn.benchmark". Those of `OTHERS` can follow each other.

    Args:
        path: the file, run on the current CUDA device.
        interface: by what it is used, as `Interface` has it.
        directory, side, digests: of the exchange.
        arguments: of the constructor, positional and by keyword.
        inputs: of a call.
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
        # Bound and made before any file is run: what the file patches is not what measures.
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
        """What measures."""
        return CudaClock()

    def prepare(self) -> None:
        """What every call needs is loaded now, while others run. The file, which has run, may say how, as by flags."""
        load_libraries()

    def compiled(self, module: nn.Module) -> Any:
        """The module under `torch.compile`."""
        return torch.compile(module)

    def begin(self, way: str, keeps: Keeps = "nothing") -> float:
        """Build the model and call it as a program would, until it is warm.

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
        """So many calls of what was begun: what `Clock.called_ms` gives."""
        assert self._call is not None
        with self._in(way), blamed(self._file.path, "forward"):
            return self._clock.called_ms(self._call, count, self._call.renew)

    def end(self) -> dict[str, Any]:
        """The end of what was begun: some of its `calls`, `changes_inputs`, and what the file has `rebound`."""
        assert self._call is not None
        self._call.settle()
        kept, changes = self._exchange.write(self._call.kept), self._call.changes_inputs()
        self.forget()
        return {"calls": kept, "changes_inputs": changes, "rebound": self._watch.rebound()}

    def forget(self) -> None:
        """Hand back what `begin` took, if it came to that: other processes need memory, too."""
        self._call = None
        release()

    def applies(self, way: str) -> bool:
        """Whether the model can run in that way."""
        return way != CHANNELS_LAST or _channels_last(self._made("default"), self._inputs) is not None

    def runs_in_evaluation(self) -> bool:
        """Whether the model gives something there: else it is timed as it was constructed."""
        call = TimedCall(self._made("default", evaluation=True), self._given("default"))
        try:
            with blamed(self._file.path, "forward"):
                call()
        except ModelFileError:
            return False
        return True

    def inference(self, way: str, evaluation: bool, keeps: Keeps = "nothing") -> dict[str, Any]:
        """Times of inference in that way, some of the `calls`, `changes_inputs` and `settings`."""
        self.forget()
        with self._in(way):
            call = self._warmed(self._made(way, evaluation), self._given(way), self._file, keeps)
            rounds = 10 if way == DEFAULT else _ROUNDS_OF_OTHERS
            times = interleave(self._clock, {way: call}, rounds=rounds, between={way: call.renew}, steady=STEADY)
        changes = call.changes_inputs()
        return {**self._found(times, call.kept), "changes_inputs": changes, "settings": settings(evaluation)}

    def together(self, model: str, interface: Sequence[str], evaluation: bool, keeps: Keeps) -> dict[str, Any]:
        """Times of inference of this file's model ("candidate") and of another's ("reference"), with equal weights.

        Beside the times, by name: `calls`, some of the candidate's, `changes_inputs`, and `rebound`, what its file has
        patched.
        """
        rebound = self._watch.rebound()
        file = load(model, Interface(*interface))
        watch = Watch()  # what that file puts elsewhere is its own affair
        reference, candidate = self._constructed(file, evaluation), self._constructed(self._file, evaluation)
        candidate.load_state_dict(reference.state_dict())
        given = copied(self._inputs, self.device)
        ours = self._warmed(candidate, restored_for(self._file, given), self._file, keeps)
        ours.settle()
        # Large ones both have together: two copies, and two results, can be more than there is room for.
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
        """While it is entered, the flags are those of the way."""
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or way == BENCHMARK
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _made(self, way: str, evaluation: bool = False) -> Any:
        """The model in that way."""
        model = self._constructed(self._file, evaluation)
        if way == CHANNELS_LAST:
            model.to(memory_format=_channels_last(model, self._inputs))
        if way != COMPILED:
            return model
        with blamed(self._file.path, "torch.compile"):
            return self.compiled(model)

    def _given(self, way: str) -> list[Any]:
        """A copy of the inputs on the device, in that way."""
        inputs = copied(self._inputs, self.device)
        if way == CHANNELS_LAST:
            inputs = [_in_channels_last(value) for value in inputs]
        return restored_for(self._file, inputs)

    def _constructed(self, file: LoadedModel, evaluation: bool) -> Any:
        args, kwargs = restored_for(file, self._arguments)
        module = settled(file.construct(_SEED, *args, **kwargs).to(self.device), file, _SEED, torch.device(self.device))
        return module.eval() if evaluation else module

    def _warmed(self, model: nn.Module, inputs: list[Any], file: LoadedModel, keeps: Keeps = "nothing") -> TimedCall:
        """Calls the file's model, the first of which may raise and build; the device is warm then."""
        call = TimedCall(model, inputs, keeps)
        with blamed(file.path, "forward"):
            self._clock.warm_up(call)
        release()  # what only building and trying out took
        return call

    def _found(self, times: Mapping[str, Measured], kept: list[Any]) -> dict[str, Any]:
        tree = self._exchange.write(kept)
        return {"times": {name: asdict(measured) for name, measured in times.items()}, "calls": tree}


def settings(evaluation: bool) -> dict[str, str]:
    """What the reference runs under, by name."""
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
    """The format that fits inputs and parameters alike; None for 1-D models and for mixtures."""
    dims = {value.dim() for value in inputs if isinstance(value, Tensor)} & _FORMATS.keys()
    parameters = {parameter.dim() for parameter in model.parameters()} & _FORMATS.keys()
    return _FORMATS[dims.pop()] if len(dims) == 1 and parameters <= dims else None


def _in_channels_last(value: Any) -> Any:
    fits = isinstance(value, Tensor) and value.dim() in _FORMATS
    return value.contiguous(memory_format=_FORMATS[value.dim()]) if fits else value
