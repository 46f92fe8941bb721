"""A file in a process that times it, as whoever times two files sees it."""

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
    """One of the calls that were timed: the values that it was given and what it returned."""

    inputs: list[Any]
    outputs: Any


@dataclass(frozen=True)
class Place:
    """Where processes that time are started, and how values pass to them.

    Args:
        device: where outputs are read to.
        limit_bytes: the most that one tensor of them may span.
        digests: of values on their way between processes.
    """

    workshop: Workshop
    timeout_s: float
    device: torch.device
    limit_bytes: int | None = None
    digests: bool = True


class TimedSide:
    """A `Stopwatch` in a worker of its own, whose methods have the names of these. A context manager.

    Its process starts while others run; who asks it something first waits for that.

    Args:
        arguments: of the constructor.
        inputs: writes those of `get_inputs()` for a process to read.
        beside: the model file, where this is a candidate for it; else this is `Model`.

    Raises:
        ModelFileError: `Model` fails, or takes too long. So does each method.
        CandidateFailed: `ModelNew` does, or what its process tells cannot be true. So does each method.
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
        #: Where outputs are read to.
        self.device = place.device
        #: Whether calls did more to the inputs than to move their values, so far.
        self.changes_inputs = False
        #: What its last `inference` ran under.
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
        """Waits until the process has started, and nothing of it runs."""
        if not self._started:
            self._started = True
            with self._faults():
                self._worker.finish()

    def begin(self, way: str, keeps: Keeps) -> float:
        """Milliseconds of a call as a program makes it, once that is warm."""
        with self._faults():
            (milliseconds,) = as_times([self._call("begin", way=way, keeps=keeps)])
            return milliseconds

    def called(self, way: str, count: int) -> Called:
        """A round of such calls."""
        with self._faults():
            events, wall = map(as_times, self._call("called", way=way, count=count))
            return Called(events, wall)

    def end(self) -> list[TimedOutputs]:
        """The end of such calls, of which some were kept."""
        with self._faults():
            return self._kept(self._call("end"))

    def forget(self) -> None:
        """Hand back what `begin` took: the other side's process needs memory, too."""
        with self._faults():
            self._call("forget")

    def applies(self, way: str) -> bool:
        """Whether the model can run in that way."""
        with self._faults():
            return bool(self._call("applies", way=way))

    def runs_in_evaluation(self) -> bool:
        """Whether the model gives something there."""
        with self._faults():
            return bool(self._call("runs_in_evaluation"))

    def inference(self, way: str, evaluation: bool, keeps: Keeps) -> tuple[Measured, list[TimedOutputs]]:
        """Times of inference, and some of the calls."""
        with self._faults():
            found = self._call("inference", way=way, evaluation=evaluation, keeps=keeps)
            self.settings = found["settings"]
            return Measured.from_dict(found["times"][way]), self._kept(found)

    def together(
        self, model: tuple[Path, Interface], evaluation: bool, keeps: Keeps
    ) -> tuple[dict[str, Measured], list[TimedOutputs]]:
        """Times of inference of "candidate" and "reference", by turns in the candidate's process, and its calls."""
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
        """Turns what the process reports into this side's failure, of one line."""
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
