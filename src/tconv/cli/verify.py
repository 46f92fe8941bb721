"""`tconv verify`: is a candidate's ModelNew equal to Model."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from tconv.cli.judging import judged
from tconv.cli.options import (
    CandidateFile,
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
    training: Annotated[
        bool, typer.Option("--training", help="Refuse a candidate that lacks gradients which Model has.")
    ] = False,
    strict: StrictOption = False,
    precision: PrecisionOption = Precision.match,
    json: JsonOption = None,
    html: HtmlOption = None,
    timeout: TimeoutOption = 300.0,
    model_name: ModelName = "Model",
    inputs: InputsOption = None,
    init: InitOption = None,
) -> int:
    """Say whether a candidate's ModelNew is equal to a model file's Model, and if not, why."""
    return judged(
        model,
        candidate,
        json,
        html,
        interface=interface_of(model_name, inputs, init),
        device=device.value,
        precision=precision,
        vary_arguments=vary_arguments,
        training=training,
        strict=strict,
        timeout_s=timeout,
    )
