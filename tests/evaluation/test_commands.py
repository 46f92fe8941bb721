"""`tconv verify` and `tconv bench` as users meet them: exit codes, the last line, the report."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from tconv.cli.app import app
from tconv.cli.reports import page
from tconv.cli.speeds import speed
from tconv.cli.verdict_table import called_table, checks_table, last_line, timing_table
from tconv.evaluation.report import Report
from tconv.evaluation.verdict import AsCalled, Check, Series, Timing, Verdict
from tconv.sandbox.worker import Workshop

#: Each starts processes.
pytestmark = pytest.mark.rotates(6)

Writer = Callable[[str, str], Path]
CORPUS = Path(__file__).parents[1] / "corpus"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


Run = Callable[..., tuple[int, list[str], str]]


def in_a_process(*arguments: str | Path) -> tuple[int, list[str], str]:
    """Exit code, lines of stdout, stderr."""
    command = [sys.executable, "-m", "tconv", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture
def tconv(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same within this process, with the workers of the other tests."""
    monkeypatch.setattr("tconv.evaluation.files.judge.Workshop", lambda **options: contextlib.nullcontext(workshop))

    def run(*arguments: str | Path) -> tuple[int, list[str], str]:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        return result.exit_code, result.stdout.splitlines(), result.stderr

    return run


def test_an_equal_candidate(tmp_path: Path) -> None:
    report, shown = tmp_path / "report.json", tmp_path / "report.html"
    written = ("--json", report, "--html", shown)
    code, out, err = in_a_process("verify", CORPUS / "plain.py", CORPUS / "honest_scatter.py", "--device=cpu", *written)
    assert (code, out[-1]) == (0, "equal (default checks)")
    # What begins after ten seconds of silence is told.
    assert all(line.startswith("tconv: ") for line in err.splitlines()), err
    assert out[0] == "honest_scatter.py beside plain.py, on the CPU"
    assert any(line.startswith("pooled error") and "PyTorch's" in line for line in out)
    told = json.loads(report.read_text())
    assert told["equal"] is True and told["candidate"] == "honest_scatter.py"
    steps = ["starting", "running plain.py", "building and comparing the whole file"]
    assert list(told["seconds"]) == [*steps, "changing weights and taking gradients"]
    assert sorted(tmp_path.iterdir()) == [shown, report]
    assert shown.read_text() == page(told)


def test_pytorchs_own_operator_is_named(tconv: Run) -> None:
    code, out, _ = tconv("verify", CORPUS / "plain.py", CORPUS / "honest_functional.py", "--device=cpu")
    assert (code, out[-1]) == (0, "equal (default checks)")
    assert "calls PyTorch's own transposed convolution: aten.convolution (transposed)" in out


def test_missing_gradients_are_said_and_training_refuses_them(tconv: Run, tmp_path: Path) -> None:
    files = CORPUS / "plain.py", CORPUS / "honest_autograd_function.py"
    report = tmp_path / "report.html"
    code, out, _ = tconv("verify", *files, "--device=cpu", "--html", report)
    assert (code, out[-1]) == (0, "equal (default checks); inference only")
    assert "equal (default checks); inference only; not timed" in report.read_text()
    code, out, _ = tconv("verify", *files, "--device=cpu", "--training")
    assert code == 1
    assert out[-1].startswith("NOT EQUAL: gradients: inference only: no gradient flows; honest_autograd_function.py: ")
    assert "--training asks for all that Model has: give what computes the result a backward" in out[-1]


def test_a_wrong_candidate_with_other_arguments(tconv: Run) -> None:
    code, out, err = tconv("verify", CORPUS / "plain.py", CORPUS / "wrong_bias_ignored.py", "--vary-arguments")
    assert code == 1 and all(line.startswith("tconv: ") for line in err.splitlines()), err
    assert out[-1].startswith("NOT EQUAL: with bias=True: every element: at [")
    assert any(line.startswith("bias=True") and "FAILED" in line for line in out)


