"""Processes in which somebody's program runs, each with a time limit and, where wanted, a memory limit.

A `Workshop` starts one process that imports torch and nothing else; every `Worker` is forked from it in
milliseconds, is the leader of a process group of its own, and stands still while it is not asked anything. What it
started stands still with it, and ends with it. This module imports no torch: a `Workshop` is best opened before that is
imported, as then both processes load it at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tconv.errors import OutOfMemory, Trouble
from tconv.sandbox.conversation import Conversation, Garbled
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.untrusted import children, end_group, open_plain, signal_all

#: Importing torch from a cold disk takes tens of seconds.
_START_SECONDS = 180.0
_LOG_BYTES = 4096
#: Runs `worker_process`. The current directory, where anybody's files lie, is no place for its imports.
_START = (
    "import gc, sys; sys.path[:] = filter(None, sys.path); gc.disable(); "
    "from tconv.sandbox.worker_process import main; main(int(sys.argv[1]), sys.argv[2] == 'traces')"
)
_PACKAGE_ROOT = str(Path(__file__).parents[2])


def own_tools_on_path() -> None:
    """Puts the folder of this environment's programs on PATH, where load_inline looks for the ninja that is in it."""
    scripts = sysconfig.get_path("scripts")
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join(filter(None, [os.environ.get("PATH"), scripts]))


class WorkerFailed(Exception):
    """The process ended or was ended before it answered; the message is a clause such as ``took longer than 60 s``."""


class RemoteError(Exception):
    """Code of ours raised in the process; the message holds its traceback."""


