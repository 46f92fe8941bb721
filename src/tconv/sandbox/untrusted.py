"""What any process needs to deal with somebody's program: its files and its processes. Imports no torch."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import stat
from pathlib import Path

#: From linux/prctl.h.
_PR_SET_CHILD_SUBREAPER = 36


def open_plain(path: Path) -> io.BufferedReader:
    """Open a file that somebody's program may have replaced: no link, and no pipe, which would make us wait for ever.

    Raises:
        OSError: it cannot be opened, or is no plain file.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path.name} is no plain file")
    return file


def end_group(leader: int) -> None:
    """End a forked process and all that it started."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def adopt_orphans() -> None:
    """Become the parent of whatever a child of this process leaves behind, also where that has left its group."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children(parent: int) -> set[int]:
    """The pids of a process's children; none where the system does not tell."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError):
                found.update(map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text("ascii").split()))
    return found


def signal_all(leader: int, number: signal.Signals) -> None:
    """Signal a process, its group and all that descend from it, those that begin meanwhile included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
    done, found = set[int](), {leader}
    while found:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        done |= found
        found = {child for pid in done for child in children(pid)} - done
