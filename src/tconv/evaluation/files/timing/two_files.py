"""Times two files, as a program calls them and in inference, and PyTorch's other ways to run `Model`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tconv.errors import OutOfMemory, Trouble
from tconv.evaluation.files.sides.file_process import Arguments, CandidateFailed, CandidateRaised
from tconv.evaluation.files.timing.in_process import COMPILED, DEFAULT, OTHERS
from tconv.evaluation.files.timing.timed_call import Keeps
from tconv.evaluation.files.timing.timing_process import Place, TimedOutputs, TimedSide
from tconv.evaluation.timing import (
    CALLED,
    CALLED_ROUNDS,
    CALLED_ROUNDS_OF_OTHERS,
    Called,
    Measured,
    calls_a_round,
    cross_check,
    settle,
    settle_called,
)
from tconv.evaluation.verdict import AsCalled, Check, Series, Timing
from tconv.sandbox.exchange import Tree
from tconv.sandbox.model_file import CANDIDATE, Interface, ModelFileError
from tconv.sandbox.worker import RemoteError

#: The sides, and the candidate under `torch.compile`.
_OURS, _THEIRS, _OURS_COMPILED = "candidate", "reference", "candidate under torch.compile"


@dataclass(frozen=True)
class Kept:
    """Some of the timed calls of both sides, which the judge checks.

    Args:
        training: the mode of the calls; None for the mode as constructed.
    """

    candidate: list[TimedOutputs]
    reference: list[TimedOutputs]
    training: bool | None

    def first(self) -> Kept:
        """The first kept call of each side."""
        return replace(self, candidate=self.candidate[:1], reference=self.reference[:1])


@dataclass(frozen=True)
class Timed:
    """The times of both files.

    Args:
        kept: kept calls of each way in which both were called.
        compiled: kept calls of the candidate under `torch.compile`, if that was timed.
    """

    timing: Timing
    kept: tuple[Kept, ...]
    compiled: Kept | None = None


@dataclass(frozen=True)
class Timer:
    """Times two files on the GPU, on the model file's own inputs.

    Args:
        model: the model file, and the names that it is used by.
        arguments: the arguments of both constructors.
        inputs: writes the inputs of `get_inputs()` for a process to read.
        by_samples: whether the model computes each sample alone; then some samples of large calls are kept.
        computed: whether the judge computes `Model`'s results itself; then none of `Model`'s calls are kept.
        begun: processes of `Model` that have begun to start.
    """

    place: Place
    model: tuple[Path, Interface]
    candidate: Path
    arguments: Arguments
    inputs: Callable[[], Tree]
    by_samples: bool = False
    computed: bool = False
    begun: list[TimedSide] = field(default_factory=list)

    def time(self, floor_ms: float | None = None, compile: bool = False) -> Timed:
        """Times of `ModelNew` and of `Model`.

        Args:
            compile: also time both under `torch.compile`. A note names a side that does not work there.

        Raises:
            ModelFileError: `Model` fails, or takes too long.
            CandidateFailed: `ModelNew` fails, or its process reports impossible values.
        """
        keeps: Keeps = "samples" if self.by_samples else "calls"
        each: Mapping[str, Keeps] = {_OURS: keeps, _THEIRS: "nothing" if self.computed else keeps}
        with self._theirs() as theirs, self._ours() as ours:
            for side in (theirs, ours, *self.begun):  # nothing starts while something is timed
                side.ready()
            pair, kept, notes = _as_called({_OURS: ours, _THEIRS: theirs}, each)
            evaluation = theirs.runs_in_evaluation()
            training = False if evaluation else None
            alone, of_theirs = theirs.inference(DEFAULT, evaluation, each[_THEIRS])
            beside, of_ours = ours.together(self.model, evaluation, keeps)
            settings = theirs.settings
        if ours.changes_inputs and not theirs.changes_inputs:
            raise CandidateFailed(f"{self.candidate.name} changes its inputs while it is timed")
        others = _Others(evaluation, bool(pair), notes)
        with self._theirs() as theirs:
            for way in filter(theirs.applies, OTHERS):
                with others.noting(f"PyTorch with {way}"):
                    others.time(way, theirs, way)
        compiled = self._compiled(others, keeps) if compile else None
        reference, source = settle(beside[_THEIRS], alone)
        as_called, checks = _settled(pair, others.called) if pair else (None, ())
        timing = Timing(
            beside[_OURS].series,
            reference,
            source,
            floor_ms,
            {name: measured.host_us for name, measured in beside.items()},
            settings,
            (*(cross_check(name, beside[name]) for name in (_OURS, _THEIRS)), *checks),
            **_ways({name: measured.series for name, measured in others.inference.items()}),
            as_called=as_called,
            notes=tuple(notes),
        )
        in_inference = Kept(of_ours, of_theirs, training)
        of_compiled = None if compiled is None else Kept(compiled, of_theirs, training)
        return Timed(timing, (*kept, in_inference), of_compiled)

    def _compiled(self, others: _Others, keeps: Keeps) -> list[TimedOutputs] | None:
        """Time both under `torch.compile`, each in its own process. Returns the candidate's kept calls, if it works."""
        with others.noting("Model under torch.compile"), self._theirs() as theirs:
            others.time(COMPILED, theirs, COMPILED)
        calls = None
        with others.noting("ModelNew under torch.compile"), self._ours() as ours:
            calls = others.time(_OURS_COMPILED, ours, COMPILED, keeps)
        return calls

    def _theirs(self) -> TimedSide:
        if self.begun:
            side = self.begun.pop()
            side.device = self.place.device
            return side
        return TimedSide(self.place, *self.model, self.arguments, self.inputs)

    def _ours(self) -> TimedSide:
        return TimedSide(self.place, self.candidate, CANDIDATE, self.arguments, self.inputs, self.model[0])


