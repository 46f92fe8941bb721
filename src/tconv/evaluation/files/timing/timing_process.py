"""The judge's view of a process that times one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tconv.evaluation.files.sides.file_process import Arguments, CandidateFailed, CandidateRaised
from tconv.evaluation.files.timing.in_process import Stopwatch
from tconv.evaluation.files.timing.timed_call import Keeps
from tconv.evaluation.timing import Called, Measured, as_times
from tconv.sandbox.exchange import Exchange, Malformed, Tree
from tconv.sandbox.model_file import Interface, ModelFileError
from tconv.sandbox.worker import RemoteError, WorkerFailed, Workshop


@dataclass(frozen=True)
class TimedOutputs:
    """A timed call: its inputs and its outputs."""

    inputs: list[Any]
    outputs: Any


@dataclass(frozen=True)
class Place:
    """The workshop of processes that time, and the way in which values pass to them.

    Args:
        device: the device that outputs are read to.
        limit_bytes: the most bytes that one tensor of outputs may span.
        digests: whether values between processes have digests.
    """

    workshop: Workshop
    timeout_s: float
    device: torch.device
    limit_bytes: int | None = None
    digests: bool = True


class TimedSide:
    """A `Stopwatch` in a worker process; methods of the same names call it. A context manager.

    The process starts in the background. The first call waits for the start.

    Args:
        arguments: the arguments of the constructor.
        inputs: writes the inputs of `get_inputs()` for a process to read.
        beside: the model file, if this is a candidate; None if this is `Model`.

    Raises:
        ModelFileError: `Model` fails, or takes too long. Each method may raise it.
        CandidateFailed: `ModelNew` fails, or its process reports impossible values. Each method may raise it.
    """

    def __init__(
        self,
        place: Place,
        path: Path,
        interface: Interface,
        arguments: Arguments,
        inputs: Callable[[], Tree],
        beside: Path | None = None,
    ) -> None:
        self._path, self._beside, self._timeout_s = path, beside, place.timeout_s
        #: The device that outputs are read to.
        self.device = place.device
        #: Whether a call has changed its inputs so far.
        self.changes_inputs = False
        #: The settings of the last `inference`.
        self.settings: dict[str, str] = {}
        directory, name = str(place.workshop.directory), place.workshop.unused_name()
        self._exchange = Exchange(directory, f"{name}-judge", place.limit_bytes, digests=place.digests)
        self._started = False
        with self._faults():
            self._worker = place.workshop.begin(
                Stopwatch,
                timeout_s=place.timeout_s,
                path=str(path),
                interface=interface,
                directory=directory,
                side=name,
                arguments=self._exchange.write(list(arguments)),
                inputs=inputs(),
                digests=place.digests,
            )

    def ready(self) -> None:
        """Wait until the process has started and is idle."""
        if not self._started:
            self._started = True
            with self._faults():
                self._worker.finish()

    def begin(self, way: str, keeps: Keeps) -> float:
        """Begin calls as a program makes them. Returns the milliseconds of a warm call."""
        with self._faults():
            (milliseconds,) = as_times([self._call("begin", way=way, keeps=keeps)])
            return milliseconds

    def called(self, way: str, count: int) -> Called:
        """A round of such calls."""
        with self._faults():
            events, wall = map(as_times, self._call("called", way=way, count=count))
            return Called(events, wall)

    def end(self) -> list[TimedOutputs]:
        """End these calls. Returns the kept ones."""
        with self._faults():
            return self._kept(self._call("end"))

    def forget(self) -> None:
        """Free the memory that `begin` took, for the other side's process."""
        with self._faults():
            self._call("forget")

    def applies(self, way: str) -> bool:
        """Whether the model can run in that way."""
        with self._faults():
            return bool(self._call("applies", way=way))

    def runs_in_evaluation(self) -> bool:
        """Whether the model runs in evaluation mode."""
        with self._faults():
            return bool(self._call("runs_in_evaluation"))

    def inference(self, way: str, evaluation: bool, keeps: Keeps) -> tuple[Measured, list[TimedOutputs]]:
        """Times of inference, and the kept calls."""
        with self._faults():
            found = self._call("inference", way=way, evaluation=evaluation, keeps=keeps)
            self.settings = found["settings"]
            return Measured.from_dict(found["times"][way]), self._kept(found)

    def together(
        self, model: tuple[Path, Interface], evaluation: bool, keeps: Keeps
    ) -> tuple[dict[str, Measured], list[TimedOutputs]]:
        """Times of inference of "candidate" and "reference", by turns in one process, and the former's kept calls."""
        path, interface = model
        with self._faults():
            found = self._call("together", model=str(path), interface=interface, evaluation=evaluation, keeps=keeps)
            times = {side: Measured.from_dict(found["times"][side]) for side in ("candidate", "reference")}
            return times, self._kept(found)

    def _call(self, method: str, **arguments: Any) -> Any:
        self.ready()
        return self._worker.call(method, timeout_s=self._timeout_s, **arguments)

    def _kept(self, found: dict[str, Any]) -> list[TimedOutputs]:
        calls = self._exchange.read(found["calls"], self.device)
        self.changes_inputs |= bool(found["changes_inputs"])
        if rebound := ", ".join(map(str, found.get("rebound", ()))):
            raise CandidateFailed(f"{self._path.name} puts something else in place of {rebound}")
        return [TimedOutputs(inputs, outputs) for inputs, outputs in calls]

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn errors of the process into this side's failure, in one line."""
        of_model = self._beside is None
        doing = f"timing {self._path.name}" + ("" if self._beside is None else f" beside {self._beside.name}")
        try:
            yield
        except WorkerFailed as error:
            raise (ModelFileError if of_model else CandidateFailed)(f"{doing}: {error}") from error
        except ModelFileError as error:
            if of_model:
                raise
            raise CandidateRaised(f"{doing}: {error}") from error
        except (RemoteError, Malformed, LookupError, TypeError, ValueError) as error:
            if of_model:
                raise
            last = (str(error).strip().splitlines() or [""])[-1]
            raise CandidateFailed(f"{doing} failed: {last}") from error

    def __enter__(self) -> TimedSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._worker.close()
