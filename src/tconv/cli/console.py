"""Where the command line writes: results to stdout, progress and messages to stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: What a table may take where no terminal says how wide it is.
_PIPE_WIDTH = 160


def results() -> Console:
    """stdout. Plain text in pipes and with NO_COLOR."""
    return _console(stderr=False)


def messages() -> Console:
    """stderr. Plain text in pipes and with NO_COLOR."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console
