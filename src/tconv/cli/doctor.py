"""`tconv doctor`: what this machine has, what is missing, and the line that gets it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tconv.cli import exit_codes
from tconv.cli.console import results
from tconv.errors import MissingToolchain
from tconv.version import __version__

_ONLY_INLINE = "only building load_inline takes it"


@dataclass(frozen=True)
class Finding:
    """One line of the report: `remedy` says how to get what is missing; without what is `required`, no `optimize`."""

    name: str
    found: str
    remedy: str | None = None
    required: bool = False

    @property
    def mark(self) -> str:
        if self.remedy is None:
            return "[green]ok[/]"
        return "[red]missing[/]" if self.required else "[yellow]absent[/]"


def doctor() -> int:
    """Say what this machine has, what is missing, and the line that gets it."""
    from rich.markup import escape
    from rich.table import Table

    findings = list(examine())
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        table.add_row(finding.mark, finding.name, escape(finding.found))
        if finding.remedy is not None:
            table.add_row("", "", f"→ {escape(finding.remedy)}")
    console = results()
    console.print(table)
    absent = [finding.name for finding in findings if finding.remedy is not None]
    missing = [finding.name for finding in findings if finding.remedy is not None and finding.required]
    if missing:
        console.print(f"[red]`tconv optimize` cannot run here: {', '.join(missing)}.[/]")
        return exit_codes.TROUBLE
    console.print(_what_works(absent))
    return exit_codes.EQUAL


def versions() -> dict[str, str]:
    """Versions of what a run stands on, by name; "not installed" where a package is missing."""
    found = {"tconv": __version__, "python": platform.python_version()}
    for package in ("torch", "cuda-core", "cuda-bindings"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def examine() -> Iterator[Finding]:
    """Everything that `tconv doctor` reports, in order."""
    found = versions()
    yield Finding("tconv", found["tconv"])
    yield Finding("Python", found["python"])
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", str(error).splitlines()[0], "pip install torch", required=True)
        return
    cuda = torch.version.cuda
    yield Finding("torch", f"{torch.__version__}, built for {f'CUDA {cuda}' if cuda else 'the CPU'}")
    yield _gpu()
    yield _package("cuda-core", found)
    yield _package("cuda-bindings", found)
    yield _nvrtc()
    yield _nvcc()
    yield _compiler(required=not torch.cuda.is_available())
    yield _ninja()
    yield _python_headers()
    yield _cache()


def _what_works(absent: list[str]) -> str:
    if "GPU" in absent:
        return "`tconv optimize` works: kernels are compiled, and run in the CPU emulator. Times need a GPU."
    if absent:
        return f"`tconv optimize` works: kernels are compiled by NVRTC, run and timed. Not here: {', '.join(absent)}."
    return "Everything works."


def _gpu() -> Finding:
    import torch

    from tconv.jit.toolchain import driver_version

    try:
        driver = driver_version()
    except MissingToolchain:
        driver = None
    runs = f", driver for CUDA {driver[0]}.{driver[1]}" if driver else ""
    if torch.cuda.is_available():
        all_properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        names = [f"{p.name}, sm_{p.major}{p.minor}, {p.total_memory / 2**30:.0f} GiB" for p in all_properties]
        return Finding("GPU", "; ".join(names) + runs)
    if driver is not None and torch.version.cuda is None:
        return Finding("GPU", f"not used: torch is built for the CPU{runs}", "install a torch built for CUDA")
    return Finding("GPU", f"none{runs}", "for times, an NVIDIA GPU of sm_75 or newer")


def _package(name: str, found: dict[str, str]) -> Finding:
    from tconv.jit.toolchain import install_line

    if found[name] == "not installed":
        return Finding(name, found[name], install_line(), required=True)
    return Finding(name, found[name])


def _nvrtc() -> Finding:
    from tconv.jit.toolchain import check_driver, nvrtc_version

    version = "not found"
    try:
        version = ".".join(map(str, nvrtc_version()))
        check_driver()
    except MissingToolchain as trouble:
        return Finding("NVRTC", version, str(trouble), required=True)
    return Finding("NVRTC", version)


def _nvcc() -> Finding:
    homes = [Path(value) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if (value := os.environ.get(name))]
    places = [*map(str, homes), os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    path = shutil.which("nvcc", path=os.pathsep.join(places))
    if path is None:
        remedy = f"conda install -c nvidia cuda-toolkit, or NVIDIA's installer; {_ONLY_INLINE}"
        return Finding("nvcc", "not found", remedy)
    return Finding("nvcc", path)


def _compiler(required: bool) -> Finding:
    path = shutil.which("g++")
    if path is None:
        remedy = "Debian and Ubuntu: apt install g++; the CPU emulator and building load_inline take it"
        return Finding("g++", "not found", remedy, required)
    return Finding("g++", path)


def _ninja() -> Finding:
    """On PATH, where torch looks for it. The wheel puts it into the environment's folder, on PATH once activated."""
    path = shutil.which("ninja")
    if path is None:
        own = sysconfig.get_path("scripts")
        remedy = f'export PATH="{own}:$PATH"' if shutil.which("ninja", path=own) else "pip install ninja"
        return Finding("ninja", "not on PATH", f"{remedy}; {_ONLY_INLINE}")
    return Finding("ninja", path)


def _python_headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return Finding("Python.h", f"{header} not found", f"Debian and Ubuntu: apt install python3-dev; {_ONLY_INLINE}")
    return Finding("Python.h", str(header))


def _cache() -> Finding:
    from tconv.cli.cache import describe
    from tconv.jit.cache import info

    held = info()
    if held.directory is None:
        return Finding("cache", "none: there is no home directory", "set TCONV_CACHE_DIR to an absolute path")
    existing = next(folder for folder in (held.directory, *held.directory.parents) if os.path.exists(folder))
    if not os.access(existing, os.W_OK):
        return Finding("cache", f"{held.directory} cannot be written", "set TCONV_CACHE_DIR to one that can")
    return Finding("cache", describe(held))
