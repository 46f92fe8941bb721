"""The exit codes of every command, as those of `cmp`."""

from __future__ import annotations

from typing import Final

#: Done; for commands that compare, the results are equal.
EQUAL: Final = 0
#: Compared and not equal; also a candidate that crashes, hangs or does not build.
NOT_EQUAL: Final = 1
#: The user's or the machine's trouble: one line says what to do.
TROUBLE: Final = 2
#: A bug in tconv: the traceback is saved, one line says where.
BUG: Final = 3
#: Ctrl-C.
INTERRUPTED: Final = 130
#: The reader of a pipe left early, as of a process that SIGPIPE ended.
BROKEN_PIPE: Final = 141
