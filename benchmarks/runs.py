"""A run over many layers that goes on where an earlier one stopped, and the options of the scripts that make one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from results import Results, environment, load, same_kernels, save, speedup

from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import quantile
from tconv.settings import settings

#: That `milliseconds` takes the median of.
_CALLS = 15
#: Measures one layer.
Measure = Callable[[], Results]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that `measure_missing` reads."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", default="", metavar="TEXT", help="only layers whose name contains this")
    made.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="start no layer after")
    made.add_argument("--fresh", action="store_true", help="forget what was measured before")
    return made


def measure_missing(name: str, wanted: Mapping[str, Measure], options: argparse.Namespace) -> int:
    """Measure the layers that the results of that name lack; exit code 0 when all are measured and equal."""
    if not torch.cuda.is_available():
        print("this measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    kept = None if options.fresh else load(name)
    here = environment()
    if kept and not _as_good(kept["environment"], here):
        print("the stored results are of another machine or version: start anew with --fresh", file=sys.stderr)
        return 2
    results: Results = kept or {"environment": here, "layers": {}}
    layers, started = results["layers"], time.monotonic()
    chosen = [layer for layer in wanted if options.only in layer]
    for layer in chosen:
        if layer in layers:
            continue
        if time.monotonic() - started > options.budget:
            break
        with insisting():
            layers[layer] = wanted[layer]()
        save(name, results)
        print(f"{layer}: {_told(layers[layer])}", flush=True)
        torch.cuda.empty_cache()
    missing = [layer for layer in chosen if layer not in layers]
    if missing:
        print(f"{len(missing)} layers are still missing: run again", file=sys.stderr)
    return 0 if all(layer in layers and layers[layer]["equal"] for layer in chosen) else 1


def _as_good(kept: dict[str, str], here: dict[str, str]) -> bool:
    """Whether results of that environment hold here: all is equal, of kernels their machine code."""
    return kept == here or (kept | {"kernels": here["kernels"]} == here and kept["kernels"] in same_kernels())


@contextmanager
def insisting() -> Iterator[None]:
    """The library runs its own kernels, also where PyTorch's operator is predicted to be faster: their time counts."""
    before = os.environ.get("TCONV_INSIST")
    os.environ["TCONV_INSIST"] = "1"
    settings.cache_clear()
    try:
        yield
    finally:
        os.environ.pop("TCONV_INSIST")
        os.environ.update({} if before is None else {"TCONV_INSIST": before})
        settings.cache_clear()


def milliseconds(call: Callable[[], Any], clock: CudaClock) -> float:
    """The median of some calls, each with a cold L2 cache."""
    return round(quantile(clock.device_ms(call, _CALLS), 0.5), 5)


def _told(result: Results) -> str:
    verdict = "equal" if result["equal"] else "NOT EQUAL: " + "; ".join(result["reasons"])
    return f"{verdict} {speedup(result):.2f}x" if "tconv_ms" in result else verdict
