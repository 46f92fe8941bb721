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
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from measured import MODELS, RESIDENT, Measured, measured
from results import geometric_mean, load
from scipy.optimize import least_squares

from tconv.planner import Gpu
from tconv.planner.col2im import model as col2im_model

#: Parts of the layers; constants are judged by each part after a fit to the others.
_PARTS = 5
#: How far a fit may go from where it begins, as a factor.
_FREEDOM = 3.0
#: How much a change of a constant counts beside an error of the predictions of a layer, both as logarithms.
_PRIOR = 0.1
#: Errors beyond this (a logarithm) count less: what a model does not know of must not bend what it does.
_OUTLIER = 0.2


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
    parser.add_argument("--family", choices=list(MODELS), required=True)
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
    start = col2im_model.RESIDENT if family == RESIDENT else MODELS[family].FITTED
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
