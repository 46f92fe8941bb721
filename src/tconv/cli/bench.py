"""`tconv bench`: how fast is a candidate's ModelNew, once it is found equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tconv.cli.console import progress
from tconv.cli.options import (
    CandidateFile,
    HtmlOption,
    JsonOption,
    ModelFile,
    Precision,
    PrecisionOption,
    TimeoutOption,
)
from tconv.cli.reports import check_writable, write_reports
from tconv.cli.verdict_table import show

if TYPE_CHECKING:
    from tconv.problem import Problem


def bench(
    model: ModelFile,
    candidate: CandidateFile,
    precision: PrecisionOption = Precision.match,
    json: JsonOption = None,
    html: HtmlOption = None,
    timeout: TimeoutOption = 300.0,
) -> int:
    """Compare a candidate's ModelNew with Model, and time both on the GPU where they are equal."""
    check_writable(json, html)
    with progress("starting") as say:
        from tconv.evaluation.files.judge import judge
        from tconv.evaluation.steps import Steps
        from tconv.sandbox.gpu_memory import naming_shortage

        steps = Steps(say)
        with naming_shortage(lambda: steps.step):
            report = judge(
                model,
                candidate,
                device="auto",
                precision=precision.value,
                bench=True,
                timeout_s=timeout,
                say=steps,
                floor_seconds=_floor_seconds(),
            )
    write_reports({**report.to_dict(), "seconds": steps.seconds()}, json, html)
    return show(report)


def _floor_seconds() -> Callable[[Problem], float | None] | None:
    """The roofline bound on the GPU at hand; None where nobody can tell."""
    import torch

    from tconv.errors import MissingToolchain
    from tconv.jit.loader import gpu_of
    from tconv.planner import floor_seconds

    if not torch.cuda.is_available():
        return None
    try:
        gpu = gpu_of(torch.cuda.current_device())
    except MissingToolchain:
        return None
    return lambda problem: floor_seconds(problem, gpu)
