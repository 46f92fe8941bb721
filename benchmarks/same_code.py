"""Whether kernels have the machine code that they had in another revision: then what was measured there holds here.

    PYTHONPATH=src python3 benchmarks/same_code.py REVISION

Compiles every instance of `tconv.kernels.instances`, which vary each parameter that a template reads, with the headers
of both. If all are the same, it writes benchmarks/results/same_code.json, which `results.machine` reads. Needs no GPU.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from machine_code import machine_code
from results import ROOT, kernels, load, save

from tconv.jit.compile import compile_source
from tconv.jit.toolchain import nvrtc_version
from tconv.kernels.instances import instances
from tconv.kernels.source import family_header, functions, header_directory
from tconv.planner import FAMILIES, Kernel

#: Of the GPU that was measured on.
_ARCH = "sm_90a"


def headers_of(revision: str, folder: Path) -> Path:
    """The files of a revision, in `folder`."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder / "src" / "tconv" / "kernels"


def digest_of(folder: Path) -> str:
    """What the revision in `folder` calls its kernels."""
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}:{folder / 'benchmarks'}"}
    command = [sys.executable, "-c", "from results import kernels; print(kernels())"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def text_of(headers: Path, name: str) -> dict[str, str]:
    """The named header and all that it includes, by name."""
    text = (headers / name).read_text(encoding="utf-8")
    included = re.findall(r'^#include "([\w./]+)"$', text, re.MULTILINE)
    return {name: text, **{key: value for each in included for key, value in text_of(headers, each).items()}}


def every_kernel(before: Path) -> Iterator[Kernel]:
    """Those of families whose headers differ."""
    for family in FAMILIES:
        if text_of(before, family_header(family)) != text_of(header_directory(), family_header(family)):
            yield from (instance.kernel for instance in instances(family))


def differs(before: Path, kernel: Kernel) -> str:
    """Which kernel it is, if its machine code is another; else nothing."""
    unit = f'#include "{family_header(kernel.family)}"\n\n{functions(kernel, "tconv_kernel")}'
    there, here = (machine_code(compile_source(unit, _ARCH, headers=at).cubin) for at in (before, header_directory()))
    return "" if there == here else f"{kernel.family}: {kernel.layer.describe()}, {kernel.tile}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    revision = parser.parse_args().revision
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor() as pool:
        before = headers_of(revision, Path(folder))
        wanted = list(dict.fromkeys(every_kernel(before)))
        others = [name for name in pool.map(partial(differs, before), wanted, chunksize=4) if name]
        digest = digest_of(Path(folder))
    print(*others, f"{len(wanted) - len(others)} of {len(wanted)} kernels have the same machine code", sep="\n")
    if others or not wanted:
        return 1
    nvrtc = ".".join(map(str, nvrtc_version()))
    kept = load("same_code") or {"kernels": "", "as": []}
    known = kept["as"] if digest in (kept["kernels"], *kept["as"]) else []
    same = list(dict.fromkeys([digest, *known]))
    save("same_code", {"kernels": kernels(), "as": same, "instances": len(wanted), "arch": _ARCH, "nvrtc": nvrtc})
    return 0


if __name__ == "__main__":
    sys.exit(main())
