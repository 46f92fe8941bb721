"""The tiles that the planner ranks first, and some others, of the layers of benchmarks/cases.json: checked and timed.

    PYTHONPATH=src python3 benchmarks/tiles.py --family mma --first 8 --others 4 --out tiles.json

Prints a line for each layer: PyTorch's default, the tile that the model prefers, and the best one measured. What is
written is for fitting the model: a line of JSON for each tile, with what was predicted of it and what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO, get_args

import torch
from layers import arguments, problem_of
from results import Results, cases, kind
from torch import Tensor

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import quantile
from tconv.jit.compile import Compiled
from tconv.jit.loader import Launcher, compile_kernel, gpu_of, load
from tconv.kernels.source import PREPARING
from tconv.planner import Family, Gpu, Kernel, Plan, Unplannable
from tconv.planner import direct as direct_planner
from tconv.planner import mma as mma_planner
from tconv.planner.choice import launch
from tconv.planner.direct_model import predict
from tconv.planner.mma_model import predict_mma
from tconv.precision import allows_tf32, of_kind
from tconv.problem import Problem

_NAME = "tconv_kernel"
_CALLS = 9
#: Relative errors, pooled, beyond which a result is wrong rather than rounded otherwise than PyTorch's.
_WRONG = {"fp32": 1e-5, "tf32": 2e-3, "tf32_rna": 2e-3, "fp16": 2e-3, "bf16": 2e-2, "fp64": 1e-13}


@dataclass(frozen=True)
class Tried:
    """A tile: its place in the model's ranking, what the model says, and its compilation, under way."""

    rank: int
    cost: Any
    kernel: Kernel[Any]
    compiled: Future[tuple[Kernel[Any], Compiled]]


def ranked(problem: Problem, family: Family, gpu: Gpu) -> list[tuple[Any, Kernel[Any]]]:
    """All candidates of `family` with their costs, in the model's order; none where it does not run the layer."""
    alike = direct_planner.representative(problem)
    if family == "direct":
        layer = problem.layer
        costs = {tile: predict(alike, tile, gpu) for tile in dict.fromkeys(direct_planner.candidates(alike, gpu))}
        pairs = [(cost, Kernel(family, layer, tile)) for tile, cost in costs.items()]
        return sorted(pairs, key=lambda pair: pair[0].seconds)
    layer = mma_planner.equivalent(problem)
    if mma_planner.why_not_mma(layer):
        return []
    tiles = dict.fromkeys(mma_planner.candidates(alike, layer, gpu, most_together=mma_planner.together(problem)))
    rounded = [(predict_mma(alike, layer, tile, gpu), Kernel(family, layer, tile)) for tile in tiles]
    return sorted(rounded, key=lambda pair: pair[0].seconds)


def chosen(all_: list[tuple[Any, Kernel[Any]]], options: argparse.Namespace, seed: str) -> Iterator[int]:
    """The ranks to be tried."""
    yield from range(min(options.first, len(all_)))
    others = list(range(options.first, len(all_)))
    yield from sorted(random.Random(seed).sample(others, min(options.others, len(others))))


def run(options: argparse.Namespace, out: TextIO) -> int:
    gpu = gpu_of(torch.cuda.current_device())
    clock, started, wrong = CudaClock(), time.monotonic(), 0
    workers = max(1, (os.cpu_count() or 2) - 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
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
                    tile.compiled.cancel()
                continue
            wrong += _measured(name, problem, tiles, clock, gpu, out)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


def _problem(case: Results, family: Family) -> Problem | None:
    problem = problem_of(case)
    if family == "mma" and problem.layer.precision == "fp32" and allows_tf32():
        return replace(problem, layer=replace(problem.layer, precision=of_kind(problem)))
    return problem


def _submitted(
    problem: Problem, gpu: Gpu, options: argparse.Namespace, pool: ProcessPoolExecutor, name: str
) -> Iterator[Tried]:
    everything = ranked(problem, options.family, gpu)
    for rank in chosen(everything, options, name):
        cost, kernel = everything[rank]
        try:
            plan = launch(problem, kernel, gpu)
        except Unplannable:
            continue
        if plan is not None:
            yield Tried(rank, cost, plan.kernel, pool.submit(compile_kernel, plan.kernel, gpu.arch))


def _measured(name: str, problem: Problem, tiles: list[Tried], clock: CudaClock, gpu: Gpu, out: TextIO) -> int:
    """Prints the layer's line; returns how many tiles gave wrong results."""
    operands = draw(problem, torch.device("cuda"), seed=0)
    expected = conv_transpose(*operands, problem)
    pytorch = _median(clock, partial(_DIMS[problem.layer.spatial_dims], *operands, **arguments(problem)))
    found: list[tuple[float, Tried]] = []
    wrong = 0
    # PyTorch may round where a kernel does not.
    allowed = max(_WRONG[problem.layer.precision], _WRONG[of_kind(problem)] if allows_tf32() else 0.0)
    for tile in tiles:
        kernel, compiled = tile.compiled.result()
        plan = launch(problem, kernel, gpu)
        assert plan is not None
        line = {"case": name, "family": kernel.family, "rank": tile.rank, "tile": vars(kernel.tile)}
        line |= {"predicted_ms": tile.cost.seconds * 1e3, "limits": vars(tile.cost), "registers": compiled.registers}
        call = _call(plan, compiled.cubin, operands)
        difference = (call().double() - expected.double()).norm() / expected.double().norm()
        if not difference <= allowed:
            wrong += 1
            print(f"{name}: rank {tile.rank} is WRONG by {difference:.1e}: {kernel.tile}", flush=True)
        milliseconds = _median(clock, call)
        found.append((milliseconds, tile))
        out.write(json.dumps(line | {"ms": milliseconds, "difference": float(difference)}) + "\n")
        out.flush()
    first, preferred = found[0]
    best, winner = min(found, key=lambda pair: pair[0])
    of_first = f"first {first:7.4f} ({pytorch / first:5.2f}x, predicted {preferred.cost.seconds * 1e3:7.4f})"
    of_best = f"best {best:7.4f} ({pytorch / best:5.2f}x) rank {winner.rank}"
    print(f"{name[:36]:36} {problem.layer.precision:8} pytorch {pytorch:7.4f}  {of_first}  {of_best}", flush=True)
    return wrong


def _call(plan: Plan, cubin: bytes, operands: Operands) -> Any:
    device = torch.cuda.current_device()
    preparing = None if plan.preparation is None else load(cubin, PREPARING.format(_NAME), 0, device)
    launcher = Launcher(load(cubin, _NAME, plan.shared_bytes, device), plan, device, preparing)
    x, weight, bias = operands

    def call() -> Tensor:
        y = torch.empty(plan.problem.output_shape, dtype=x.dtype, device=x.device)
        launcher(x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
        return y

    return call


def _median(clock: CudaClock, call: Any) -> float:
    return quantile(clock.device_ms(call, _CALLS), 0.5)


_DIMS = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


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
