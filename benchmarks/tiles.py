"""The tiles that the planner ranks first, and some others, of the layers of benchmarks/cases.json: checked and timed.

    PYTHONPATH=src python3 benchmarks/tiles.py --family mma --first 8 --others 4 --out tiles.json

Prints a line for each layer: PyTorch's default, the tile that the model prefers, and the best one measured. What is
written is for fitting the model: a line of JSON for each tile, with what was predicted of it and what was measured.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, get_args

import torch
from layers import as_pytorch_rounds, problem_of
from results import Results, cases, kind
from tconv.planner.ranking import Ranked, ranked

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import conv_transpose
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import quantile
from tconv.jit.loader import gpu_of
from tconv.planner import Family, Gpu
from tconv.planner.choice import launch
from tconv.precision import allows_tf32, of_kind
from tconv.problem import Problem
from tconv.tuning.trials import WRONG, Distance, Trial, caller, compilers, submit

_CALLS = 9


@dataclass(frozen=True)
class Tried:
    """A tile: its place in the model's ranking, what the model says, and its compilation, under way."""

    rank: int
    cost: Any
    trial: Trial


def chosen(all_: list[Ranked], options: argparse.Namespace, seed: str) -> Iterator[int]:
    """The ranks to be tried."""
    yield from range(min(options.first, len(all_)))
    others = list(range(options.first, len(all_)))
    yield from sorted(random.Random(seed).sample(others, min(options.others, len(others))))


def run(options: argparse.Namespace, out: TextIO) -> int:
    gpu = gpu_of(torch.cuda.current_device())
    clock, started, wrong = CudaClock(), time.monotonic(), 0
    with compilers() as pool:
        tried = {
            name: (problem, tiles)
            for name, case in cases().items()
            if options.only in name and (not options.kind or kind(case) == options.kind)
            if (problem := _problem(case, options.family)) is not None
            if (tiles := list(_submitted(problem, gpu, options, pool, name)))
        }
        for name, (problem, tiles) in tried.items():
            if time.monotonic() - started > options.budget:
                print(f"{name}: time is up", flush=True)
                for tile in tiles:
                    tile.trial.compiled.cancel()
                continue
            wrong += _measured(name, problem, tiles, clock, gpu, out)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


def _problem(case: Results, family: Family) -> Problem | None:
    problem = problem_of(case)
    return as_pytorch_rounds(problem) if family == "mma" else problem


def _submitted(
    problem: Problem, gpu: Gpu, options: argparse.Namespace, pool: Executor, name: str
) -> Iterator[Tried]:
    everything = ranked(problem, options.family, gpu)
    for rank in chosen(everything, options, name):
        trial = submit(problem, everything[rank].kernel, gpu, pool)
        if trial is not None:
            yield Tried(rank, everything[rank].cost, trial)


def _measured(name: str, problem: Problem, tiles: list[Tried], clock: CudaClock, gpu: Gpu, out: TextIO) -> int:
    """Prints the layer's line; returns how many tiles gave wrong results."""
    operands = draw(problem, torch.device("cuda"), seed=0)
    expected = conv_transpose(*operands, problem)
    pytorch = _median(clock, partial(conv_transpose, *operands, problem))
    found: list[tuple[float, Tried]] = []
    wrong = 0
    # PyTorch may round where a kernel does not.
    allowed = max(WRONG[problem.layer.precision], WRONG[of_kind(problem)] if allows_tf32() else 0.0)
    for tile in tiles:
        kernel, compiled = tile.trial.compiled.result()
        plan = launch(problem, kernel, gpu)
        assert plan is not None
        line = {"case": name, "family": kernel.family, "rank": tile.rank, "tile": vars(kernel.tile)}
        line |= {"predicted_ms": tile.cost.seconds * 1e3, "limits": vars(tile.cost), "registers": compiled.registers}
        call = caller(plan, compiled.cubin, operands)
        difference = Distance.between(call(), expected).pooled
        if not difference <= allowed:
            wrong += 1
            print(f"{name}: rank {tile.rank} is WRONG by {difference:.1e}: {kernel.tile}", flush=True)
        milliseconds = _median(clock, call)
        found.append((milliseconds, tile))
        out.write(json.dumps(line | {"ms": milliseconds, "difference": difference}) + "\n")
        out.flush()
    first, preferred = found[0]
    best, winner = min(found, key=lambda pair: pair[0])
    of_first = f"first {first:7.4f} ({pytorch / first:5.2f}x, predicted {preferred.cost.seconds * 1e3:7.4f})"
    of_best = f"best {best:7.4f} ({pytorch / best:5.2f}x) rank {winner.rank}"
    print(f"{name[:36]:36} {problem.layer.precision:8} pytorch {pytorch:7.4f}  {of_first}  {of_best}", flush=True)
    return wrong


def _median(clock: CudaClock, call: Any) -> float:
    return quantile(clock.device_ms(call, _CALLS), 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=get_args(Family), default="mma")
    parser.add_argument("--first", type=int, default=8, help="of the model's ranking")
    parser.add_argument("--others", type=int, default=4, help="of the rest, at random")
    parser.add_argument("--only", default="", metavar="TEXT", help="only layers whose id contains this")
    parser.add_argument("--kind", default="", help="only layers of this kind, as in the README's table")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="start no layer after")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("tiles.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    with options.out.open("w", encoding="utf-8") as out:
        return run(options, out)


if __name__ == "__main__":
    sys.exit(main())