def test_what_pytorch_ran_with_other_arguments_is_said(tconv: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    files = CORPUS / "plain.py", CORPUS / "honest_functional.py"
    code, out, _ = tconv("verify", *files, "--device=cpu", "--vary-arguments", "--html", page)
    assert code == 0
    (line,) = (line for line in out if line.startswith("bias=True"))
    assert "not tested" in line and "PyTorch ran it: aten.convolution (transposed)" in line
    assert "not tested, PyTorch ran it" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["missing.py", CORPUS / "honest_scatter.py"], "cannot read"),
        ([CORPUS / "plain.py", "missing.py"], "cannot read"),
        (
            [CORPUS / "layer.py", CORPUS / "honest_scatter.py"],
            "layer.py has no class Model: it has Layer; add `class Model(L",
        ),
    ],
)
def test_trouble_is_one_line_on_stderr(tconv: Run, arguments: list[str | Path], line: str) -> None:
    code, out, err = tconv("verify", *arguments, "--device", "cpu")
    assert (code, out) == (2, [])
    assert err.startswith("tconv: ") and line in err and err.count("\n") == 1


@pytest.mark.parametrize("seconds", ["inf", "1e9"])
def test_a_timeout_that_is_none(tconv: Run, seconds: str) -> None:
    code, out, err = tconv("verify", CORPUS / "plain.py", CORPUS / "honest_scatter.py", "--timeout", seconds)
    assert (code, out) == (2, [])
    assert f"got a timeout of {float(seconds):g} s; allowed is more than 0 and at most 1000000" in err


def test_a_report_that_cannot_be_written_is_trouble_before_anything_runs(tconv: Run, tmp_path: Path) -> None:
    code, out, err = tconv("verify", "missing.py", "missing.py", "--json", tmp_path / "no" / "r.json")
    assert (code, out) == (2, [])
    assert "cannot write" in err and "its folder does not exist; choose another place for the report" in err


@pytest.mark.parametrize("short", ["Model", "ModelNew"])
def test_too_little_gpu_memory_is_no_verdict(short: str, tconv: Run, tmp_path: Path) -> None:
    text = textwrap.dedent("""
        import torch
        class {}(torch.nn.Module):
            def forward(self, x):
                {}
                return x
        def get_inputs():
            return [torch.ones(2)]
    """)
    lack = 'raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB. Process 7.")'
    files = [tmp_path / f"{name}.py" for name in ("Model", "ModelNew")]
    for file in files:
        file.write_text(text.format(file.stem, lack if file.stem == short else "x = x + 0"))
    code, out, err = tconv("verify", *files, "--device=cpu")
    assert (code, out, len(err.splitlines())) == (2, [], 1)
    assert "out of GPU memory while " in err and "Tried to allocate 2.00 GiB. GPU 0 has 1 GiB; end other" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_needs_a_gpu(tconv: Run) -> None:
    code, out, err = tconv("bench", CORPUS / "plain.py", CORPUS / "honest_scatter.py")
    assert (code, out) == (2, [])
    assert err == "tconv: timing needs a GPU: `tconv verify` compares results without one\n"


