"""Questions to a worker process and its answers, one line of JSON each, in limited time and length.

What comes back was written in the process of somebody's program, which may have written to the socket itself: until
it is checked, it is bytes.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

#: The longest answer. Tensors travel in files; a traceback or a hundred shapes fit into a fraction of this.
_LONGEST_ANSWER = 2**24


class Garbled(Exception):
    """What was read is no answer to the question; the message is a clause."""


class Conversation:
    """Asks one question after the other. Each has a number, which its answer repeats.

    Without the number, a second process that answers, or an answer before the question, would shift all that follow.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._unread = b""
        self._number = 0
        self._deadline = 0.0

    def ask(self, question: dict[str, Any], timeout_s: float) -> None:
        """Put a question. `answer` is to be called before the next one.

        Raises:
            TimeoutError: nobody reads it in time.
            EOFError: the other end hung up.
        """
        self._number += 1
        self._deadline = time.monotonic() + timeout_s
        self._stream.settimeout(timeout_s)
        try:
            self._stream.sendall(json.dumps({**question, "number": self._number}).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None

    def answer(self) -> dict[str, Any]:
        """To the last question: a dict with either `value`, or the strings `error`, `message` and `traceback`.

        Raises:
            TimeoutError: no whole line has come, and the time that the question had is over.
            EOFError: the other end hung up.
            Garbled: what came is no answer.
        """
        try:
            line = self._read_line(self._deadline)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None
        return _checked(line, self._number)

    def _read_line(self, deadline: float) -> bytes:
        while b"\n" not in self._unread:
            if len(self._unread) > _LONGEST_ANSWER:
                raise Garbled(f"answered more than {_LONGEST_ANSWER} bytes")
            # The limit is on the whole answer: a byte now and then would put off one on each read. Who asks for the
            # answer later than that has what came until then.
            self._stream.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                part = self._stream.recv(1 << 16)
            except BlockingIOError:
                raise TimeoutError from None
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """Hang up."""
        self._stream.close()


def _checked(line: bytes, number: int) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise Garbled("wrote something else than an answer to its socket") from None
    if not isinstance(answer, dict) or answer.get("number") != number:
        raise Garbled("wrote an answer of its own to its socket")
    words = [answer.get(name, "") for name in ("error", "message", "traceback")]
    if ("value" in answer) == ("error" in answer) or not all(isinstance(word, str) for word in words):
        raise Garbled("wrote an answer of its own to its socket")
    return answer
