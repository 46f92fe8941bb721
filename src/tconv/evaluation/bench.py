"""Timing two files: the reference in a process that never loads the candidate, then both by turns."""

from __future__ import annotations

from pathlib import Path

from tconv.evaluation.model_file import ModelFileError
from tconv.evaluation.side import CandidateFailed
from tconv.evaluation.timing import Measured, cross_check, settle
from tconv.evaluation.verdict import Timing
from tconv.evaluation.worker import WorkerFailed, Workshop

_TARGET = "tconv.evaluation.stopwatch:Stopwatch"


def time_files(
    workshop: Workshop, model: Path, candidate: Path, *, timeout_s: float, floor_ms: float | None = None
) -> Timing:
    """Times of `ModelNew` and of `Model`, on the GPU, at the model file's own inputs.

    Raises:
        ModelFileError: `Model` fails, or takes longer than `timeout_s`.
        CandidateFailed: `ModelNew` does.
    """
    try:
        with workshop.start(_TARGET, timeout_s=timeout_s, path=str(model)) as worker:
            found = worker.call("alone", timeout_s=timeout_s)
    except WorkerFailed as error:
        raise ModelFileError(f"timing {model.name} {error}") from error
    try:
        with workshop.start(_TARGET, timeout_s=timeout_s, path=str(model)) as worker:
            together = worker.call("together", timeout_s=timeout_s, candidate=str(candidate))
    except (WorkerFailed, ModelFileError) as error:
        raise CandidateFailed(f"timing {candidate.name} beside {model.name}: {error}") from error
    alone = {name: Measured.from_dict(fields) for name, fields in found["times"].items()}
    ours, beside = (Measured.from_dict(together[name]) for name in ("candidate", "reference"))
    reference, source = settle(beside, alone["default"])
    return Timing(
        candidate=ours.series,
        reference=reference,
        reference_source=source,
        floor_ms=floor_ms,
        host_us={"candidate": ours.host_us, "reference": beside.host_us},
        alternatives={name: measured.series.median for name, measured in alone.items() if name != "default"},
        settings=found["settings"],
        checks=(cross_check("candidate", ours), cross_check("reference", beside)),
    )
