"""Dense layers on which Hopper's tensor cores are judged: tiles of the wgmma family beside `mma` and PyTorch, on a GPU.

    PYTHONPATH=src python3 benchmarks/hopper.py
    PYTHONPATH=src python3 benchmarks/hopper.py --only k4 --first 4 --others 8 --fields

Every result is compared with PyTorch's. Prints, for each layer and memory format, milliseconds of PyTorch's default and
of its best setting, of the tile that mma's model prefers, of the one that wgmma's prefers and of the best one measured,
all with weights that are prepared in each call, and of wgmma's preferred tile with frozen ones. Writes
benchmarks/results/hopper.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from layers import floor_ms, problem_of, strided
from results import KINDS, Results, cases, environment, kind, save

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import quantile
from tconv.jit.loader import gpu_of
from tconv.memory import memory_format
from tconv.planner import FAMILIES
from tconv.planner.choice import replan
from tconv.planner.plan import tile_fields
from tconv.problem import Precision, Problem
from tconv.tuning.compilers import compilers
from tconv.tuning.trials import WRONG, Distance, caller, submit

_CALLS = 15
_PRECISION: dict[str, Precision] = {"float32": "tf32", "float16": "fp16", "bfloat16": "bf16"}
_BOTH = ("contiguous", "channels_last")


def _flat(kernel: list[int], batch: int, channels: tuple[int, int], size: list[int]) -> Results:
    dims = len(size)
    ones, zeros = [1] * dims, [0] * dims
    row = strided(1, batch, channels, 1)
    return (
        row
        | {"kernel": kernel, "stride": ones, "padding": zeros, "output_padding": zeros, "dilation": ones}
        | {"input_size": size}
    )


def rows() -> Iterator[tuple[str, Results, str]]:
    """Layers by name, each with a memory format: those of the docs, then the dense ones of cases.json."""
    k3x7, k3 = _flat([3, 7], 8, (64, 64), [512, 512]), _flat([3, 3], 8, (64, 64), [1024, 1024])
    float32 = {
        "k(3,7) 8x64-64 512": k3x7,
        "k(3,5) 64x64-128 128x256": _flat([3, 5], 64, (64, 128), [128, 256]),
        "k3 8x64-64 1024": k3,
        "k3 8x32-32 512x1024": _flat([3, 3], 8, (32, 32), [512, 1024]),
        "k2s2 8x128-64 256": strided(2, 8, (128, 64), 256),
        "k4s2 16x256-64 64": strided(4, 16, (256, 64), 64, padding=1),
        "k3s2 8x128-64 128": strided(3, 8, (128, 64), 128, padding=1, output_padding=1),
    }
    for name, row in float32.items():
        for layout in _BOTH:
            yield name, row, layout
    yield "1-D k3 64x128-128 65536", _flat([3], 64, (128, 128), [65536]), "contiguous"
    yield "dcgan k4s2 64x512-256 4", strided(4, 64, (512, 256), 4, padding=1), "contiguous"
    pose = strided(4, 64, (768, 256), 16, padding=1) | {"input_size": [16, 12], "dtype": "float16"}
    yield "pose k4s2 64x768-256 16x12", pose, "contiguous"
    yield "k(3,7) exact float32", k3x7 | {"precision": "fp32"}, "contiguous"
    for name, row in {"k(3,7) bf16": k3x7, "k3 bf16": k3}.items():
        for layout in _BOTH:
            yield name, row | {"dtype": "bfloat16"}, layout
    for name, row in cases().items():
        if kind(row) == KINDS[2] and row["dtype"] in _PRECISION:
            yield name, row, "contiguous"


def _problem(row: Results) -> Problem:
    problem = problem_of(row)
    return replace(problem, layer=replace(problem.layer, precision=row.get("precision", _PRECISION[row["dtype"]])))


class _Layer:
    """A layer on the GPU, and what was measured of it."""

    def __init__(self, row: Results, layout: str, clock: CudaClock) -> None:
        self.problem = _problem(row)
        self.channels_last = layout == "channels_last"
        self.clock = clock
        x, weight, bias = draw(self.problem, torch.device("cuda"), seed=0)
        wanted = memory_format(x.dim(), self.channels_last)
        self.operands = Operands(x.contiguous(memory_format=wanted), weight, bias)
        theirs = partial(conv_transpose, *self.operands, self.problem)
        torch.backends.cudnn.allow_tf32 = self.problem.layer.precision != "fp32"
        self.expected = theirs()
        self.default = self.milliseconds(theirs)
        torch.backends.cudnn.benchmark = True
        theirs()
        self.best = min(self.default, self.milliseconds(theirs))
        torch.backends.cudnn.benchmark = False

    def milliseconds(self, call: Callable[[], Any]) -> float:
        return quantile(self.clock.device_ms(call, _CALLS), 0.5)

    def call(self, compiled: Any, gpu: Any, frozen: bool = False) -> Callable[[], torch.Tensor]:
        kernel, code = compiled
        plan = replan(self.problem, kernel, gpu)
        assert plan is not None
        return caller(plan, code.cubin, self.operands, self.channels_last, frozen)

    def is_wrong(self, result: torch.Tensor) -> float:
        """By how much, relative and pooled; 0 where it is right."""
        distance = Distance.between(result, self.expected).pooled
        return 0.0 if distance <= WRONG[self.problem.layer.precision] else distance


def run(options: argparse.Namespace) -> int:
    gpu, clock, wrong = gpu_of(torch.cuda.current_device()), CudaClock(), 0
    kept: Results = {"environment": environment(), "layers": {}}
    header = ("default", "best", "mma", "wgmma", "x def", "frozen", "tuned", "x def", "x best", "floor", "rank")
    print(f"{'':40}" + "".join(f"{word:>8}" for word in header), flush=True)
    with compilers() as pool:
        submitted = []
        for name, row, layout in rows():
            if options.only not in f"{name} {layout}" or (name in cases()) != options.cases:
                continue
            problem = _problem(row)
            if layout == "channels_last":
                problem = replace(problem, layer=problem.layer.in_channels_last())
            trials = []
            for family, first, others in (("mma", 1, 0), ("wgmma", options.first, options.others)):
                found = FAMILIES[family].considered(problem, gpu, layout == "channels_last")
                order = [] if found is None else [int(place) for place in found.order()]
                rest = order[first:]
                chosen = order[:first] + rest[:: max(1, len(rest) // max(1, others))][:others]
                for place in chosen:
                    assert found is not None
                    trial = submit(problem, found[place].kernel, gpu, pool)
                    if trial is not None:
                        trials.append((family, order.index(place), found[place].seconds, trial))
            submitted.append((name, row, layout, trials))
        for name, row, layout, trials in submitted:
            layer = _Layer(row, layout, clock)
            times: dict[str, list[tuple[float, int, float, Any]]] = {"mma": [], "wgmma": []}
            for family, rank, predicted, trial in trials:
                call = layer.call(trial.compiled.result(), gpu)
                if error := layer.is_wrong(call()):
                    wrong += 1
                    print(f"{name} {layout}: WRONG by {error:.1e}: {trial.kernel.tile}", flush=True)
                times[family].append((layer.milliseconds(call), rank, predicted * 1e3, trial.kernel.tile))
            floor = floor_ms(layer.problem) or 0.0
            mma = times["mma"][0][0] if times["mma"] else float("nan")
            if not times["wgmma"]:
                print(f"{name}: the wgmma family has no tile", flush=True)
                continue
            own = times["wgmma"]
            best = min(own, key=lambda found: found[0])
            preferred = next(trial for family, _, _, trial in trials if family == "wgmma")
            frozen = layer.milliseconds(layer.call(preferred.compiled.result(), gpu, frozen=True))
            numbers = (layer.default, layer.best, mma, own[0][0], layer.default / own[0][0], frozen, best[0])
            numbers = (*numbers, layer.default / best[0], layer.best / best[0], floor)
            short = f"{name[:32]} {'cl' if layer.channels_last else ''}"
            print(f"{short:40}" + "".join(f"{number:8.3f}" for number in numbers) + f"{best[1]:8d}", flush=True)
            if options.fields:
                for milliseconds, rank, predicted, tile in sorted(own, key=lambda found: found[0])[:6]:
                    values = " ".join(f"{field.split('.')[-1]}={value}" for field, value in tile_fields(tile))
                    print(f"      {milliseconds:.4f} rank {rank} predicted {predicted:.4f} {values}", flush=True)
            kept["layers"][f"{name}, {layout}"] = {
                "pytorch_ms": {"default": round(layer.default, 5), "best": round(layer.best, 5)},
                "mma_ms": round(mma, 5),
                "floor_ms": round(floor, 5),
                "frozen_ms": round(frozen, 5),
                "wgmma": [
                    {
                        "ms": round(ms, 5),
                        "rank": rank,
                        "predicted_ms": round(predicted, 5),
                        "tile": dict(tile_fields(tile)),
                    }
                    for ms, rank, predicted, tile in own
                ],
            }
            save("hopper", kept)
            del layer
            torch.cuda.empty_cache()
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=3, help="of the model's ranking")
    parser.add_argument("--others", type=int, default=5, help="of the rest, evenly")
    parser.add_argument("--only", default="", metavar="TEXT", help="only layers whose name contains this")
    parser.add_argument("--cases", action="store_true", help="the dense layers of cases.json, not those of the docs")
    parser.add_argument("--fields", action="store_true", help="print the fastest tiles")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("hopper.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
