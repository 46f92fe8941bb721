"""Ctrl-C while modules load."""

from __future__ import annotations

import signal
from types import FrameType

#: How long an import is left alone before it is looked at again, in seconds.
_PAUSE = 0.05


def let_imports_end() -> None:
    """Has Ctrl-C wait for the import that runs, if one does; a second Ctrl-C does not wait.

    A library that is interrupted while it loads may swallow the exception, and the command goes on; or it is left half
    loaded, and what then fails looks like a bug. Loading torch takes seconds, in which people change their minds.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # nohup, or a program that calls `main` and has its own way
    waits = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal waits
        if _imports(frame) and not (waits and number == signal.SIGINT):
            waits = True
            signal.setitimer(signal.ITIMER_REAL, _PAUSE)
            return
        waits = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGINT, interrupt)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
