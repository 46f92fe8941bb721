"""Runs every test marked `gpu`, and keeps how many passed, with commit and versions, in results/gpu_tests.json.

    python benchmarks/gpu_tests.py                  what is missing, or all with --fresh
    python benchmarks/gpu_tests.py --budget 500     begin no part after that many seconds; the next run goes on
    PYTHONPATH=src:benchmarks python3 -m gpu_tests  without an environment: python3 has torch, cuda-core and pytest

Tests run in parts, each in a process of its own: a kernel that loses the device takes no other part along. Parts of a
file that has many are run beside each other, since its tests are small ones; files of few tests, which may be huge or
take times, have the machine to themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import torch
from results import ROOT, Results, environment, load, save

from tconv.errors import MissingToolchain

NAME = "gpu_tests"
#: Tests of a part.
PART = 64
_NODE = re.compile(r"^(\S+\.py)::.+$")

#: Names of tests as pytest takes them, by the name of the part.
Parts = dict[str, list[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if not torch.cuda.is_available():
        print("these tests need a GPU, and there is none here", file=sys.stderr)
        return 2
    try:
        here = {"environment": environment(), "tree": tree()}
    except MissingToolchain as missing:
        print(missing, file=sys.stderr)
        return 2
    kept = None if options.fresh else load(NAME)
    if kept and {name: kept[name] for name in here} != here:
        print("the stored results are of another machine, version or tree: start anew with --fresh", file=sys.stderr)
        return 2
    results: Results = kept or {**here, "commit": options.commit or commit(), "total": {}, "parts": {}}
    parts = collected(options.tests)
    started = time.monotonic()
    to_run = {name: tests for name, tests in parts.items() if name not in results["parts"]}
    for name, outcome in outcomes(to_run, options.workers, started + options.budget):
        results["parts"][name] = outcome
        results["total"] = dict(sum((Counter(part["counts"]) for part in results["parts"].values()), Counter()))
        save(NAME, results)
        lines = [f"{name}: {told(outcome['counts'])}, {outcome['seconds']:.0f} s", *outcome["failed"]]
        print("\n  ".join(lines), flush=True)
    print(f"all: {told(results['total'])}")
    left = [name for name in parts if name not in results["parts"]]
    if left:
        print(f"{len(left)} parts of {len(parts)} are still missing: run again", file=sys.stderr)
    return 1 if left or results["total"].get("failed") else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders (default: tests)")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no part after")
    parser.add_argument("--fresh", action="store_true", help="forget what was run before")
    workers = min(8, os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=workers, help=f"parts at once of files with many ({workers})")
    parser.add_argument("--commit", default="", help="of the tree, where git is not there to ask")
    return parser.parse_args(arguments)


def tree() -> str:
    """The start of a digest of all code, by which the tests rotate, too."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from rotation import area_digests

    return hashlib.sha256(repr(area_digests(ROOT)).encode()).hexdigest()[:12]


def commit() -> str:
    """The commit that is checked out, "unknown" without git; "+" behind it says that files were changed since."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        changed = subprocess.run(["git", "status", "--porcelain", "src", "tests"], cwd=ROOT, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip()[:12] + ("+" if changed.stdout else "")


def collected(tests: Iterable[str]) -> Parts:
    """All tests marked `gpu`, in parts.

    Raises:
        SystemExit: some of the files that have such tests cannot be imported.
    """
    listing = _pytest("--collect-only", "-q", *tests)
    found = [line for line in listing.stdout.splitlines() if _NODE.match(line)]
    if listing.returncode != 0 or not found:
        # Files without such tests may want packages that are not here.
        broken = re.findall(r"^ERROR (\S+\.py)", listing.stdout, re.MULTILINE)
        with_gpu = [file for file in broken if "mark.gpu" in (ROOT / file).read_text(encoding="utf-8")]
        if with_gpu or not found:
            sys.exit(f"these cannot be collected: {' '.join(with_gpu)}\n{listing.stdout}{listing.stderr}")
    parts: Parts = {}
    for file, group in groupby(found, key=lambda test: test.partition("::")[0]):
        of_file = list(group)
        pieces = [of_file[start : start + PART] for start in range(0, len(of_file), PART)]
        for number, piece in enumerate(pieces, 1):
            parts[f"{file} {number}/{len(pieces)}"] = piece
    return parts


def outcomes(parts: Parts, workers: int, deadline: float) -> Iterator[tuple[str, Results]]:
    """What came of each part, as they end; those that would begin after the deadline are left out."""

    def run(name: str) -> tuple[str, Results] | None:
        return (name, outcome(parts[name])) if time.monotonic() < deadline else None

    many = [name for name in parts if not name.endswith("/1")]
    with ThreadPoolExecutor(workers) as pool:
        yield from filter(None, pool.map(run, many))
    yield from filter(None, map(run, (name for name in parts if name.endswith("/1"))))


def outcome(tests: Sequence[str]) -> Results:
    """Counts, names of what failed, and seconds of one process of pytest."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tconv-gpu-tests-") as directory:
        report = Path(directory, "report.xml")
        ended = _pytest("-q", f"--junitxml={report}", *tests)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    counts: Counter[str] = Counter()
    failed = []
    for case in cases:
        kind = next((mark.tag for mark in case if mark.tag in ("failure", "error", "skipped")), "passed")
        kind = "failed" if kind in ("failure", "error") else kind
        counts[kind] += 1
        if kind == "failed":
            failed.append(f"{case.get('classname')}.{case.get('name')}")
    if len(cases) < len(tests):  # the process ended before it could tell
        counts["failed"] += len(tests) - len(cases)
        failed.append(f"{len(tests) - len(cases)} tests did not run to their end: {ended.stdout[-2000:]}")
    return {"counts": dict(counts), "seconds": round(time.monotonic() - started, 1), "failed": failed}


def told(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"


def _pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *arguments]
    variables = dict(os.environ)
    if given := variables.get("PYTHONPATH"):  # tests start processes in other directories
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
