"""CUDA text to a cubin by NVRTC, and the compiler's own report. Needs no GPU and no driver."""

from __future__ import annotations

import hashlib
import io
import re
import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tconv.errors import CompileError, MissingToolchain
from tconv.jit.toolchain import cuda_core, install_line, nvrtc_version
from tconv.settings import settings

#: From this version on NVRTC keeps results, and has an option against it.
_WITH_CACHE = (13, 0)
_REGISTERS = re.compile(r"Used (\d+) registers")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
#: Registers, spilled bytes and stack bytes as an entry of the cache has them.
_REPORT, _NOT_REPORTED = struct.Struct("<3q"), -1


@dataclass(frozen=True)
class Compiled:
    """A compiled translation unit.

    Args:
        cubin: machine code for one arch.
        registers: of a thread; the most that any kernel of the unit uses.
        spill_bytes: stored and loaded because registers did not suffice, over all kernels of the unit.
        stack_bytes: local memory of a thread; the most that any kernel of the unit uses. All three are None where the
            compiler reports nothing.
        log: what the compiler said.
        seconds: that the compilation took.
    """

    cubin: bytes = field(repr=False)
    registers: int | None
    spill_bytes: int | None
    stack_bytes: int | None
    log: str = field(repr=False)
    seconds: float

    def to_bytes(self) -> bytes:
        """The cubin and, behind it, the three numbers, where tools that read cubins do not look."""
        numbers = (self.registers, self.spill_bytes, self.stack_bytes)
        return self.cubin + _REPORT.pack(*(_NOT_REPORTED if number is None else number for number in numbers))

    @classmethod
    def from_bytes(cls, entry: bytes) -> Compiled:
        """What `to_bytes` wrote; the log was not kept, and nothing was compiled."""
        cubin, numbers = entry[: -_REPORT.size], _REPORT.unpack(entry[-_REPORT.size :])
        registers, spilled, stack = (None if number == _NOT_REPORTED else number for number in numbers)
        return cls(cubin, registers, spilled, stack, log="", seconds=0.0)


def compile_source(source: str, arch: str, *, name: str = "tconv_kernel", headers: Path | None = None) -> Compiled:
    """Compiles one translation unit.

    Args:
        source: CUDA C++.
        arch: ``"sm_80"``, ``"sm_90a"``, …
        name: how messages call the unit.
        headers: include path; nothing else is on it.

    Raises:
        CompileError: NVRTC refused the text or the arch.
        MissingToolchain: there is no NVRTC.
    """
    log = io.StringIO()
    started = time.perf_counter()
    options = program_options(arch, name, headers)
    try:
        cubin = bytes(cuda_core().Program(source, "c++", options).compile("cubin", logs=log).code)
    except RuntimeError as error:  # a library that is absent; what NVRTC itself says is no RuntimeError
        raise MissingToolchain(f"NVRTC cannot be loaded ({error}); {install_line()}") from error
    except Exception as error:
        raise _compile_error(source, arch, name, str(error)) from error
    finally:
        _let_signals_interrupt()
    seconds = time.perf_counter() - started
    registers, spilled, stack = _report(log.getvalue())
    return Compiled(cubin, registers, spilled, stack, log.getvalue(), seconds)


def program_options(arch: str, name: str, headers: Path | None) -> Any:
    """The options of every compilation, as `cuda.core.ProgramOptions`.

    Raises:
        MissingToolchain: there is no NVRTC.
    """
    version = nvrtc_version()  # loads NVRTC where an interrupt does no harm, before a key or a compilation would
    return cuda_core().ProgramOptions(
        name=f"{name}.cu",
        arch=arch,
        std="c++17",
        ptxas_options="-v",
        include_path=str(headers) if headers else None,
        no_source_include=True,  # else a file of the working directory could stand in for a header
        no_cache=version >= _WITH_CACHE or None,  # what comes from NVRTC's own cache comes without a report
    )


def _let_signals_interrupt() -> None:
    """NVRTC puts handlers of signals back with SA_RESTART set: Ctrl-C would no longer end a wait for a lock."""
    if sys.platform != "win32":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.siginterrupt(number, True)


def _report(log: str) -> tuple[int, int, int] | tuple[None, None, None]:
    """Registers, spilled bytes and stack bytes, read from ptxas' words; None without them."""
    if not _REGISTERS.search(log):
        return None, None, None
    frames = [tuple(map(int, match.groups())) for match in _FRAME.finditer(log)]
    registers = max(int(match[1]) for match in _REGISTERS.finditer(log))
    spilled = sum(stores + loads for _, stores, loads in frames)
    return registers, spilled, max((stack for stack, _, _ in frames), default=0)


def _compile_error(source: str, arch: str, name: str, log: str) -> CompileError:
    path = _save(source, arch, name)
    kept = f"its source is in {path}" if path else "its source could not be saved (set TCONV_CACHE_DIR)"
    version = ".".join(map(str, nvrtc_version()))
    return CompileError(f"NVRTC {version} does not compile {name} for {arch}; {kept}", log, path)


def _save(source: str, arch: str, name: str) -> Path | None:
    directory = settings().cache_directory
    if directory is None:
        return None
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    path = directory / "failed" / f"{name}_{arch}_{digest}.cu"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    except OSError:
        return None
    return path
