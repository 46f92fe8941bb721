"""The other end of `worker`: a process that imports torch once, and the processes that it forks, one for each job.

The first, which runs nobody's code, waits on a socket for requests to fork. A forked process holds one object, the
target, and calls its methods as the other end asks; it ends when that end hangs up.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import traceback
from typing import Any

from tconv.errors import OutOfMemory
from tconv.sandbox.gpu_memory import release, shortage
from tconv.sandbox.recording import preload
from tconv.sandbox.untrusted import adopt_orphans, children, end_group

#: The largest file that a program may write: one that prints without end must not fill the disk.
_FILE_BYTES = 2**36
#: The longest request to fork, in bytes; it carries a few paths.
_REQUEST_BYTES = 1 << 16


def main(control_fd: int, traces: bool) -> None:
    """Serve requests to fork until the other end hangs up, then end every process that is left."""
    control = socket.socket(fileno=control_fd)
    preload()
    if traces:
        importlib.import_module("torch._dynamo")
    # What was imported stays, in every process that is forked: no collection goes through it.
    gc.freeze()
    gc.enable()
    adopt_orphans()
    control.sendall(b"ready\n")
    workers: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1)
        if not message:
            break
        request = json.loads(message)
        if "wait" in request:
            workers.discard(request["wait"])
            _, status = os.waitpid(request["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
            _end_orphans(workers)
        else:
            # Once for all that hold such a target, rather than once in each.
            importlib.import_module(request["module"])
            answer = os.fork()
            if answer == 0:
                control.close()
                _become_worker(socket.socket(fileno=descriptors[0]), request)
            workers.add(answer)
            os.close(descriptors[0])
        control.sendall(f"{answer}\n".encode())
    for worker in workers:
        end_group(worker)
        os.waitpid(worker, 0)
    _end_orphans(set())
    # Nothing is left to do; torch's own shutdown takes a second.
    os._exit(0)


def _end_orphans(ours: set[int]) -> None:
    """End all children of this process but `ours`, and theirs, which become ours by that."""
    while orphans := children(os.getpid()) - ours:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _become_worker(conversation: socket.socket, request: dict[str, Any]) -> None:
    """Serve one target in this, freshly forked, process. Does not return."""
    status = 1
    try:
        os.setsid()
        # What it starts stays below it, where it is found when all of that is to stand still.
        adopt_orphans()
        conversation.set_inheritable(False)
        _redirect(request["log"])
        with contextlib.suppress(ValueError):  # where the limit is lower already
            resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        if request["memory_bytes"] is not None:
            _limit_memory(request["memory_bytes"])
        _converse(conversation)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Exit handlers belong to the process that was forked.
        os._exit(status)


def _limit_memory(more: int) -> None:
    """Let this process map so many bytes more than it has; torch itself maps up to ten gigabytes of libraries."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as counts:
        more += int(counts.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (more, more))


def _redirect(log: str) -> None:
    """stdout and stderr into a file, stdin from nowhere."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)


def _converse(conversation: socket.socket) -> None:
    target: Any = None
    with conversation.makefile("rwb") as stream:
        for line in stream:
            request = json.loads(line)
            try:
                if "target" in request:
                    target = getattr(sys.modules[request["module"]], request["target"])(**request["arguments"])
                    answer: dict[str, Any] = {"value": None}
                else:
                    answer = {"value": getattr(target, request["method"])(**request["arguments"])}
                encoded = json.dumps({**answer, "number": request["number"]})
            except BaseException as error:
                encoded = json.dumps({**_describe(error), "number": request["number"]})
            # Until the next request, which may never come. A GPU that was lost is told of by the answer.
            with contextlib.suppress(Exception):
                release(some=True)
            sys.stdout.flush()
            sys.stderr.flush()
            stream.write(encoded.encode() + b"\n")
            stream.flush()


def _describe(error: BaseException) -> dict[str, Any]:
    wanted = shortage(error)
    return {
        "error": type(error).__name__ if wanted is None else OutOfMemory.__name__,
        "message": wanted or str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
