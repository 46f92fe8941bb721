"""From a model's text to the globals of the file generated from it, in this process."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tconv.codegen.pipeline import build, plan_layers
from tconv.codegen.trace import trace
from tconv.evaluation.model_file import load
from tconv.evaluation.precision import Wanted
from tconv.planner import FAMILIES, Family, Gpu
from tconv.precision import of_kind
from tconv.problem import Precision, Problem

Namespace = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples"


def by_kind(problem: Problem, wanted: Wanted) -> Precision:
    """What `tconv.evaluation.precision.resolve` says without a GPU."""
    if problem.layer.dtype != "float32":
        return problem.layer.precision
    return of_kind(problem) if wanted == "match" else wanted


def generated_text(path: Path, wanted: Wanted = "match", families: Sequence[Family] = FAMILIES) -> str:
    """The text that tconv writes for a model file; those of the examples, which do not change, are kept."""
    generate = _of_example if path.parent == EXAMPLES else _generated
    return generate(path, wanted, tuple(families))


def _generated(path: Path, wanted: Wanted, families: tuple[Family, ...]) -> str:
    gpu = Gpu.h200()
    found = trace(load(path))
    return build(path, plan_layers(found, path, gpu, wanted, by_kind, families), gpu, found, wanted).text


_of_example = functools.cache(_generated)


def executed(text: str) -> Namespace:
    """The globals of a file's text, executed without a file."""
    namespace: Namespace = {}
    exec(compile(text, "<string>", "exec"), namespace)
    return namespace
