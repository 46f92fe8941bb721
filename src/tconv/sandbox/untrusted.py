"""What any process needs to deal with somebody's program: its files and its process group. Imports no torch."""

from __future__ import annotations

import io
import os
import signal
import stat
from pathlib import Path


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
