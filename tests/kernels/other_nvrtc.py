"""NVRTC releases other than the installed one, fetched as wheels and run in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

#: Compiles every *.cu in the folder argv[2] for the archs argv[3:] with the NVRTC in the folder argv[1].
_COMPILE = """
import ctypes, pathlib, sys
libraries, sources, *archs = sys.argv[1:]
for builtins in pathlib.Path(libraries).glob("libnvrtc-builtins*"):
    ctypes.CDLL(str(builtins))
nvrtc = ctypes.CDLL(str(next(pathlib.Path(libraries).glob("libnvrtc.so.*"))))
for path in sorted(pathlib.Path(sources).glob("*.cu")):
    for arch in archs:
        program = ctypes.c_void_p()
        text = path.read_bytes()
        assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, path.name.encode(), 0, None, None) == 0
        flags = (ctypes.c_char_p * 2)(f"--gpu-architecture={arch}".encode(), b"-std=c++14")
        status = nvrtc.nvrtcCompileProgram(program, 2, flags)
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        if status != 0:
            sys.exit(f"{path.name} for {arch}: {log.value.decode(errors='replace')}")
        assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0 and size.value > 1000
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
"""


def fetched(requirement: str, folder: Path, *tags: str) -> Path:
    """The wheel of a requirement, or a loud skip where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *tags]
    result = subprocess.run([*command, "-d", str(folder), requirement], capture_output=True, text=True, timeout=900)
    if result.returncode != 0:
        pytest.skip(f"cannot fetch {requirement}: {result.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def extracted(wheel: Path, folder: Path, prefix: str) -> Path:
    """The part of a wheel under `prefix`, unpacked into `folder`; the wheel is removed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(prefix)])
    wheel.unlink()
    return folder / prefix


def compile_with(requirement: str, sources: Mapping[str, str], archs: tuple[str, ...], folder: Path) -> None:
    """Compiles texts without includes, by name, as C++14; fails with NVRTC's words where one is refused.

    In another process: NVRTC 11.7 leaves the thread that called it with another locale.
    """
    wheel = fetched(requirement, folder, "--platform", "manylinux1_x86_64", "--platform", "manylinux2014_x86_64")
    libraries = extracted(wheel, folder, "nvidia/cuda_nvrtc/lib")
    for name, text in sources.items():
        (folder / f"{name}.cu").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", _COMPILE, str(libraries), str(folder), *archs]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
