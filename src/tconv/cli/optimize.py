"""`tconv optimize`: a model file in, a verified file with `ModelNew` and its CUDA kernels out."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tconv.cli import exit_codes
from tconv.cli.console import progress, results
from tconv.cli.options import (
    FLOATS,
    CompileOption,
    Elsewhere,
    HtmlOption,
    InitOption,
    InputsOption,
    ModelFile,
    ModelName,
    Precision,
    interface_of,
)
from tconv.cli.reports import check_writable, write_reports
from tconv.cli.speeds import compiled_hint, remarks, speed, speeds
from tconv.cli.verdict_table import equal_at
from tconv.errors import Trouble

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tconv.planner import Plan
    from tconv.rewriter.check import Build, LayerCheck
    from tconv.rewriter.outcome import Outcome

#: Where Linux has NVIDIA's driver.
_GPU_DRIVER = Path("/dev/nvidiactl")
#: What building with load_inline takes, by the names of `tconv doctor`.
_TOOLCHAIN = ("nvcc", "g++", "ninja", "Python.h")


def optimize(
    model: ModelFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT.py", help="Where to write. Default: MODEL_new.py.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that tconv did not write.")] = False,
    report: Annotated[
        Path | None, typer.Option("--json", metavar="REPORT.json", help="Also write everything that was found out.")
    ] = None,
    html: HtmlOption = None,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="SM", help="Compile for sm_90a, say. Default: the GPU's; without a GPU sm_80."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--types", metavar="TYPE", help="Kernels for float16, say, too. Default: the types of the calls."),
    ] = None,
    elsewhere: Annotated[
        Elsewhere,
        typer.Option("--elsewhere", help="What the file does with calls that it has no kernel for."),
    ] = Elsewhere.pytorch,
    precision: Annotated[
        Precision,
        typer.Option("--precision", help="Arithmetic of float32 layers: what PyTorch does, TF32, or full float32."),
    ] = Precision.match,
    only_faster: Annotated[
        bool, typer.Option("--only-faster", help="Leave layers to PyTorch where that is faster.")
    ] = False,
    compile: CompileOption = False,
    no_bench: Annotated[bool, typer.Option("--no-bench", help="Do not time anything.")] = False,
    no_search: Annotated[
        bool, typer.Option("--no-search", help="Take the planner's first kernels, without measuring others.")
    ] = False,
    no_fuse: Annotated[
        bool, typer.Option("--no-fuse", help="Leave the epilogues of layers where they are, outside their kernels.")
    ] = False,
    model_name: ModelName = "Model",
    inputs: InputsOption = None,
    init: InitOption = None,
) -> int:
    """Write a file with ModelNew: the same model, its transposed convolutions on CUDA kernels. Verify and time it."""
    from tconv.sandbox.worker import Workshop, own_tools_on_path
    from tconv.tuning.compilers import begin

    began = time.perf_counter()
    check_writable(report, html)
    interface = interface_of(model_name, inputs, init)
    own_tools_on_path()
    if _GPU_DRIVER.exists():
        begin()
    with progress("starting") as say, Workshop(traces=True) as workshop:
        # Torch is loaded here while those two load it.
        from tconv.rewriter.outcome import Request, to_dict
        from tconv.rewriter.output import default_output
        from tconv.rewriter.run import optimize as run

        request = Request(
            model,
            output or default_output(model),
            force,
            _archs(arch or []),
            precision.value,
            only_faster,
            not no_bench,
            not no_search,
            not no_fuse,
            _missing(),
            interface,
            types=_types(types or []),
            elsewhere=elsewhere.value,
            compile=compile,
        )
        outcome = run(request, say, workshop, began)
    _show(outcome)
    write_reports(to_dict(outcome), report, html)
    return exit_codes.EQUAL if outcome.equal else exit_codes.NOT_EQUAL


def _archs(given: list[str]) -> tuple[str, ...]:
    """``--arch sm_80 --arch sm_90a`` and ``--arch sm_80,sm_90a``."""
    names = _listed(given)
    for name in names:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", name):
            raise Trouble(f"got --arch {name}; write it as sm_80 or sm_90a")
    return names


def _types(given: list[str]) -> tuple[str, ...]:
    """``--types float16 --types bfloat16`` and ``--types float16,bfloat16``."""
    names = _listed(given)
    for name in names:
        if name not in FLOATS:
            raise Trouble(f"got --types {name}; the types are {', '.join(FLOATS)}")
    return names


def _listed(given: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for text in given for name in text.split(",") if name.strip()))


def _missing() -> tuple[str, ...]:
    """What building with load_inline lacks: ``nvcc not found: <how to get it>``."""
    from tconv.cli.doctor import examine

    found = (finding for finding in examine() if finding.name in _TOOLCHAIN)
    return tuple(f"{item.name} {item.found}: {item.remedy}" for item in found if item.remedy is not None)


# ---- the table


def _show(outcome: Outcome) -> None:
    from rich.table import Table
    from rich.text import Text

    console = results()
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ["layer", "problem", "plan", "error (PyTorch's, allowed)"]
    headings += ["ms", "PyTorch", "speed-up", "floor"] if outcome.on_gpu else ["registers"]
    for heading in headings:
        right = heading in ("ms", "PyTorch", "speed-up", "floor")
        # Names are folded, not cut: their ends tell them apart.
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for check in outcome.layers:
        cells: list[RenderableType] = [Text(cell) for cell in _cells(check, outcome.on_gpu)]
        table.add_row(*cells)
    console.print(table)
    for line in _remarks(outcome):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(*_summary(outcome)), soft_wrap=True)


def _cells(check: LayerCheck, on_gpu: bool) -> list[str]:
    plan, layer = check.layer.plan, check.layer
    shape = "x".join(map(str, plan.problem.input_shape))
    times = f" ({layer.count} times)" if layer.count > 1 else ""
    cells = [layer.name, f"{plan.problem.layer.describe()} on {shape}{times}"]
    if layer.left:
        return [*cells, "left to PyTorch"]
    epilogues = "".join(f", {each.describe()}" for each in layer.kernel_epilogues if not each.backward)
    cells.append(f"{_plan(layer.plan)}{epilogues}")
    cells.append(_error(check))
    if not on_gpu:
        return [*cells, ", ".join(map(_registers, check.builds))]
    if check.time is None:
        return cells
    floor = "" if check.time.floor is None else f"{check.time.floor:.4g}"
    return [*cells, f"{check.time.ours:.4g}", f"{check.time.pytorch:.4g}", f"{check.time.speedup:.2f}x", floor]


def _plan(plan: Plan) -> str:
    kernel = plan.kernel
    return f"{kernel.family}: {plan.grid} blocks of {kernel.threads}"


def _error(check: LayerCheck) -> str:
    if check.verdict is None:
        return ""
    if not check.equal:
        return "NOT EQUAL"
    pooled = check.verdict.check("pooled error")
    return f"{pooled.got:.2g} ({check.pytorch_error:.2g}, {pooled.allowed:.2g})"


def _registers(build: Build) -> str:
    if build.registers is None:
        return f"compiled for {build.arch}"
    spilled = f" ({build.spill_bytes} bytes spilled)" if build.spill_bytes else ""
    return f"{build.registers} on {build.arch}{spilled}"


def _remarks(outcome: Outcome) -> Iterator[str]:
    for check in outcome.layers:
        if check.layer.left:
            yield f"Left to PyTorch: {check.layer.name}: {check.layer.reason}."
    for name, reason in outcome.left.items():
        yield f"Left to PyTorch: {name}: {reason}."
    for reason in dict.fromkeys(outcome.apart):
        yield f"Not fused: {reason}."
    if outcome.load_inline == "not built":
        for missing in outcome.request.missing:
            yield f"load_inline not built: {missing}"
    if outcome.not_checked:
        yield f"Not checked: {'; '.join(outcome.not_checked)}."
    yield from _search_remarks(outcome)
    for mistake in outcome.mistakes:
        yield f"A bug in tconv, please report it with the model file: a plainer kernel was taken, for {mistake}"
    for reason in outcome.reasons:
        yield f"Not equal: {reason}"
    if (timing := outcome.timing) is not None:
        yield (
            f"The whole model: {timing.candidate.median:.4g} ms, PyTorch {timing.reference.median:.4g} ms"
            f" ({timing.reference_source})"
        )
        if timing.as_called is not None:
            ours, theirs = timing.as_called.candidate, timing.as_called.reference
            yield f"As called, with gradients enabled: {ours.median:.4g} ms, PyTorch {theirs.median:.4g} ms"
        yield from remarks(timing.to_dict())
    if not outcome.on_gpu:
        yield f"Planned for one {outcome.gpu.name}."
    if outcome.written:
        yield f"Wrote {outcome.request.output}"
        if outcome.timing is not None and (
            hint := compiled_hint(outcome.timing.to_dict(), outcome.request.output.name)
        ):
            yield hint


def _search_remarks(outcome: Outcome) -> Iterator[str]:
    """What the search gained; a layer that one kernel was tried for gains nothing."""
    for answer in outcome.searched.answers:
        if answer.first_ms is not None and answer.tuned is not None:
            best, first = answer.tuned.milliseconds, answer.first_ms
            what = f"the planner's first choice {first:.4g} ms, best of {answer.tuned.tried} kernels {best:.4g} ms"
            yield f"Search: {answer.job.name}: {what} ({first / best:.2f}x)"
    if outcome.searched.kept:
        yield f"Search: {outcome.searched.kept}."
    for mistake in outcome.searched.mistakes:
        yield f"A bug in tconv, please report it with the model file: a kernel that was tried is not used: {mistake}"


def _summary(outcome: Outcome) -> tuple[str, str]:
    """The last line and its style."""
    if not outcome.equal:
        return f"NOT EQUAL: {outcome.request.output} was not written", "bold red"
    speedup = outcome.speedup
    if not outcome.written:
        return "equal, and no layer faster than PyTorch: nothing was written", "bold red"
    report = outcome.report
    equal = "each layer equal"
    if report is not None:
        equal = equal_at(report.level, report.verdict.inference_only, report.verdict.default_stream_only)
    about = ", the whole file not judged" if outcome.unjudged else ""
    if outcome.types:
        about += f"; {' and '.join(outcome.types)} only, others: --types"
    if speedup is None:
        timed = "; not timed" if outcome.on_gpu else " in the emulator; not timed: no GPU"
        return f"{equal}{timed}{about}", "bold green"
    words, style = speed(speedup) if outcome.timing is None else speeds(outcome.timing.to_dict())
    return f"{equal}; {words}{about}", style
