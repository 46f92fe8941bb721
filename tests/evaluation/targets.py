"""What the tests of the workers run in a worker: things that somebody's program may do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Program:
    """Misbehaves on demand."""

    def __init__(self, greeting: str = "hello") -> None:
        self._greeting = greeting
        self._calls = 0

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

    def hoard(self, gigabytes: int) -> int:
        return len(bytearray(gigabytes * 2**30))

    def start_child(self, pid_file: str) -> None:
        """A process that outlives a careless kill."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(pid_file).write_text(str(child.pid))
        self.loop()


class Refuses:
    def __init__(self) -> None:
        raise ValueError("not today")