@dataclass(frozen=True)
class _Others:
    """Times of other ways than the default, each in a process that has not run the default.

    Args:
        evaluation: whether inference is timed in evaluation mode.
        as_called: whether calls as a program makes them are timed.
        notes: the times that are not taken, and why.
    """

    evaluation: bool
    as_called: bool
    notes: list[str]
    called: dict[str, Called] = field(default_factory=dict)
    inference: dict[str, Measured] = field(default_factory=dict)

    def time(self, name: str, side: TimedSide, way: str, keeps: Keeps = "nothing") -> list[TimedOutputs]:
        """Add the times of a way under a name. Returns the kept calls of inference, if any."""
        called = _by_turns({name: side}, way, {name: "nothing"}, CALLED_ROUNDS_OF_OTHERS) if self.as_called else {}
        self.inference[name], calls = side.inference(way, self.evaluation, keeps)
        self.called.update(called)
        return calls

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Note errors of another way in one clause; for example, nothing may compile. They are no fault."""
        try:
            yield
        except (Trouble, CandidateFailed, RemoteError) as error:
            last = (str(error).strip().splitlines() or [""])[-1]
            self.notes.append(f"{what} was not timed: {last}")


def _by_turns(
    sides: Mapping[str, TimedSide], way: str, keeps: Mapping[str, Keeps], rounds: int = CALLED_ROUNDS
) -> dict[str, Called]:
    """Times of calls as programs make them, in a process for each side. The slowest side sets the number of calls."""
    count = calls_a_round(max([side.begin(way, keeps[name]) for name, side in sides.items()]))
    found: dict[str, list[Called]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(sides[name].called(way, count))
    return {name: Called.joined(of_side) for name, of_side in found.items()}


def _as_called(
    sides: Mapping[str, TimedSide], keeps: Mapping[str, Keeps]
) -> tuple[dict[str, Called], tuple[Kept, ...], list[str]]:
    """Times of both sides as programs call them, the kept calls, and notes.

    With gradients enabled, or in training, a model may raise or run out of memory. That is no fault, as only inference
    is required.
    """
    try:
        found = _by_turns(sides, DEFAULT, keeps)
        kept = Kept(sides[_OURS].end(), sides[_THEIRS].end(), training=None)
    except (CandidateRaised, ModelFileError, OutOfMemory) as error:
        for side in sides.values():
            side.forget()
        return {}, (), [f"not timed as called: {error}"]
    calls, usual = len(found[_OURS].events_ms), CALLED_ROUNDS * CALLED
    few = [f"timed as called {calls} times instead of {usual}, since a call takes long"] if calls < usual else []
    return found, (kept,), few


def _settled(pair: Mapping[str, Called], others: Mapping[str, Called]) -> tuple[AsCalled, tuple[Check, ...]]:
    """The times as called that count, and checks whether the clocks agree on both sides."""
    series, checks = settle_called(pair, others)
    ours, theirs = series.pop(_OURS), series.pop(_THEIRS)
    return AsCalled(ours, theirs, **_ways(series), calls=len(pair[_OURS].events_ms)), checks


def _ways(others: Mapping[str, Series]) -> dict[str, Any]:
    """The fields of `Sides` for ways other than the default."""
    alternatives = {name: series for name, series in others.items() if name != _OURS_COMPILED}
    return {"alternatives": alternatives, "compiled": others.get(_OURS_COMPILED)}
