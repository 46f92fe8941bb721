"""`tconv tune`: measure the kernels that the planner puts in front, and keep the fastest for calls and for files."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tconv.cli import exit_codes
from tconv.cli.console import messages, progress, progress_bar, results
from tconv.cli.options import InitOption, InputsOption, ModelFile, ModelName, Precision, interface_of
from tconv.errors import Trouble

if TYPE_CHECKING:
    from tconv.planner import Gpu
    from tconv.planner.tuned import Question
    from tconv.rewriter.fusing import Fused
    from tconv.sandbox.model_file import Interface
    from tconv.tuning.jobs import Job
    from tconv.tuning.measure import Answer, Discarded

_HEADINGS = ("layer", "problem", "PyTorch ms", "first ms", "best ms", "gain", "plan")
_FIGURES = _HEADINGS[2:6]


def tune(
    model: ModelFile,
    first: Annotated[int, typer.Option("--first", min=1, metavar="N", help="How many kernels a layer tries.")] = 12,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be tried, and measure nothing.")] = False,
    precision: Annotated[
        Precision,
        typer.Option("--precision", help="Arithmetic of float32 layers: what PyTorch does, TF32, or full float32."),
    ] = Precision.match,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Measure with input and output in channels_last.")
    ] = False,
    model_name: ModelName = "Model",
    inputs: InputsOption = None,
    init: InitOption = None,
) -> int:
    """Measure which kernels are the fastest for a model's layers, and keep that for this GPU."""
    import torch

    from tconv.planner import Gpu

    interface = interface_of(model_name, inputs, init)
    has_gpu = torch.cuda.is_available()
    if not has_gpu and not dry_run:
        raise Trouble("tune measures on a GPU, and there is none here; --dry-run lists what it would try")
    if has_gpu:
        from tconv.jit.loader import gpu_of

        gpu = gpu_of(torch.cuda.current_device())
    else:
        gpu = Gpu.h200()
    with progress(f"planning for {model.name}"):
        found = _traced(model, interface)
        jobs = _jobs(found, gpu, precision, first, channels_last, device="cuda" if has_gpu else "cpu")
    if dry_run:
        _list(jobs, gpu)
        remark = "" if has_gpu else "; there is no GPU here"
        results().print(f"Predicted for one {gpu.name} ({gpu.arch}){remark}. Nothing was measured.", soft_wrap=True)
        return exit_codes.EQUAL
    return _measure(jobs, gpu)


def _traced(model: Path, interface: Interface) -> Fused:
    from tconv.rewriter.fusing import with_epilogues
    from tconv.sandbox.model_file import ModelFileError
    from tconv.sandbox.trace import trace
    from tconv.sandbox.worker import WorkerFailed, Workshop

    try:
        with Workshop(traces=True) as workshop:
            found = trace(model, interface, workshop=workshop)
            if not found.layers:
                raise ModelFileError(f"{model.name}: the forward pass runs no transposed convolution: nothing to tune")
            return with_epilogues(model, found, workshop, interface)
    except WorkerFailed as failure:
        raise Trouble(f"{model.name}: the process that runs it {failure}") from None


def _jobs(found: Fused, gpu: Gpu, precision: Precision, first: int, channels_last: bool, device: str) -> list[Job]:
    import torch

    from tconv.evaluation.precision import resolve
    from tconv.tuning.jobs import jobs

    resolved = functools.partial(resolve, device=torch.device(device))
    asked = functools.partial(jobs, found.trace, gpu, precision.value, resolved, first, channels_last)
    # Alone for modules and functions of the library, with programs for its backend and for written files.
    return list({job.problem: job for job in (*asked(), *asked(programs=found.programs))}.values())


def _measure(jobs: Sequence[Job], gpu: Gpu) -> int:
    """Measures every job. What was found out by then is shown, and kept, where it is interrupted."""
    from tconv.evaluation.stopwatch import CudaClock
    from tconv.jit.toolchain import check_driver
    from tconv.jit.tuned import check_writable, path_of, store
    from tconv.tuning.compilers import compilers
    from tconv.tuning.measure import Answer, Tuner

    check_driver()
    check_writable(gpu)
    answers: list[Answer] = []
    discarded: list[Discarded] = []
    try:
        with compilers() as pool, progress_bar(sum(len(job.kernels) for job in jobs)) as say:
            tuner = Tuner(gpu, CudaClock(), pool, functools.partial(store, gpu), say)
            for found in tuner.run(jobs):
                if isinstance(found, Answer):
                    answers.append(found)
                else:
                    discarded.append(found)
                    _complain(found)
    finally:
        _show(answers)
        if any(answer.tuned for answer in answers):
            results().print(f"Kept in {path_of(gpu.name)}", markup=False, soft_wrap=True)
    return exit_codes.NOT_EQUAL if discarded else exit_codes.EQUAL


def _complain(discarded: Discarded) -> None:
    from rich.text import Text

    kernel = discarded.kernel
    which = f"{discarded.job.name}: {kernel.family} with {_fields(kernel.tile)}"
    what = f"{which}: {discarded.reason}. Not used: this is a bug in tconv; please report it"
    messages().print(Text(what, "bold red"), soft_wrap=True)


# ---- what is printed


def _list(jobs: Iterable[Job], gpu: Gpu) -> None:
    """What would be tried: a line for each kernel, with what is predicted of it."""
    console = results()
    for job in jobs:
        console.print(f"[bold]{job.name}[/]: {_problem(job.questions[0])}", soft_wrap=True)
        # The library and written files ask for the same layer in different arithmetic: most kernels answer both.
        found = {kernel: seconds for candidates in job.candidates for kernel, seconds in candidates}
        for kernel, seconds in sorted(found.items(), key=lambda each: each[1]):
            line = f"  {seconds * 1e3:.4f} ms  {kernel.family} {kernel.layer.precision}: {_fields(kernel.tile)}"
            console.print(line, markup=False, soft_wrap=True)
        if not found:
            console.print(f"  no kernel runs it on {gpu.name}", markup=False, soft_wrap=True)


def _show(answers: Sequence[Answer]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not answers:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in _FIGURES else "left", overflow="fold")
    for answer in answers:
        table.add_row(*map(Text, _cells(answer)))
    results().print(table)


def _cells(answer: Answer) -> Iterator[str]:
    """A row of the table; the gain is that over the kernel that the planner takes without a measurement."""
    yield answer.job.name
    yield _problem(answer.question)
    yield f"{answer.pytorch_ms:.4g}"
    yield "" if answer.first_ms is None else f"{answer.first_ms:.4g}"
    tuned = answer.tuned
    if tuned is None:
        yield from ("", "", "PyTorch: no kernel")
        return
    yield f"{tuned.milliseconds:.4g}"
    yield "" if answer.first_ms is None else f"{answer.first_ms / tuned.milliseconds:.2f}x"
    yield f"PyTorch, which is faster than {tuned.family}" if tuned.prefers_pytorch else tuned.family


def _problem(question: Question) -> str:
    """What is asked: the layer, its input, and the arithmetic and memory format where they are not the plain ones."""
    words = [question.problem.layer.describe()]
    rounded = question.tensor_core_precision
    if rounded not in (None, question.problem.layer.precision):
        words.append(f"({rounded} on tensor cores)")
    words.append("on " + "x".join(map(str, question.problem.input_shape)))
    return " ".join([*words, *(["channels_last"] if question.channels_last else [])])


def _fields(tile: object) -> str:
    from tconv.planner.plan import tile_fields

    return ", ".join(f"{name} {value}" for name, value in tile_fields(tile))
