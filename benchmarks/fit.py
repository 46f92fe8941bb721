"""Fits the constants of the planner's models to the tiles of benchmarks/results/tiles.json, tiles-small.json,
tiles-drawn.json and tiles-FAMILY.json.

    PYTHONPATH=src python3 benchmarks/fit.py --family mma

Prints what the constants in the planner are, what they would be, and what either is worth: the error of a prediction,
and the regret: how much longer the tile that the model prefers takes than the best one measured (geometric means over
layers). The regret of fitted constants is that of layers that they were not fitted to. Needs scipy, and no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from kinds import every_layer
from layers import problem_of
from results import Results, geometric_mean, load
from scipy.optimize import least_squares

from tconv.planner import FAMILIES, Gpu
from tconv.planner.col2im import model as col2im_model
from tconv.planner.col2im_rows import model as col2im_rows_model
from tconv.planner.col2im_wgmma import model as col2im_wgmma_model
from tconv.planner.direct import model as direct_model
from tconv.planner.direct.model import predict as predict_direct
from tconv.planner.mma import equivalent_layer
from tconv.planner.mma import model as mma_model
from tconv.planner.plan import tile_of
from tconv.planner.wgmma import model as wgmma_model
from tconv.problem import Layer, Problem

_MODELS: dict[str, ModuleType] = {
    "direct": direct_model,
    "mma": mma_model,
    "wgmma": wgmma_model,
    "col2im": col2im_model,
    "col2im-resident": col2im_model,
    "col2im_wgmma": col2im_wgmma_model,
    "col2im_rows": col2im_rows_model,
}
#: The constants of each family in the planner.
FITTED_OF = {family: module.FITTED for family, module in _MODELS.items() if family in FAMILIES}
#: What has constants of its own within a family.
_RESIDENT = "col2im-resident"
#: Columns that are not of the tile.
_NO_FIELDS = ("rank", "ms", "registers")
#: Parts of the layers; constants are judged by each part after a fit to the others.
_PARTS = 5
#: How far a fit may go from where it begins, as a factor.
_FREEDOM = 3.0
#: How much a change of a constant counts beside an error of the predictions of a layer, both as logarithms.
_PRIOR = 0.1
#: Errors beyond this (a logarithm) count less: what a model does not know of must not bend what it does.
_OUTLIER = 0.2


@dataclass(frozen=True)
class Measured:
    """The tiles of a layer, as arrays, and their seconds."""

    name: str
    problem: Problem
    layer: Layer
    tiles: Any
    seconds: np.ndarray

    def predicted(self, family: str, constants: Any, gpu: Gpu) -> np.ndarray:
        """Seconds, by a model with these constants."""
        if family == "direct":
            return np.asarray(predict_direct(self.problem, self.tiles, gpu, constants).seconds)
        if family == _RESIDENT:
            cost = col2im_model.predict(self.problem, self.layer, self.tiles, gpu, resident=constants)
            return np.broadcast_to(cost.seconds, self.seconds.shape)
        return np.asarray(_MODELS[family].predict(self.problem, self.layer, self.tiles, gpu, constants).seconds)


def measured(family: str, stored: Results) -> list[Measured]:
    """What is stored of a family."""
    found, known = [], every_layer()
    for key, row in stored["layers"].items():
        name, _, of = key.rpartition(" ")
        if of != family or len(row["tiles"]) < 2:
            continue
        problem = problem_of(row.get("case") or known[name])
        problem = replace(problem, layer=replace(problem.layer, precision=row["precision"]))
        values = np.array([line.split() for line in row["tiles"]], dtype=float)
        columns = dict(zip(row["columns"].split(), values.T, strict=True))
        fields = {name: _field(column) for name, column in columns.items() if name not in _NO_FIELDS}
        layer = equivalent_layer(problem) if family == "mma" else problem.layer
        tiles = tile_of(FAMILIES[family.removesuffix("-resident")].tile, fields)
        found.append(Measured(name, problem, layer, tiles, columns["ms"] / 1e3))
    return found


def _field(column: np.ndarray) -> Any:
    """A field of the tiles; a number where it is the same in all of them."""
    return int(column[0]) if (column == column[0]).all() else column.astype(int)


def error(layers: Sequence[Measured], family: str, constants: Any, gpu: Gpu) -> float:
    """The root mean square of logarithms of predictions over measurements."""
    logs = [np.log(one.predicted(family, constants, gpu) / one.seconds) for one in layers]
    return float(np.sqrt(np.mean(np.concatenate(logs) ** 2)))


def regret(layers: Sequence[Measured], family: str, constants: Any, gpu: Gpu) -> float:
    """How many times as long as the best tile the one takes that the model prefers."""
    return geometric_mean(
        one.seconds[one.predicted(family, constants, gpu).argmin()] / one.seconds.min() for one in layers
    )


def fitted(layers: Sequence[Measured], family: str, start: Any, gpu: Gpu) -> Any:
    """Constants for which the predictions are nearest to what was measured, all of them positive."""
    names = list(asdict(start))
    begin = np.log([getattr(start, name) for name in names])

    def constants(logs: np.ndarray) -> Any:
        return replace(start, **dict(zip(names, map(float, np.exp(logs)), strict=True)))

    def errors(logs: np.ndarray) -> np.ndarray:
        now = constants(logs)
        # Every layer counts alike, however many of its tiles were measured.
        rows = [np.log(one.predicted(family, now, gpu) / one.seconds) / np.sqrt(len(one.seconds)) for one in layers]
        # What the tiles do not tell apart stays what it is.
        return np.concatenate([*rows, _PRIOR * (logs - begin)])

    bounds = (begin - np.log(_FREEDOM), begin + np.log(_FREEDOM))
    return constants(least_squares(errors, begin, bounds=bounds, loss="soft_l1", f_scale=_OUTLIER).x)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=list(_MODELS), required=True)
    parser.add_argument("--tiles", metavar="NAME", help="the results to read, and no others")
    options = parser.parse_args()
    family = options.family
    of_family = f"tiles-{family.removesuffix('-resident')}"
    names = [options.tiles] if options.tiles else ["tiles", "tiles-small", "tiles-drawn", of_family]
    stored = [found for name in names if (found := load(name)) is not None]
    layers = [one for found in stored for one in measured(family, found)]
    if not layers:
        print("no tiles were measured: run benchmarks/tiles.py on a GPU", file=sys.stderr)
        return 2
    (gpu_name,) = {found["environment"]["gpu"] for found in stored}
    gpu = Gpu.measured(gpu_name)
    assert gpu is not None, "tiles are of a GPU whose rates are known"
    start = col2im_model.RESIDENT if family == _RESIDENT else _MODELS[family].FITTED
    count = sum(len(one.seconds) for one in layers)
    print(f"{family}: {count} tiles of {len(layers)} layers, {gpu_name}")
    kept = [regret([one], family, start, gpu) for one in layers]
    refitted = np.ones(len(layers))
    for part in range(_PARTS):
        others = [one for number, one in enumerate(layers) if number % _PARTS != part]
        constants = fitted(others, family, start, gpu)
        for number in range(part, len(layers), _PARTS):
            refitted[number] = regret([layers[number]], family, constants, gpu)
    best = fitted(layers, family, start, gpu)
    print(f"  in the planner: error {error(layers, family, start, gpu):.3f}, regret {geometric_mean(kept):.3f}")
    print(f"  fitted:         error {error(layers, family, best, gpu):.3f}, regret {geometric_mean(refitted):.3f}")
    for name, value in asdict(best).items():
        print(f"    {name:24} {getattr(start, name):10.4g} {value:10.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
