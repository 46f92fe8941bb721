"""Timing two files: the reference in a process that never loads the candidate, then both by turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tconv.evaluation.files.side import CandidateFailed
from tconv.evaluation.files.timed_call import Keeps
from tconv.evaluation.files.timed_files import Stopwatch
from tconv.evaluation.timing import Measured, cross_check, settle
from tconv.evaluation.verdict import Timing
from tconv.sandbox.exchange import Exchange, Malformed, Tree
from tconv.sandbox.model_file import Interface, ModelFileError
from tconv.sandbox.worker import RemoteError, WorkerFailed, Workshop


@dataclass(frozen=True)
class TimedOutputs:
    """One of the calls that were timed: the values that it was given and what it returned."""

    inputs: list[Any]
    outputs: Any


@dataclass(frozen=True)
class Timed:
    """The times of both files, and some of the calls that counted: only a right result is worth its time."""

    timing: Timing
    candidate: list[TimedOutputs]
    reference: list[TimedOutputs]


@dataclass(frozen=True)
class Timer:
    """Starts the processes that time.

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

    def time(
        self,
        model: tuple[Path, Interface],
        candidate: Path,
        inputs: Callable[[], Tree],
        *,
        floor_ms: float | None = None,
        by_samples: bool = False,
        computed: bool = False,
    ) -> Timed:
        """Times of `ModelNew` and of `Model`, on the GPU, at the model file's own inputs.

        Args:
            model: the file, and by what it is used.
            inputs: writes those of `get_inputs()` for a process to read.
            by_samples: the model computes each sample alone: of large calls some samples are kept.
            computed: none of `Model`'s own calls are kept, since the judge computes what it returns.

        Raises:
            ModelFileError: `Model` fails, or takes longer than `timeout_s`.
            CandidateFailed: `ModelNew` does, or what its process tells cannot be true.
        """
        try:
            kept: Keeps = "samples" if by_samples else "calls"
            keeps: Keeps = "nothing" if computed else kept
            found, alone, theirs = self._run(model, "alone", keeps=keeps, inputs=inputs())
        except WorkerFailed as error:
            raise ModelFileError(f"timing {model[0].name} {error}") from error
        given = {"candidate": str(candidate), "keeps": kept, "inputs": inputs()}
        try:
            told, times, calls = self._run(model, "together", **given)
            ours, beside = times["candidate"], times["reference"]
            rebound = ", ".join(map(str, told["rebound"]))
            changes = bool(told["changes_inputs"])
        except (WorkerFailed, ModelFileError) as error:
            raise CandidateFailed(f"timing {candidate.name} beside {model[0].name}: {error}") from error
        except (RemoteError, Malformed, LookupError, TypeError, ValueError) as error:
            last = (str(error).strip().splitlines() or [""])[-1]
            raise CandidateFailed(f"timing {candidate.name} beside {model[0].name} failed: {last}") from error
        if rebound:
            raise CandidateFailed(f"{candidate.name} puts something else in place of {rebound}")
        if changes and not found["changes_inputs"]:
            raise CandidateFailed(f"{candidate.name} changes its inputs while it is timed")
        reference, source = settle(beside, alone["default"])
        timing = Timing(
            candidate=ours.series,
            reference=reference,
            reference_source=source,
            floor_ms=floor_ms,
            host_us={"candidate": ours.host_us, "reference": beside.host_us},
            alternatives={name: measured.series.median for name, measured in alone.items() if name != "default"},
            settings=found["settings"],
            checks=(cross_check("candidate", ours), cross_check("reference", beside)),
        )
        return Timed(timing, calls, theirs)

    def _run(
        self, model: tuple[Path, Interface], method: str, **arguments: Any
    ) -> tuple[Mapping[str, Any], dict[str, Measured], list[TimedOutputs]]:
        name, directory = self.workshop.unused_name(), str(self.workshop.directory)
        path, interface = model
        with self.workshop.start(
            Stopwatch,
            timeout_s=self.timeout_s,
            path=str(path),
            interface=interface,
            directory=directory,
            side=name,
            digests=self.digests,
        ) as worker:
            found = worker.call(method, timeout_s=self.timeout_s, **arguments)
        times = {setting: Measured.from_dict(fields) for setting, fields in found["times"].items()}
        calls = Exchange(directory, f"{name}-judge", self.limit_bytes, digests=self.digests).read(
            found["calls"], self.device
        )
        return found, times, [TimedOutputs(inputs, outputs) for inputs, outputs in calls]
