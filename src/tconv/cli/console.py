"""Where the command line writes: results to stdout, progress and messages to stderr."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

_PATIENCE_SECONDS = 1.0
#: How long nothing is said where there is no terminal.
_SILENCE_SECONDS = 10.0
#: What a table may take where no terminal says how wide it is.
_PIPE_WIDTH = 160


def results() -> Console:
    """stdout. Plain text in pipes and with NO_COLOR."""
    return _console(stderr=False)


def messages() -> Console:
    """stderr. Plain text in pipes and with NO_COLOR."""
    return _console(stderr=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Says on stderr what is being done, once that has taken a second; the function yielded changes it.

    Where that is no terminal, a line says so from time to time, and nothing of what is done at once.
    """
    console = messages()
    if not console.is_terminal:
        with _lines(console, what) as say:
            yield say
        return
    status = console.status(what)
    timer = threading.Timer(_PATIENCE_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield status.update
    finally:
        timer.cancel()
        status.stop()


@contextmanager
def _lines(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    step, ended = [what], threading.Event()

    def speak() -> None:
        said = ""
        while not ended.wait(_SILENCE_SECONDS):
            if step[0] != said:
                said = step[0]
                console.print(f"tconv: {said}", markup=False, soft_wrap=True)

    threading.Thread(target=speak, daemon=True).start()
    try:
        yield lambda what: step.__setitem__(0, what)
    finally:
        ended.set()


@contextmanager
def progress_bar(total: float) -> Iterator[Callable[[float, str], None]]:
    """A bar on a terminal's stderr; the function yielded adds to what is done and says what comes next."""
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = messages()
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda done, what: bar.update(task, advance=done, description=escape(what))


def _console(stderr: bool) -> Console:
    from rich.console import Console

    class Guarded(Console):
        def on_broken_pipe(self) -> None:
            raise  # the exit code is not rich's matter

    console = Guarded(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console
