"""Measured tiles of benchmarks/results/, beside what the planner's models expect of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from kinds import every_layer
from layers import problem_of
from results import Results

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

MODELS: dict[str, ModuleType] = {
    "direct": direct_model,
    "mma": mma_model,
    "wgmma": wgmma_model,
    "col2im": col2im_model,
    "col2im-resident": col2im_model,
    "col2im_wgmma": col2im_wgmma_model,
    "col2im_rows": col2im_rows_model,
}
#: The constants of each family in the planner.
FITTED_OF = {family: module.FITTED for family, module in MODELS.items() if family in FAMILIES}
#: What has constants of its own within a family.
RESIDENT = "col2im-resident"
#: Columns that are not of the tile.
_NO_FIELDS = ("rank", "ms", "registers")


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
        if family == RESIDENT:
            cost = col2im_model.predict(self.problem, self.layer, self.tiles, gpu, resident=constants)
            return np.broadcast_to(cost.seconds, self.seconds.shape)
        return np.asarray(MODELS[family].predict(self.problem, self.layer, self.tiles, gpu, constants).seconds)


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
