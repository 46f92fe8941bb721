"""Options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Precision(str, Enum):
    """What --precision takes: the arithmetic of float32 convolutions."""

    match = "match"
    tf32 = "tf32"
    fp32 = "fp32"


ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.py", help="A file with Model, get_inputs, get_init_inputs.")]
CandidateFile = Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="A file with ModelNew.")]
PrecisionOption = Annotated[
    Precision, typer.Option("--precision", help="What float32 may use: PyTorch's choice on the layer, TF32, or fp32.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="REPORT.json", help="Write the report here, too.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="REPORT.html", help="Write it as a web page, too.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="For each step in the candidate's process.")
]
