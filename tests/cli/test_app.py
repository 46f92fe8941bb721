"""The command line's frame: exit codes, what reaches the user, and what is not imported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tconv.cli import app as frame
from tconv.cli import console
from tconv.errors import MissingToolchain, Trouble
from tconv.version import __version__

COMMANDS = ("optimize", "verify", "bench", "explain", "tune", "doctor", "cache")


def tconv(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tconv", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def outcome_of(command: frame.Command) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program whose one command is `command`."""
    program = typer.Typer(pretty_exceptions_enable=False)
    program.command()(frame.guarded(command))
    result = CliRunner().invoke(program, [])
    return result.exit_code, result.stdout, result.stderr


def test_help_names_every_command_and_the_exit_codes() -> None:
    shown = tconv("--help")
    assert shown.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^\W*{command} +\w", shown.stdout, re.MULTILINE), command
    assert "130 interrupted" in " ".join(shown.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    shown = CliRunner().invoke(frame.app, [command, "--help"])
    assert shown.exit_code == 0
    assert f"Usage: tconv {command}" in shown.stdout or f"{command} [OPTIONS]" in shown.stdout


def test_help_imports_neither_torch_nor_cuda() -> None:
    """Importing them takes seconds; the frame must come up at once."""
    code = """
        import sys
        from tconv.cli.app import main
        sys.argv = ["tconv", "--help"]
        try:
            main()
        finally:
            heavy = {"torch", "numpy", "cuda"} & set(sys.modules)
            print("heavy:", sorted(heavy), file=sys.stderr)
    """
    shown = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0
    assert shown.stderr == "heavy: []\n"


@pytest.mark.parametrize(("arguments", "status"), [(["cache", "info"], 0), (["explain", "missing.py"], 2)])
def test_a_process_ends_with_all_that_is_registered_for_its_end(arguments: list[str], status: int) -> None:
    """And without torch's own shutdown."""
    code = f"""
        import atexit, sys, torch
        from tconv.cli.app import main
        sys.argv = ["tconv", *{arguments}]
        atexit.register(print, "registered")
        main()
    """
    shown = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (status, "registered")


def test_what_cannot_be_written_at_the_end_is_told() -> None:
    """As any program's of Python."""
    code = """
        import sys, torch
        from tconv.cli.app import main
        sys.argv = ["tconv", "cache", "info"]
        main()
    """
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        shown = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert shown.returncode != 0 and "No space left on device" in shown.stderr


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}),
    ],
)
def test_torchs_allocator_is_asked_for_segments_that_grow(
    own: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    monkeypatch.setattr(os, "environ", {**others, **own})
    monkeypatch.setattr(frame, "app", lambda **named: None)
    frame.main()
    assert {name: value for name, value in os.environ.items() if "ALLOC_CONF" in name} == expected


def test_version() -> None:
    shown = tconv("--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"tconv {__version__}\n", "")


@pytest.mark.parametrize("arguments", [["nonsense"], ["cache", "nonsense"], ["verify"], ["doctor", "--nonsense"]])
def test_wrong_usage_is_exit_2_and_says_so_on_stderr(arguments: list[str]) -> None:
    result = CliRunner().invoke(frame.app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage:" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (2, 2)])
def test_a_command_returns_its_exit_code(returned: int | None, code: int) -> None:
    def command() -> int | None:
        print("done")
        return returned

    assert outcome_of(command) == (code, "done\n", "")


@pytest.mark.parametrize("kind", [Trouble, MissingToolchain])
def test_trouble_is_exit_2_with_one_line(kind: type[Trouble]) -> None:
    def command() -> None:
        raise kind("model.py has no class Model:\n  name it [so],\n  or [bold]pass[/] --model " + "x" * 200)

    expected = "tconv: model.py has no class Model: name it [so], or [bold]pass[/] --model " + "x" * 200 + "\n"
    assert outcome_of(command) == (2, "", expected)


def test_a_bug_is_exit_3_with_a_saved_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def command() -> None:
        planted = {}
        planted["no such key"]

    code, out, err = outcome_of(command)
    (report,) = tmp_path.iterdir()
    assert (code, out) == (3, "")
    assert err == (
        f"tconv: this is a bug in tconv (KeyError: 'no such key'); please report it with the file {report}\n"
    )
    text = report.read_text()
    assert 'planted["no such key"]' in text and "KeyError: 'no such key'" in text
    assert f"tconv: {__version__}" in text and "torch: " in text


def test_an_interrupt_is_exit_130_with_one_line() -> None:
    def command() -> None:
        raise KeyboardInterrupt

    assert outcome_of(command) == (130, "", "tconv: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="signals are sent as on POSIX")
def test_ctrl_c_in_a_running_command() -> None:
    code = """
        import time, typer
        from tconv.cli.app import guarded

        def command() -> None:
            print("ready", flush=True)
            time.sleep(60)

        program = typer.Typer(pretty_exceptions_enable=False)
        program.command()(guarded(command))
        program()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (130, "tconv: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="pipes break otherwise there")
def test_a_reader_that_leaves_is_not_a_bug() -> None:
    code = """
        import typer
        from tconv.cli.app import guarded

        def command() -> None:
            for _ in range(10**6):
                print("line")

        program = typer.Typer(pretty_exceptions_enable=False)
        program.command()(guarded(command))
        program()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(timeout=30) == 141


@pytest.mark.skipif(os.name == "nt", reason="pipes break otherwise there")
def test_a_reader_of_a_table_that_leaves_is_not_a_bug() -> None:
    """Also where a library prints it, which has an exit code of its own for that."""
    command = [sys.executable, "-m", "tconv", "cache", "info"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert (child.stderr.read(), child.wait(timeout=30)) == ("", 141)


def test_off_a_terminal_a_line_now_and_then_says_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SILENCE_SECONDS", 0.05)
    with console.progress("at once"):
        pass
    assert capsys.readouterr().err == ""
    with console.progress("starting") as say:
        time.sleep(0.2)
        say("[checking] layer 2")
        time.sleep(0.2)
    assert capsys.readouterr().err == "tconv: starting\ntconv: [checking] layer 2\n"


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def red(**environment: str) -> bool:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

        def command() -> None:
            raise Trouble("so it is")

        return "\x1b[1;31m" in outcome_of(command)[2]

    assert not red()
    assert red(FORCE_COLOR="1", TERM="xterm-256color")
    assert not red(FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1")
