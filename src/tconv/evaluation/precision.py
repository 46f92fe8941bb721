"""Which arithmetic PyTorch itself runs on a float32 layer, and so which one a candidate may use.

With TF32 allowed, as it is by default, cuDNN picks for every problem an engine that rounds the operands to TF32 or
one that does not. On a GPU this is measured; without one it follows from the kind of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import torch

from tconv.evaluation.awkward import Run
from tconv.evaluation.comparison import Comparison
from tconv.evaluation.draws import draw
from tconv.evaluation.reference import conv_transpose
from tconv.evaluation.tolerance import Tolerance
from tconv.precision import allows_tf32, of_kind, rounding_of_kind
from tconv.problem import TF32, Layer, Precision, Problem
from tconv.sandbox.gpu_memory import release
from tconv.sandbox.trace import TracedLayer

#: What a user may ask for.
Wanted = Literal["match", "tf32", "fp32"]
#: The arithmetic of a problem, as `resolve` tells it.
Resolve = Callable[[Problem, Wanted], Precision]


def understood(wanted: Wanted, tf32: bool) -> Wanted:
    """What is wanted of a model file: where that leaves TF32 forbidden (`tf32` is False), "match" means fp32."""
    return "fp32" if wanted == "match" and not tf32 else wanted


def as_stated(problem: Problem) -> Wanted:
    """What is wanted where a problem is to run in the very precision that it states."""
    return "tf32" if problem.layer.precision in TF32 else "fp32"


def problems(layers: Sequence[TracedLayer], wanted: Wanted, resolve: Resolve) -> list[Problem]:
    """What every traced layer computes, in the precision it is to run in: one for each layer, whatever its sizes.

    Args:
        wanted: as it is `understood` of the layers' file.
    """
    found: dict[Layer, Precision] = {}
    for layer in layers:
        compiled = layer.problem.layer
        if found.get(compiled) != "fp32":  # where sizes disagree, the finer one
            found[compiled] = resolve(layer.problem, wanted)
    asked = [layer.problem for layer in layers]
    return [replace(problem, layer=replace(problem.layer, precision=found[problem.layer])) for problem in asked]


def resolve(
    problem: Problem, wanted: Wanted, *, device: torch.device, seed: int = 0, baseline: Run | None = None
) -> Precision:
    """The arithmetic that a candidate may use: the wanted one for float32 layers, the layer's own for others.

    "match" means what PyTorch does on this problem: measured on a GPU, by the kind of the layer without one. "tf32" is
    rounded as PyTorch does it, where it does.
    """
    if problem.layer.dtype != "float32":
        return problem.layer.precision
    if wanted == "fp32":
        return wanted
    if device.type != "cuda":
        found = of_kind(problem)
    elif baseline is None:
        cudnn = torch.backends.cudnn
        found = _measured_once(problem, device, seed, (allows_tf32(), cudnn.benchmark, cudnn.deterministic))
    else:
        found = measured(problem, device=device, seed=seed, baseline=baseline)
    return found if wanted == "match" or found in TF32 else rounding_of_kind(problem.layer)


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """For "fp32", PyTorch's float32 convolutions run without TF32 within the block; else they run as they do.

    PyTorch's error is a yardstick for those who were asked for fp32 only if it ran fp32 itself.
    """
    if precision != "fp32":
        yield
        return
    conv = getattr(torch.backends.cudnn, "conv", None)
    newer = getattr(conv, "fp32_precision", None) is not None
    owner, name, strict = (conv, "fp32_precision", "ieee") if newer else (torch.backends.cudnn, "allow_tf32", False)
    before = getattr(owner, name)
    setattr(owner, name, strict)
    try:
        yield
    finally:
        setattr(owner, name, before)


@lru_cache(maxsize=256)
def _measured_once(problem: Problem, device: torch.device, seed: int, flags: tuple[bool, ...]) -> Precision:
    """Measured with PyTorch's own operator, which takes gigabytes and a second of large problems."""
    found = measured(problem, device=device, seed=seed)
    release()
    return found


def measured(problem: Problem, *, device: torch.device, seed: int = 0, baseline: Run | None = None) -> Precision:
    """What PyTorch does on this very problem, under the flags in force.

    The full batch is run, since cuDNN picks another engine for another batch; its first sample is compared with
    float64 results on the operands as they are and rounded to TF32. `baseline` is PyTorch's side, by default its
    own operator.
    """
    operands = draw(problem, device, seed)
    result = conv_transpose(*operands, problem) if baseline is None else baseline(operands)
    # Copies: the others may be gigabytes.
    sample, operands = result[:1].clone(), operands._replace(x=operands.x[:1].clone())
    del result
    comparison = Comparison(Tolerance.of(problem.layer, "fp32"))
    comparison.add(sample, sample, operands, replace(problem, batch=1))
    return comparison.baseline_ran
