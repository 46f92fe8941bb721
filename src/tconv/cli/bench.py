"""`tconv bench`: how fast is a candidate's ModelNew, once it is found equal."""

from __future__ import annotations

from tconv.cli.judging import judged
from tconv.cli.options import (
    CandidateFile,
    CompileOption,
    HtmlOption,
    InitOption,
    InputsOption,
    JsonOption,
    ModelFile,
    ModelName,
    Precision,
    PrecisionOption,
    StrictOption,
    TimeoutOption,
    interface_of,
)


def bench(
    model: ModelFile,
    candidate: CandidateFile,
    strict: StrictOption = False,
    precision: PrecisionOption = Precision.match,
    compile: CompileOption = False,
    json: JsonOption = None,
    html: HtmlOption = None,
    timeout: TimeoutOption = 300.0,
    model_name: ModelName = "Model",
    inputs: InputsOption = None,
    init: InitOption = None,
) -> int:
    """Compare a candidate's ModelNew with Model, and time both on the GPU where they are equal."""
    interface = interface_of(model_name, inputs, init)
    options = {"interface": interface, "precision": precision, "strict": strict, "timeout_s": timeout}
    return judged(model, candidate, json, html, bench=True, compile=compile, **options)  # type: ignore[arg-type]
