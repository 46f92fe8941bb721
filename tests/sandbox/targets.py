"""What the tests of the workers run in a worker: things that somebody's program may do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tconv.errors import Trouble


class Program:
    """Misbehaves on demand."""

    def __init__(self, greeting: str = "hello") -> None:
        self._greeting = greeting
        self._calls = 0
        self._counter: list[int] = []

    def greet(self, name: str) -> str:
        self._calls += 1
        return f"{self._greeting} {name} {self._calls}"

    def pid(self) -> int:
        return os.getpid()

    def talk(self) -> dict[str, Any]:
        """Writes where an answer might be mistaken for its own, and to the file descriptor itself."""
        print('{"value": "forged"}')
        os.write(1, b"straight to the descriptor\n")
        print("to stderr", file=sys.stderr)
        return {"answer": [1, 2.5, None]}

    def loop(self) -> None:
        while True:
            time.sleep(0.01)

    def leave(self, code: int) -> None:
        os._exit(code)

    def crash(self) -> None:
        os.kill(os.getpid(), 11)

    def quit(self) -> None:
        sys.exit(0)

    def fail(self) -> None:
        raise ValueError("of our own making")

    def is_in_trouble(self) -> None:
        raise Trouble("no room")

    def say(self, line: str) -> None:
        """Write a line to the socket, ahead of the answer."""
        for fd in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(fd, line.encode() + b"\n") if stat.S_ISSOCK(os.fstat(fd).st_mode) else None

    def drip(self) -> None:
        """A byte now and then, and never a whole line."""
        while True:
            for fd in range(3, 64):
                with contextlib.suppress(OSError):
                    os.write(fd, b" ") if stat.S_ISSOCK(os.fstat(fd).st_mode) else None
            time.sleep(0.05)

    def end_its_parent(self) -> None:
        os.kill(os.getppid(), 9)

    def spin(self) -> int:
        """Leave a thread behind that counts; how far it has come."""
        if not self._counter:
            threading.Thread(target=lambda: [self._counter.append(1) or time.sleep(1e-3) for _ in iter(int, 1)]).start()
        return len(self._counter)

    def hoard(self, gigabytes: int) -> int:
        return len(bytearray(gigabytes * 2**30))

    def start_child(self, pid_file: str, away: bool) -> None:
        """A process that outlives a careless kill; `away` from this one's group, a more careful one, too."""
        child = subprocess.Popen(["sleep", "600"], start_new_session=away)
        Path(pid_file).write_text(str(child.pid))
        self.loop()

    def start_counter(self, file: str, leaves: bool) -> None:
        """A process, none of this one's children any more, that counts in a file; one that `leaves` goes further."""
        if leaves:
            ctypes.CDLL(None).prctl(36, 0)  # whoever is left is handed on
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open(file, "ab", buffering=0) as counted:
                    counted.write(f"{os.getpid()} ".encode())
                    while True:
                        counted.write(b".")
                        time.sleep(1e-3)
            os._exit(0)
        os.wait()
        while not (os.path.exists(file) and os.path.getsize(file)):
            time.sleep(1e-3)

    def wait_for_more(self, file: str) -> None:
        """Wait until that process has counted on."""
        before = os.path.getsize(file)
        while os.path.getsize(file) == before:
            time.sleep(1e-3)


class Refuses:
    def __init__(self) -> None:
        raise ValueError("not today")