def test_ctrl_c(write: Writer, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    endless = f"\nopen({str(begun)!r}, 'w').close()\nwhile True: ...\n"
    model = write("model.py", (CORPUS / "model.py").read_text() + endless)
    command = [sys.executable, "-m", "tconv", "verify", str(model), str(CORPUS / "honest_scatter.py")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    )
    while not begun.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    *begun, last = err.splitlines()
    # What takes ten seconds is told.
    assert out == "" and last == "tconv: interrupted" and set(begun) <= {"tconv: starting", "tconv: running model.py"}


def printed(renderable: object) -> str:
    console = Console(width=160, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


CALLED = AsCalled(
    Series(0.3, 0.29, 0.33), Series(1.8, 1.78, 1.83), alternatives={"channels_last": Series(1.5, 1.4, 1.6)}, calls=100
)
TIMING = Timing(
    Series(0.25, 0.24, 0.27),
    Series(1.7, 1.69, 1.72),
    "by turns",
    floor_ms=0.2,
    host_us={"candidate": 9.5, "reference": 11.0},
    alternatives={"cudnn.benchmark": Series(1.6, 1.5, 1.7), "channels_last": Series(1.2, 1.1, 1.3)},
    as_called=CALLED,
)


def test_the_last_line() -> None:
    equal = Report("model.py", "new.py", "cuda", "match", Verdict((Check("a", True),)), timing=TIMING)
    assert last_line(equal).plain == "equal (default checks); as called 6x (best other 5x), inference 6.8x (4.8x)"
    assert last_line(equal).style == "bold green"
    assert speed(0.34) == ("0.34x: SLOWER than PyTorch", "bold red")
    assert speed(0.997) == ("as fast as PyTorch (1.00x)", "bold green")
    assert speed(1.019)[0] == "as fast as PyTorch (1.02x)"
    assert speed(13.4)[0] == "13x faster"
    unchecked = Report("model.py", "new.py", "cpu", "match", Verdict((Check("a", None),)))
    assert last_line(unchecked).plain == "NOT EQUAL: nothing was checked"


@pytest.mark.parametrize("compile", [False, True])
def test_a_timed_candidate(tconv: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compile: bool) -> None:
    """What `tconv bench` asks the judge for, and what it shows of the answer."""
    compiled = replace(TIMING, compiled=Series(0.1, 0.1, 0.1), notes=("one thing was not timed",))

    def judge(model: Path, candidate: Path, **options: Any) -> Report:
        assert options["bench"] and options["compile"] is compile
        timing = compiled if compile else TIMING
        return Report("model.py", "new.py", "cuda", "match", Verdict((Check("a", True),)), timing=timing)

    monkeypatch.setattr("tconv.evaluation.files.judge.judge", judge)
    report = tmp_path / "report.json"
    files = CORPUS / "plain.py", CORPUS / "honest_scatter.py"
    code, out, err = tconv("bench", *files, "--json", report, *["--compile"] * compile)
    assert code == 0, err
    assert [line.split()[0] for line in out if line.startswith(("as called, 100 times", "inference "))] == [
        "as",
        "inference",
    ]
    hint = "Fastest: new.py as model = torch.compile(ModelNew(...)): in inference 0.1 ms."
    assert (hint in out) is compile is ("Times: one thing was not timed." in out)
    assert out[-1] == "equal (default checks); as called 6x (best other 5x), inference 6.8x (4.8x)"
    told = json.loads(report.read_text())["timing"]
    assert told["as_called"]["candidate"] == {"median": 0.3, "low": 0.29, "high": 0.33}
    assert told["as_called"]["calls"] == 100 and told["alternatives"]["channels_last"]["high"] == 1.3
    assert (told["compiled"] is not None) is told["best_compiled"] is compile


def test_the_tables() -> None:
    checks = (Check("pooled error", True, 2.9e-4, 3.6e-4, "relative error"), Check("scaling", None, reason="float16"))
    lines = printed(checks_table(checks)).splitlines()
    assert lines[1].split() == ["pooled", "error", "ok", "0.00029", "0.00036", "relative", "error"]
    assert lines[2].split() == ["scaling", "not", "checked", "float16"]
    rows = [line.split() for line in printed(timing_table(TIMING)).splitlines()]
    assert rows[1] == ["candidate", "0.25", "0.24", "to", "0.27", "6.80", "9.5"]
    assert rows[3] == ["PyTorch,", "cudnn.benchmark", "1.6", "1.5", "to", "1.7", "1.06"]
    assert rows[4] == ["PyTorch,", "channels_last", "1.2", "1.1", "to", "1.3", "1.42"]
    assert rows[5] == ["floor", "0.2", "8.50"]
    called = replace(CALLED, compiled=Series(0.2, 0.19, 0.21))
    rows = [line.split() for line in printed(called_table(called)).splitlines()]
    assert rows[0][:6] == ["as", "called,", "100", "times", "ms", "20"] and "host" not in rows[0]
    assert rows[1] == ["candidate", "0.3", "0.29", "to", "0.33", "6.00"]
    assert rows[2] == ["candidate,", "torch.compile", "0.2", "0.19", "to", "0.21", "9.00"]