class Worker:
    """One forked process that holds one target object. Made by `Workshop.start`."""

    def __init__(self, workshop: Workshop, pid: int, conversation: socket.socket, log: Path) -> None:
        self._workshop = workshop
        self._pid = pid
        self._conversation = Conversation(conversation)
        self._log = log
        self._ended = False
        self._timeout_s = 0.0
        #: Whether what left its group is looked for after each call.
        self.ends_strays = True

    def call(self, method: str, *, timeout_s: float, **arguments: Any) -> Any:
        """Call a method of the target with JSON-able arguments and return its JSON-able result.

        Raises:
            ModelFileError: as raised in the process: the user's file is at fault.
            Trouble: as raised in the process: this machine's.
            OutOfMemory: the process found too little of the GPU's memory.
            WorkerFailed: when the process ends, or does not answer in time; it is gone then.
            RemoteError: for every other exception there.
        """
        self.begin(method, timeout_s=timeout_s, **arguments)
        return self.finish()

    def begin(self, method: str, *, timeout_s: float, **arguments: Any) -> None:
        """Begin a call, which `finish` ends before the next one: what `call` raises it may raise, or that."""
        self._ask({"method": method, "arguments": arguments}, timeout_s)

    def finish(self) -> Any:
        """What the call that was begun returns."""
        with self._ending():
            result = self._conversation.answer()
        # Nothing of it runs while it is not asked: neither beside another process that is being timed, nor while
        # another one's answers lie in their files.
        signal_all(self._pid, signal.SIGSTOP)
        if self.ends_strays:
            self._workshop.end_strays()
        if "value" in result:
            return result["value"]
        if result["error"] == ModelFileError.__name__:
            raise ModelFileError(result.get("message", ""))
        if result["error"] == Trouble.__name__:
            raise Trouble(result.get("message", ""))
        if result["error"] == OutOfMemory.__name__:
            raise OutOfMemory(result.get("message", ""))
        raise RemoteError(result.get("traceback", ""))

    def _ask(self, request: dict[str, Any], timeout_s: float) -> None:
        if self._ended:
            raise WorkerFailed("had ended before")
        self._timeout_s = timeout_s
        with self._ending():
            signal_all(self._pid, signal.SIGCONT)
            self._conversation.ask(request, timeout_s)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Ends the process that does not answer, or says something else."""
        try:
            yield
        except TimeoutError:
            self.close()
            raise WorkerFailed(f"took longer than {self._timeout_s:g} s") from None
        except EOFError:
            raise WorkerFailed(_how_it_ended(self.close())) from None
        except Garbled as garbled:
            self.close()
            raise WorkerFailed(str(garbled)) from None

    def output(self) -> str:
        """The last few thousand bytes of what the process wrote to stdout and stderr."""
        try:
            with open_plain(self._log) as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_BYTES))
                return log.read(_LOG_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def close(self) -> int:
        """End the process and its group; return its exit code, negative for a signal, 0 when called again."""
        if self._ended:
            return 0
        self._ended = True
        # A process that ends by itself, as one does that hung up on us, keeps its own exit code.
        self._conversation.close()
        return self._workshop.reap(self._pid)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Workshop:
    """Starts workers. A context manager: all of them end with it, also by Ctrl-C.

    Args:
        traces: its workers trace files: what fake tensors import, for seconds, is imported once, in front.
    """

    def __init__(self, traces: bool = False) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="tconv-", ignore_cleanup_errors=True)
        self.directory = Path(self._files.name)
        self._pids: set[int] = set()
        self._ready = False
        ours, theirs = socket.socketpair()
        # An empty entry is the current directory.
        paths = [_PACKAGE_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        with theirs, (self.directory / "workshop.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), "traces" if traces else ""],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        self._control = ours

    def start(self, target: type, *, timeout_s: float, memory_bytes: int | None = None, **arguments: Any) -> Worker:
        """A worker that holds ``target(**arguments)``. The class is imported there, by the names that it has here.

        `memory_bytes` is what the process may map beside torch; give none for CUDA, which maps all of the GPU's
        memory. The errors are those of `Worker.call`.
        """
        worker = self.begin(target, timeout_s=timeout_s, memory_bytes=memory_bytes, **arguments)
        try:
            worker.finish()
        except BaseException:
            worker.close()
            raise
        return worker

    def begin(self, target: type, *, timeout_s: float, memory_bytes: int | None = None, **arguments: Any) -> Worker:
        """The same, where its `Worker.finish` is still to be called, before anything else of it."""
        self._await_ready()
        log = self.directory / f"{self.unused_name()}.log"
        ours, theirs = socket.socketpair()
        with theirs:
            request = {"log": str(log), "memory_bytes": memory_bytes, "module": target.__module__}
            pid = self._request(request, [theirs.fileno()])
        self._pids.add(pid)
        worker = Worker(self, pid, ours, log)
        try:
            worker._ask({"target": target.__name__, "module": target.__module__, "arguments": arguments}, timeout_s)
        except BaseException:
            worker.close()
            raise
        return worker

    def reap(self, pid: int) -> int:
        """End a forked process with all that it started, and return its exit code."""
        end_group(pid)
        self._pids.discard(pid)
        try:
            return self._request({"wait": pid})
        except Trouble:
            # Whoever knew the exit code is gone; the next `start` says so.
            return -signal.SIGKILL

    def end_strays(self) -> None:
        """End what has left a worker for the process that forks: nothing does that unless it means to."""
        for pid in children(self._process.pid) - self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def unused_name(self) -> str:
        """A name for files in `directory`, another one each time, which no worker has taken before."""
        return secrets.token_hex(8)

    def _await_ready(self) -> None:
        if self._ready:
            return
        self._control.settimeout(_START_SECONDS)
        with contextlib.suppress(OSError):
            self._ready = _read_line(self._control) == b"ready\n"
        if self._ready:
            return
        lines = (self.directory / "workshop.log").read_text(errors="replace").strip().splitlines()
        raise Trouble(f"the process that loads torch did not start: {lines[-1] if lines else 'it said nothing'}")

    def _request(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            return int(_read_line(self._control))
        except (OSError, ValueError):
            raise Trouble(
                "the process that starts all others is gone: a judged program or this machine's memory limit ended it"
            ) from None

    def close(self) -> None:
        """End all workers and remove their files."""
        if not self._ready:  # it loads torch still, and has started nobody
            self._process.kill()
        # The process that forks ends what is left when its socket closes.
        self._control.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._files.cleanup()

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_line(stream: socket.socket) -> bytes:
    """Bytes up to the end of the line, or up to the end of the stream."""
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = stream.recv(1 << 16)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} in the middle"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (" (out of memory, or it hung up?)" if name == "SIGKILL" else "")
