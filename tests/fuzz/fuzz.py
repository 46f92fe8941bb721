"""Checks random problems against float64 on a GPU or in the emulator, and makes what fails small.

    python tests/fuzz/fuzz.py --problems 10000          on the GPU where there is one
    python tests/fuzz/fuzz.py --seconds 600 --on emulator
    python tests/fuzz/fuzz.py --seed 5 ...              the problems of an earlier run

Ends with 1 if anything was wrong; the lines printed then go into kept_cases.py.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator

import torch
from case_runs import Failure, Report
from random_cases import Case, random_unit
from shrinking import as_python, shrink
from workers import Worker, reports

from tconv.problem import Layer

#: After so many failures no more problems are drawn; of so many layers, the first failure is made small.
_ENOUGH_FAILURES = 30
_SHRUNK = 5
_PROGRESS_S = 20


def main() -> int:
    options = _options()
    on = f"{torch.cuda.get_device_name()}" if options.on == "gpu" else f"the emulator, {options.mode}"
    print(f"seed {options.seed}: random problems on {on}, {options.workers} processes", flush=True)
    with tempfile.TemporaryDirectory(prefix="tconv-fuzz-") as cache:
        os.environ["TCONV_CACHE_DIR"] = cache  # the user's own must not fill with kernels that nobody needs again
        os.environ["TCONV_INSIST"] = "1"  # PyTorch's kernels are not what is checked
        report = _run(options)
        first_of_layer: dict[Layer, Case] = {}
        for failure in report.failures:
            first_of_layer.setdefault(failure.case.problem.layer, failure.case)
        for case in list(first_of_layer.values())[:_SHRUNK]:
            _print_small(case, options)
    return 1 if report.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=10**9, help="how many at least (default: until time is up)")
    parser.add_argument("--seconds", type=float, default=600, help="after which no more are begun (default: 600)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: another one each time")
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--on", choices=("gpu", "emulator"), default="gpu" if has_gpu else "emulator")
    parser.add_argument("--mode", choices=("plain", "address", "thread"), default="plain", help="of the emulator")
    parser.add_argument(
        "--workers", type=int, default=min(16, os.cpu_count() or 1), help="processes (default: one a core, 16 at most)"
    )
    options = parser.parse_args()
    if options.on == "gpu" and not has_gpu:
        parser.error("there is no CUDA device; --on emulator needs none")
    return options


def _run(options: argparse.Namespace) -> Report:
    total, start = Report(), time.monotonic()

    def seconds() -> float:
        return time.monotonic() - start

    def units() -> Iterator[list[Case]]:
        for number in itertools.count():
            if total.ran >= options.problems or seconds() >= options.seconds:
                return
            if len(total.failures) >= _ENOUGH_FAILURES:
                return
            yield random_unit(options.seed, number)

    def print_state() -> None:
        print(
            f"{seconds():5.0f} s: {total.ran} problems, {total.without_kernel} without a kernel, "
            f"{len(total.failures)} wrong",
            flush=True,
        )

    next_line = _PROGRESS_S
    for report in reports(units(), options.on, options.mode, options.workers):
        total.add(report)
        for failure in report.failures:
            print(f"wrong: {_line(failure)}", flush=True)
        if seconds() >= next_line:
            print_state()
            next_line += _PROGRESS_S
    print_state()
    return total


def _print_small(case: Case, options: argparse.Namespace) -> None:
    with Worker(options.on, options.mode) as worker:
        small = shrink(case, lambda smaller: bool(worker.check([smaller]).failures))
        again = worker.check([small]).failures
    print(f"small: {_line(again[0]) if again else as_python(small) + '  # not every time'}", flush=True)


def _line(failure: Failure) -> str:
    return f"{as_python(failure.case)}  # {failure.what}"


if __name__ == "__main__":
    sys.exit(main())
