"""From a CUDA translation unit to a program for the CPU: g++, and its flags."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from tconv.emulator import cache
from tconv.emulator.errors import EmulatorError

Mode = Literal["plain", "address", "thread"]
#: How fibers are switched: "native" (assembly on x86-64, else ucontext) or "ucontext".
Fibers = Literal["native", "ucontext"]

MODES: tuple[Mode, ...] = get_args(Mode)
#: The name under which reports know the translation unit.
UNIT_NAME = "kernel.cu"

_INCLUDE = Path(__file__).parent / "include"
_KERNELS = Path(__file__).parent.parent / "kernels"
_LANGUAGE = ("-fmax-errors=10", "-std=c++17", "-pthread", "-fno-strict-aliasing", "-ffp-contract=off")
#: Compiling takes longer than running, but under ThreadSanitizer. -Og takes two thirds of the time of -O2, and its
#: programs run as fast. Reports need the lines, not the variables.
_SANITIZED = ("-g1", "-fno-omit-frame-pointer")
_KERNEL_FLAGS: dict[Mode, tuple[str, ...]] = {
    "plain": ("-Og",),
    "address": ("-O0", *_SANITIZED, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", *_SANITIZED, "-fsanitize=thread"),
}
_ENGINE_FLAGS: dict[Mode, tuple[str, ...]] = {
    "plain": (),
    "address": ("-DTCONV_EMULATOR_ADDRESS",),
    "thread": ("-DTCONV_EMULATOR_THREAD",),
}
_KERNEL_NAME = re.compile(r"\bvoid\s+(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\s*\(")
_MISSING_RUNTIME = re.compile(r"cannot find (?:-l|lib)(asan|ubsan|tsan)")


def build(source: str, mode: Mode = "plain", *, fibers: Fibers = "native") -> Path:
    """Compile `source` with the engine to a program; a program that was built before is reused.

    Args:
        source: one translation unit, as NVRTC would take it, with at least one ``extern "C" __global__`` kernel.
        mode: "plain", "address" (AddressSanitizer and UndefinedBehaviorSanitizer) or "thread"
            (ThreadSanitizer).
        fibers: "ucontext" takes the portable way of switching threads also where there is a faster one.

    Returns:
        The program, in the cache directory of `tconv.settings` or, where that cannot be written, in a
        temporary one that lasts as long as this process.

    Raises:
        EmulatorError: of kind "build", with the compiler's messages.
        ValueError: for an unknown mode, or a source without a kernel.
    """
    if mode not in MODES:
        raise ValueError(f"got mode {mode!r}; allowed are {', '.join(MODES)}")
    names = kernel_names(source)
    if not names:
        raise ValueError('the source has no kernel: it needs an extern "C" __global__ function')
    engine = _engine(mode, fibers)
    flags = (*_LANGUAGE, *_KERNEL_FLAGS[mode], *_processor_flags(), "-DTCONV_EMULATOR", "-include", "tconv_emulator.h")
    places = (f"-I{_KERNELS}", f"-ffile-prefix-map={_KERNELS}/=", f"-I{_INCLUDE}", f"-ffile-prefix-map={_INCLUDE}/=")
    inputs = ("-x", "c++", UNIT_NAME, "-x", "none", str(engine))
    unit = source + "\n" + _registration(names)
    headers = _digest_of(_KERNELS, "*.cuh") if "#include" in source else ""
    digests = (headers, _digest_of(_INCLUDE, "*.h"), engine.name)
    return _built("program", flags, (*places, *inputs), {UNIT_NAME: unit}, digests)


def kernel_names(source: str) -> list[str]:
    """The names of the ``extern "C" __global__`` functions that `source` defines, in order."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    heads = re.findall(r'extern\s+"C"\s+([^;{]*?__global__[^;{]*)\{', code)
    return [match[1] for head in heads if (match := _KERNEL_NAME.search(head))]


def kernel_headers() -> dict[str, str]:
    """Name and text of the headers that a source can include, and of the CPU bodies of their primitives."""
    texts = {}
    for directory, pattern in ((_KERNELS, "*.cuh"), (_INCLUDE, "primitives/*.h")):
        for path in sorted(directory.rglob(pattern)):
            texts[path.relative_to(directory).as_posix()] = path.read_text(encoding="utf-8")
    return texts


def _registration(names: Sequence[str]) -> str:
    """The end of a program's translation unit: the table through which the engine finds its kernels."""
    entries = ", ".join(f'Adapter<{name}>::entry("{name}")' for name in names)
    return (
        '#line 1 "the table of kernels"\n'
        "namespace tconv_emulator {\n"
        f"const Kernel kernels[] = {{{entries}}};\n"
        f"const unsigned kernel_count = {len(names)};\n"
        "}\n"
    )


def _engine(mode: Mode, fibers: Fibers) -> Path:
    """The engine as one object file. It is never instrumented: the sanitizers watch kernels only."""
    sources = sorted(str(path) for path in (_INCLUDE / "emulator").glob("*.cpp"))
    defines = [*_ENGINE_FLAGS[mode], *(["-DTCONV_EMULATOR_UCONTEXT"] if fibers == "ucontext" else [])]
    flags = (*_LANGUAGE, "-O2", *_processor_flags(), *defines, "-r", "-nostdlib")
    return _built("engine.o", flags, sources, {}, (_digest_of(_INCLUDE, "*.h", "*.cpp"),))


def _built(
    name: str, flags: Sequence[str], places: Sequence[str], files: dict[str, str], digests: Sequence[str]
) -> Path:
    """What g++ makes of `files`, from the cache where it is there.

    Args:
        places: further arguments, which say only where something lies.
        digests: of all that g++ reads beside `files`.
    """

    def build(directory: Path) -> None:
        for file_name, text in files.items():
            Path(directory, file_name).write_text(text, encoding="utf-8")
        command = [_compiler(), *flags, *places, f"-ffile-prefix-map={directory}=.", "-o", name]
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if result.returncode != 0 and os.strerror(errno.ENOSPC) in result.stderr:
            raise OSError(errno.ENOSPC, result.stderr)
        if result.returncode != 0:
            raise EmulatorError("build", _explained(result.stderr))

    parts = (_compiler(), _compiler_version(), *flags, *files.values(), *digests)
    return cache.built(cache.digest("\0".join(parts).encode()), name, build)


def _explained(messages: str) -> str:
    missing = _MISSING_RUNTIME.search(messages)
    if missing is None:
        return messages.strip()
    library = f"lib{missing[1]}"
    return f"{library} not found, which this mode needs: install it (Debian's g++ brings it; `dnf install {library}`)"


@functools.cache
def _compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        raise EmulatorError("build", "g++ not found: install g++ (Debian, Ubuntu: `apt install g++`)")
    return compiler


@functools.cache
def _compiler_version() -> str:
    return subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def _processor_flags() -> tuple[str, ...]:
    """Hardware fma where there is one: the same results as libm's function, several times faster."""
    if platform.machine() != "x86_64":
        return ()
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].split()
    except OSError:
        return ()
    return ("-mfma",) if "fma" in flags else ()


def _digest_of(directory: Path, *patterns: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in directory.rglob(pattern)):
        digest.update(str(path.relative_to(directory)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
