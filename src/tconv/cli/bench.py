"""`tconv bench`: how fast is a candidate's ModelNew, once it is found equal."""

from __future__ import annotations

from tconv.cli.judging import judged
from tconv.cli.options import (
    CandidateFile,
    HtmlOption,
    JsonOption,
    ModelFile,
    Precision,
    PrecisionOption,
    TimeoutOption,
)


def bench(
    model: ModelFile,
    candidate: CandidateFile,
    precision: PrecisionOption = Precision.match,
    json: JsonOption = None,
    html: HtmlOption = None,
    timeout: TimeoutOption = 300.0,
) -> int:
    """Compare a candidate's ModelNew with Model, and time both on the GPU where they are equal."""
    return judged(model, candidate, json, html, precision=precision, bench=True, timeout_s=timeout)
