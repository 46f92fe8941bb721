"""`tconv verify`: is a candidate's ModelNew equal to Model."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

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


class Device(str, Enum):
    """Where both sides run."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


def verify(
    model: ModelFile,
    candidate: CandidateFile,
    device: Annotated[Device, typer.Option("--device", help="A GPU where there is one, or as you say.")] = Device.auto,
    vary_arguments: Annotated[
        bool, typer.Option("--vary-arguments", help="Other sizes and constructor arguments, too.")
    ] = False,
    precision: PrecisionOption = Precision.match,
    json: JsonOption = None,
    html: HtmlOption = None,
    timeout: TimeoutOption = 300.0,
) -> int:
    """Say whether a candidate's ModelNew is equal to a model file's Model, and if not, why."""
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
                device=device.value,
                vary_arguments=vary_arguments,
                precision=precision.value,
                timeout_s=timeout,
                say=steps,
            )
    write_reports({**report.to_dict(), "seconds": steps.seconds()}, json, html)
    return show(report)
