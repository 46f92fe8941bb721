"""Whether kernels have the machine code that they had in another revision: then what was measured there holds here.

    PYTHONPATH=src python3 benchmarks/same_code.py REVISION [--every N] [--but TEXT ...]

Compiles every N-th instance of `tconv.kernels.instances`, which vary each parameter that a template reads, of those
that both revisions have, by name. If all are the same, it writes benchmarks/results/same_code.json, which
`results.machine` reads. `--but` leaves out those whose names contain a text: of layers that nobody measured with the
kernels of REVISION. Needs no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from machine_code import machine_code
from results import ROOT, kernels, load, save

#: Of the GPU that was measured on.
_ARCH = "sm_90a"


@cache
def every_instance() -> dict[str, Any]:
    """Those of this process' tconv, by name."""
    from tconv.kernels.instances import AXES, instances

    return {instance.name: instance for family in AXES for instance in instances(family)}


def code_of(name: str) -> str:
    """A digest of the machine code of that instance; empty if there is none."""
    from tconv.jit.compile import compile_source
    from tconv.kernels.source import header_directory, unit

    every = every_instance()
    if name not in every:
        return ""
    cubin = compile_source(unit(every[name].kernel), _ARCH, headers=header_directory()).cubin
    return hashlib.sha256(b"".join(sorted(machine_code(cubin).values()))).hexdigest()


def codes(source: Path, names: Sequence[str]) -> list[str]:
    """`code_of` of those instances, by the tconv in the folder `source`."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, __file__, "--codes", *names]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def extracted(revision: str, folder: Path) -> Path:
    """The files of a revision, in `folder`."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def digest_of(folder: Path) -> str:
    """What the revision in `folder` calls its kernels."""
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}:{folder / 'benchmarks'}"}
    command = [sys.executable, "-c", "from results import kernels; print(kernels())"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument(
        "--but", nargs="+", default=[], metavar="TEXT", help="leave out instances with this in the name"
    )
    parser.add_argument("--codes", nargs="+", metavar="NAME", help="print those of this tconv, as JSON")
    options = parser.parse_args()
    if options.codes:
        with ProcessPoolExecutor() as pool:
            print(json.dumps(list(pool.map(code_of, options.codes))))
        return 0
    if not options.revision:
        parser.error("which REVISION?")

    from tconv.jit.toolchain import nvrtc_version

    names = [name for name in every_instance() if not any(text in name for text in options.but)][:: options.every]
    with tempfile.TemporaryDirectory() as folder:
        before = extracted(options.revision, Path(folder))
        here, there = codes(ROOT / "src", names), codes(before / "src", names)
        digest = digest_of(before)
    both = [(name, now, then) for name, now, then in zip(names, here, there, strict=True) if then]
    others = [name for name, now, then in both if now != then]
    print(*others, f"{len(both) - len(others)} of {len(both)} kernels have the same machine code", sep="\n")
    if others:
        return 1
    nvrtc = ".".join(map(str, nvrtc_version()))
    kept = load("same_code") or {"kernels": "", "as": []}
    known = kept["as"] if digest in (kept["kernels"], *kept["as"]) else []
    same = list(dict.fromkeys([digest, *known]))
    save("same_code", {"kernels": kernels(), "as": same, "instances": len(both), "arch": _ARCH, "nvrtc": nvrtc})
    return 0


if __name__ == "__main__":
    sys.exit(main())
