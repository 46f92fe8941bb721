"""Ctrl-C while modules load: a library that swallows it, and one that never ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

PROGRAM = """
    import sys
    from tconv.cli import interrupts
    try:
        interrupts.let_imports_end()
        import library
        while True: ...
    except KeyboardInterrupt:
        print("loaded" if "library" in sys.modules else "not loaded", flush=True)
"""
SWALLOWS = """
    import pathlib, time
    try:
        pathlib.Path("begun").touch()
        time.sleep(1)
    except BaseException:
        pass
"""
ENDLESS = """
    import pathlib
    pathlib.Path("begun").touch()
    while True: ...
"""


@pytest.mark.parametrize(("library", "again", "out"), [(SWALLOWS, False, "loaded\n"), (ENDLESS, True, "not loaded\n")])
def test_an_import_ends_first_and_a_second_signal_does_not_wait(
    library: str, again: bool, out: str, tmp_path: Path
) -> None:
    (tmp_path / "library.py").write_text(textwrap.dedent(library))
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, "it ended before it was interrupted"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    while again and process.poll() is None:  # two that come before the first is handled are one
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == out


def test_who_has_another_handler_keeps_it(tmp_path: Path) -> None:
    program = """
        import signal
        from tconv.cli import interrupts
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts.let_imports_end()
        print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, signal.getsignal(signal.SIGALRM) is signal.SIG_DFL)
    """
    shown = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "True True\n"
