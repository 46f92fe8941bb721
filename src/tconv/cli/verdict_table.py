"""Tables of verdicts and times, and the one line that sums them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tconv.cli import exit_codes
from tconv.cli.console import results
from tconv.cli.speeds import compiled_hint, remarks, speeds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tconv.evaluation.report import Report
    from tconv.evaluation.verdict import AsCalled, Check, Series, Sides, Timing

_MARKS = {True: "[green]ok[/]", False: "[red]FAILED[/]", None: "[yellow]not checked[/]"}


def show(report: Report) -> int:
    """Print everything about a judgement, and return the exit code."""
    console = results()
    console.print(f"{report.candidate} beside {report.model}, on the {_device(report.device)}", markup=False)
    console.print(checks_table(report.verdict.checks))
    if report.variations:
        console.print(_variations_table(report))
    if report.timing is not None:
        if report.timing.as_called is not None:
            console.print(called_table(report.timing.as_called))
        console.print(timing_table(report.timing))
        _print_remarks(console, report.timing)
    if report.verdict.operators:
        names = ", ".join(report.verdict.operators)
        console.print(f"calls PyTorch's own transposed convolution: {names}", markup=False, soft_wrap=True)
    for line in report.not_checked:
        console.print(f"not checked: {line}", markup=False, soft_wrap=True)
    if report.timing is not None and (hint := compiled_hint(report.timing.to_dict(), report.candidate)):
        console.print(hint, markup=False, soft_wrap=True)
    console.print(last_line(report), soft_wrap=True)
    return exit_codes.EQUAL if report.equal else exit_codes.NOT_EQUAL


def last_line(report: Report) -> Text:
    """What is wrong, or ``equal (strict)``, behind which the `speeds` stand."""
    from rich.text import Text

    if not report.equal:
        first = report.reasons[0] if report.reasons else "nothing was checked"
        return Text(f"NOT EQUAL: {first}", style="red")
    equal = equal_at(report.level, report.verdict.inference_only, report.verdict.default_stream_only)
    if report.timing is None:
        return Text(equal, style="green")
    words, style = speeds(report.timing.to_dict())
    return Text(f"{equal}; {words}", style=style)


def equal_at(level: str, inference_only: bool, default_stream_only: bool) -> str:
    """``equal (default checks); inference only``: at which level a candidate is equal, and with which limits."""
    from tconv.evaluation.verdict import DEFAULT_STREAM_ONLY, INFERENCE_ONLY

    limits = [INFERENCE_ONLY] * inference_only + [DEFAULT_STREAM_ONLY] * default_stream_only
    return "; ".join([f"equal ({'strict' if level == 'strict' else 'default checks'})", *limits])


def checks_table(checks: Iterable[Check]) -> Table:
    """One row for each check: outcome, what was measured, what is allowed, the reason."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("check", "outcome", "got", "allowed"):
        table.add_column(column, no_wrap=column != "got")
    table.add_column("", ratio=1)
    for check in checks:
        numeric = isinstance(check.got, float)
        got, allowed = (_figure(check.got), _figure(check.allowed)) if numeric else ("", "")
        # A figure within what is allowed needs no words, but PyTorch's own error beside it tells something.
        remark = check.reason if not check.passed or check.name.startswith("pooled") else ""
        table.add_row(check.name, _MARKS[check.passed], got, allowed, Text(remark))
    return table


def _variations_table(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("with other arguments")
    table.add_column("outcome", no_wrap=True)
    table.add_column("", ratio=1)
    for variation in report.variations:
        reason = "" if variation.verdict.equal else next(iter(variation.verdict.reasons), "nothing was checked")
        mark = _MARKS[variation.verdict.equal]
        if not variation.tested:
            mark, reason = "[yellow]not tested[/]", f"PyTorch ran it: {', '.join(variation.verdict.operators)}"
        table.add_row(Text(variation.name), mark, Text(reason))
    return table


def timing_table(timing: Timing) -> Table:
    """Device milliseconds of inference, with what calls take on the host, and the floor."""
    table = _sides_table("inference", timing, timing.host_us)
    if timing.floor_ms is not None:
        ratio = timing.reference.median / timing.floor_ms
        table.add_row("floor", f"{timing.floor_ms:.4g}", "", f"{ratio:.2f}")
    return table


def called_table(called: AsCalled) -> Table:
    """Milliseconds of calls as programs make them."""
    return _sides_table(f"as called, {called.calls} times", called)


def _sides_table(title: str, sides: Sides, host_us: Mapping[str, float] = MappingProxyType({})) -> Table:
    """Milliseconds of both sides and of the other ways, with their spread, beside PyTorch's default."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    columns = (title, "ms", "20 % to 80 %", "ratio", *(["host µs"] if host_us else []))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")

    def row(name: str, series: Series | None, side: str = "") -> None:
        if series is not None:
            spread = f"{series.low:.4g} to {series.high:.4g}"
            host = [f"{host_us[side]:.1f}" if side in host_us else ""] if host_us else []
            ratio = sides.reference.median / series.median
            table.add_row(name, f"{series.median:.4g}", spread, f"{ratio:.2f}", *host)

    row("candidate", sides.candidate, "candidate")
    row("candidate, torch.compile", sides.compiled)
    row("PyTorch", sides.reference, "reference")
    for name, series in sides.alternatives.items():
        row(f"PyTorch, {name}", series)
    return table


def _print_remarks(console: Console, timing: Timing) -> None:
    settings = ", ".join(f"{name} {value}" for name, value in timing.settings.items())
    console.print(f"PyTorch's time is from {timing.reference_source}.", markup=False, soft_wrap=True)
    console.print(f"Settings: {settings}.", markup=False, soft_wrap=True)
    for line in remarks(timing.to_dict()):
        console.print(line, markup=False, soft_wrap=True)
    for check in timing.checks:
        if not check.passed:
            console.print(f"[red]{check.name}: no[/]; {check.reason}", soft_wrap=True)


def _figure(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else ""


def _device(name: str) -> str:
    return "GPU" if name == "cuda" else "CPU"
