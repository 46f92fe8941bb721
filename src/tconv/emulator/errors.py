"""What can be wrong with a kernel, read from what the emulated program printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tconv.errors import TconvError

Kind = Literal[
    "address", "undefined", "race", "deadlock", "divergence", "warp", "barrier", "limit", "build", "timeout", "crash"
]

#: The engine's own reports: "tconv emulator: deadlock: no thread of block 0 ...".
_ENGINE_REPORT = re.compile(
    r"^tconv emulator: (deadlock|divergence|warp|barrier|limit|crash|request): (.*)", re.MULTILINE
)
#: The sanitizers' reports, in the order in which they are looked for.
_SANITIZER_REPORTS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("race", re.compile(r"WARNING: ThreadSanitizer: data race")),
    ("crash", re.compile(r"ERROR: AddressSanitizer: (stack-overflow|FPE|ILL|ABRT)")),
    ("address", re.compile(r"ERROR: AddressSanitizer")),
    ("undefined", re.compile(r"runtime error: ")),
)
#: Parts of the sanitizers' reports, and what stays of them: the engine, the process and long signatures say nothing.
_FIBER = re.compile(r"^ *Thread (T\d+) '(CUDA thread[^']*)'.*\n", re.MULTILINE)
_SHORTER: tuple[tuple[re.Pattern[str], str], ...] = (
    (_FIBER, ""),
    (re.compile(r"^ *#\d+ .*\b(tconv_emulator::(?!primitives)|in main |__interceptor_).*\n", re.MULTILINE), ""),
    (re.compile(r"^(=+|allocated by thread .*)\n", re.MULTILINE), ""),
    (re.compile(r"^Shadow bytes around.*?^==\d+==ABORTING\n", re.MULTILINE | re.DOTALL), ""),
    (re.compile(r"==\d+==| \(pid=\d+\)| \(\S+\+0x[0-9a-f]+\)|0x[0-9a-f]+ in | at pc 0x.*"), ""),
    (re.compile(r"\b(?:void )?([\w:]+)(?:<.*>)?\(.*\)(?= [\w./]+:\d+$|$)", re.MULTILINE), r"\1"),
    (re.compile(r"\n{3,}"), "\n\n"),
)
_SOURCE_LINE = re.compile(r"(\w+(?:/\w+)*\.(?:cuh|cu|h)):(\d+)")


class EmulatorError(TconvError):
    """A kernel did something wrong, or could not be built or run.

    Attributes:
        kind: "address" (out of bounds), "undefined" (undefined behaviour of C++, such as a misaligned
            vector load), "race", "deadlock", "divergence" (a barrier that not all threads reach), "warp" (a
            shuffle with lanes that are not there), "barrier" (one in shared memory that was not made, or more arrivals
            than it was made for), "limit" (more than the emulator keeps), "build", "timeout" or "crash".
        report: the whole report, with the source lines that it names.
    """

    def __init__(self, kind: Kind, report: str) -> None:
        super().__init__(f"{kind}: {report}")
        self.kind: Kind = kind
        self.report = report


def failure(return_code: int, output: str, sources: Mapping[str, str]) -> Exception:
    """The exception for a program that ended with `return_code` and printed `output`.

    Args:
        sources: file name as in reports -> text, for quoting the lines that the report names.

    Returns:
        `EmulatorError`, or `ValueError` where the arguments do not fit the kernel's parameters.
    """
    engine = _ENGINE_REPORT.search(output)
    if engine and engine[1] == "request":
        return ValueError(engine[2])
    if "ThreadSanitizer: unexpected memory mapping" in output:
        return EmulatorError(
            "build",
            "ThreadSanitizer does not start under this kernel's address randomisation, which could not be "
            "switched off for the program either: run `sysctl vm.mmap_rnd_bits=28` as root",
        )
    if "error while loading shared libraries" in output:
        return EmulatorError("build", output.strip())
    report = readable(output) + quoted_lines(output, sources)
    if engine:
        return EmulatorError(engine[1], report)  # type: ignore[arg-type]
    for kind, pattern in _SANITIZER_REPORTS:
        if pattern.search(output):
            return EmulatorError(kind, report)
    ended = f"ended by signal {-return_code}" if return_code < 0 else f"ended with status {return_code}"
    return EmulatorError("crash", f"the emulated program {ended}\n{report}".strip())


def readable(output: str) -> str:
    """A sanitizer's report without what it says about the engine and itself, and with CUDA's thread numbers."""
    for name, thread in _FIBER.findall(output):
        output = re.sub(rf"\bthread {name}\b", thread, output)
    for pattern, replacement in _SHORTER:
        output = pattern.sub(replacement, output)
    return output.strip()


def quoted_lines(report: str, sources: Mapping[str, str], limit: int = 8) -> str:
    """The source lines that `report` names as ``kernel.cu:12``, quoted below each other."""
    quotes: dict[str, str] = {}
    for name, number in _SOURCE_LINE.findall(report):
        lines = sources.get(name, "").splitlines()
        if 0 < int(number) <= len(lines) and len(quotes) < limit:
            quotes.setdefault(f"{name}:{number}", lines[int(number) - 1].strip())
    if not quotes:
        return ""
    return "\n\nsource lines:\n" + "\n".join(f"  {place}: {line}" for place, line in quotes.items())
