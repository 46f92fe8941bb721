"""What `tconv verify` and `tconv bench` have in common: a judgement, as a table, as files and as an exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tconv.cli.console import progress
from tconv.cli.options import Precision
from tconv.cli.reports import check_writable, write_reports
from tconv.cli.verdict_table import show

if TYPE_CHECKING:
    from tconv.problem import Problem
    from tconv.sandbox.model_file import Interface


def judged(
    model: Path,
    candidate: Path,
    json: Path | None,
    html: Path | None,
    *,
    interface: Interface,
    device: str = "auto",
    precision: Precision,
    vary_arguments: bool = False,
    training: bool = False,
    bench: bool = False,
    compile: bool = False,
    strict: bool = False,
    timeout_s: float,
) -> int:
    """Judge a candidate file, print and write what was found, and return the exit code.

    Args:
        json: where the report goes as JSON, too.
        html: where it goes as a page, too.
        strict: at the strict level.
        interface, device, precision, vary_arguments, training, bench, compile, timeout_s: as in
            `tconv.evaluation.files.judge.judge`.
    """
    from tconv.sandbox.worker import Workshop

    began = time.perf_counter()
    check_writable(json, html)
    with progress("starting") as say, Workshop() as workshop:
        # Torch is loaded here while that loads it.
        from tconv.evaluation.files.judge import judge
        from tconv.evaluation.steps import Steps
        from tconv.sandbox.gpu_memory import naming_shortage

        steps = Steps(say, began=began)
        with naming_shortage(lambda: steps.step):
            report = judge(
                model,
                candidate,
                interface=interface,
                device=device,
                vary_arguments=vary_arguments,
                training=training,
                precision=precision.value,
                bench=bench,
                compile=compile,
                level="strict" if strict else "default",
                timeout_s=timeout_s,
                workshop=workshop,
                say=steps,
                floor_seconds=_floor_seconds() if bench else None,
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
