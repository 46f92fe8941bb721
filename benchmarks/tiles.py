"""Tiles of layers of benchmarks/cases.json and kinds.py, checked and timed: what the planner's models are fitted to.

    PYTHONPATH=src python3 benchmarks/tiles.py --first 6 --others 6 --budget 500

Of each layer and family the tiles that its model ranks first, and some of the others at random. Prints a line for each:
PyTorch's default, the tile that the model prefers, and the best one measured. Adds to benchmarks/results/tiles.json, or
for one family alone to tiles-FAMILY.json, which benchmarks/fit.py reads; with --where to tiles-FAMILY-FIELD.json; with
--drawn to tiles-drawn.json, with the layers of benchmarks/drawn.py in place of those that have names.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from drawn import drawn
from kinds import every_layer
from layers import problem_of
from results import Results, environment, kind, load, save

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import conv_transpose
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import quantile
from tconv.jit.loader import gpu_of
from tconv.planner import FAMILIES, Gpu
from tconv.planner.choice import replan
from tconv.planner.family import Ranked
from tconv.planner.plan import tile_fields
from tconv.precision import allows_tf32, of_kind, question_of
from tconv.problem import Problem
from tconv.tuning.compilers import compilers
from tconv.tuning.trials import WRONG, Distance, Trial, caller, submit

_CALLS = 9


@dataclass(frozen=True)
class Tried:
    """A tile: its place in the model's ranking, what the model says, and its compilation, under way."""

    rank: int
    ranked: Ranked[Any]
    trial: Trial


def places(count: int, options: argparse.Namespace, seed: str) -> Iterator[int]:
    """The places in the ranking that are tried."""
    yield from range(min(options.first, count))
    others = range(options.first, count)
    yield from sorted(random.Random(seed).sample(others, min(options.others, len(others))))


def run(options: argparse.Namespace) -> int:
    gpu = gpu_of(torch.cuda.current_device())
    clock, started, wrong = CudaClock(), time.monotonic(), 0
    file = f"tiles-{options.family[0]}" if options.family and len(options.family) == 1 else "tiles"
    file += f"-{options.where}" if options.where else ""
    layers = every_layer()
    if options.drawn:
        file, layers = "tiles-drawn", drawn(options.drawn, options.seed)
    kept = load(file)
    here = environment()
    if kept is None or options.fresh or kept["environment"] != here:
        kept = {"environment": here, "layers": {}}
    with compilers() as pool:
        tried = {
            f"{name} {family}": (problem, tiles)
            for name, case in layers.items()
            for family in (options.family or FAMILIES)
            if options.only in name and (not options.kind or kind(case) == options.kind)
            if f"{name} {family}" not in kept["layers"]
            if (problem := question_of(problem_of(case), gpu, allows_tf32()).problem_of(family))
            if (tiles := list(_submitted(problem, family, gpu, options, pool, name)))
        }
        for name, (problem, tiles) in tried.items():
            if time.monotonic() - started > options.budget:
                print(f"{name}: time is up", flush=True)
                for tile in tiles:
                    tile.trial.compiled.cancel()
                continue
            row, mistakes = _measured(name, problem, tiles, clock, gpu)
            known = {"case": layers[name.rpartition(" ")[0]]} if options.drawn else {}
            kept["layers"][name], wrong = known | row, wrong + mistakes
            save(file, kept)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


def _submitted(
    problem: Problem, family: str, gpu: Gpu, options: argparse.Namespace, pool: Executor, name: str
) -> Iterator[Tried]:
    found = FAMILIES[family].considered(problem, gpu)
    if found is None:
        return
    order = found.order()
    if options.where:
        order = order[np.broadcast_to(getattr(found.tiles, options.where), len(found))[order] > 0]
    for rank in places(len(order), options, name):
        ranked = found[int(order[rank])]
        trial = submit(problem, ranked.kernel, gpu, pool)
        if trial is not None:
            yield Tried(rank, ranked, trial)


def _measured(name: str, problem: Problem, tiles: list[Tried], clock: CudaClock, gpu: Gpu) -> tuple[Results, int]:
    """What is kept of the layer, whose line it prints; and how many tiles gave wrong results."""
    operands = draw(problem, torch.device("cuda"), seed=0)
    expected = conv_transpose(*operands, problem)
    pytorch = _median(clock, partial(conv_transpose, *operands, problem))
    found: list[tuple[float, Tried]] = []
    rows, wrong = [], 0
    # PyTorch may round where a kernel does not.
    allowed = max(WRONG[problem.layer.precision], WRONG[of_kind(problem)] if allows_tf32() else 0.0)
    for tile in tiles:
        kernel, compiled = tile.trial.compiled.result()
        plan = replan(problem, kernel, gpu)
        assert plan is not None
        call = caller(plan, compiled.cubin, operands)
        difference = Distance.between(call(), expected).pooled
        if not difference <= allowed:
            wrong += 1
            print(f"{name}: rank {tile.rank} is WRONG by {difference:.1e}: {kernel.tile}", flush=True)
        milliseconds = _median(clock, call)
        found.append((milliseconds, tile))
        # The tile as it was ranked: the compiler may have left it fewer blocks.
        fields = [value for _, value in tile_fields(tile.ranked.kernel.tile)]
        rows.append(" ".join(map(str, [tile.rank, round(milliseconds, 5), compiled.registers, *fields])))
    first, preferred = found[0]
    best, winner = min(found, key=lambda pair: pair[0])
    of_first = f"first {first:7.4f} ({pytorch / first:5.2f}x, predicted {preferred.ranked.seconds * 1e3:7.4f})"
    of_best = f"best {best:7.4f} ({pytorch / best:5.2f}x) rank {winner.rank}"
    print(f"{name[:42]:42} {problem.layer.precision:8} pytorch {pytorch:7.4f}  {of_first}  {of_best}", flush=True)
    names = [field for field, _ in tile_fields(tiles[0].ranked.kernel.tile)]
    columns = " ".join(["rank", "ms", "registers", *names])
    row = {"precision": problem.layer.precision, "pytorch_ms": round(pytorch, 5), "columns": columns, "tiles": rows}
    return row, wrong


def _median(clock: CudaClock, call: Any) -> float:
    return quantile(clock.device_ms(call, _CALLS), 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="by default all")
    parser.add_argument("--first", type=int, default=6, help="of the model's ranking")
    parser.add_argument("--others", type=int, default=6, help="of the rest, at random")
    parser.add_argument("--drawn", type=int, default=0, metavar="COUNT", help="so many layers, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", default="", metavar="TEXT", help="only layers whose id contains this")
    parser.add_argument("--kind", default="", help="only layers of this kind, as in the README's table")
    parser.add_argument("--where", default="", metavar="FIELD", help="only tiles with this field, as prepared_inputs")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="start no layer after")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("tiles.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
