"""`tconv verify`: is a candidate's ModelNew equal to Model."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tconv.cli.verdict_table import check_writable, show, working


class Device(str, Enum):
    """Where both sides run."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class Arithmetic(str, Enum):
    """What float32 convolutions may use."""

    match = "match"
    tf32 = "tf32"
    fp32 = "fp32"


ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.py", help="A file with Model, get_inputs, get_init_inputs.")]
CandidateFile = Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="A file with ModelNew.")]
PrecisionOption = Annotated[
    Arithmetic, typer.Option("--precision", help="What float32 may use: PyTorch's choice on the layer, TF32, or fp32.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="REPORT.json", help="Write the report here, too.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="For each step in the candidate's process.")
]


def verify(
    model: ModelFile,
    candidate: CandidateFile,
    device: Annotated[Device, typer.Option("--device", help="A GPU where there is one, or as you say.")] = Device.auto,
    vary_arguments: Annotated[
        bool, typer.Option("--vary-arguments", help="Build both with other constructor arguments, too.")
    ] = False,
    precision: PrecisionOption = Arithmetic.match,
    json: JsonOption = None,
    timeout: TimeoutOption = 300.0,
) -> int:
    """Say whether a candidate's ModelNew is equal to a model file's Model, and if not, why."""
    check_writable(json)
    with working(f"comparing {candidate.name} with {model.name}"):
        from tconv.evaluation.judge import judge

        report = judge(
            model,
            candidate,
            device=device.value,
            vary_arguments=vary_arguments,
            precision=precision.value,
            timeout_s=timeout,
        )
    return show(report, json)
