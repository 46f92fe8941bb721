"""The arithmetic that PyTorch runs on a float32 layer, and that a candidate may use.

With TF32 allowed, as it is by default, cuDNN picks an engine for each problem. Some engines round the operands to TF32.
On a GPU the choice is measured; without one it is known from the kind of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import torch

from tconv.evaluation.awkward import Run
from tconv.evaluation.comparison import Comparison
from tconv.evaluation.draws import draw
from tconv.evaluation.reference import conv_transpose
from tconv.evaluation.tolerance import Tolerance
from tconv.precision import allows_tf32, of_kind, rounding_of_kind, without_tf32
from tconv.problem import TF32, Layer, Precision, Problem
from tconv.sandbox.gpu_memory import release
from tconv.sandbox.trace import TracedLayer

#: What a user may ask for.
Wanted = Literal["match", "tf32", "fp32"]
#: Gives the arithmetic of a problem, like `resolve`.
Resolve = Callable[[Problem, Wanted], Precision]


def understood(wanted: Wanted, tf32: bool) -> Wanted:
    """The wanted arithmetic of a model file. If the file forbids TF32 (`tf32` is False), "match" means "fp32"."""
    return "fp32" if wanted == "match" and not tf32 else wanted


def as_stated(problem: Problem) -> Wanted:
    """The wanted arithmetic of a problem that runs in the precision that it states."""
    return "tf32" if problem.layer.precision in TF32 else "fp32"


def problems(layers: Sequence[TracedLayer], wanted: Wanted, resolve: Resolve) -> list[Problem]:
    """The problem of each traced layer, with the precision that it runs in. A layer has one precision for all sizes.

    Args:
        wanted: the result of `understood` for the layers' file.
    """
    found: dict[Layer, Precision] = {}
    for layer in layers:
        compiled = layer.problem.layer
        if found.get(compiled) != "fp32":  # the finer one, if sizes disagree
            found[compiled] = resolve(layer.problem, wanted)
    asked = [layer.problem for layer in layers]
    return [replace(problem, layer=replace(problem.layer, precision=found[problem.layer])) for problem in asked]


def resolve(
    problem: Problem, wanted: Wanted, *, device: torch.device, seed: int = 0, baseline: Run | None = None
) -> Precision:
    """The arithmetic that a candidate may use: `wanted` for float32 layers, the layer's own for other types.

    "match" means PyTorch's arithmetic on this problem. It is measured on a GPU, and known from the kind of the layer
    without one. "tf32" rounds ties as PyTorch does on this problem, if PyTorch runs TF32 there.
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


def arithmetic(precision: Precision) -> AbstractContextManager[None]:
    """For "fp32", PyTorch's float32 convolutions run without TF32 within the block. Else nothing changes.

    PyTorch's error can measure a candidate that must run fp32 only if PyTorch runs fp32, too.
    """
    return without_tf32() if precision == "fp32" else nullcontext()


@lru_cache(maxsize=256)
def _measured_once(problem: Problem, device: torch.device, seed: int, flags: tuple[bool, ...]) -> Precision:
    """`measured` with PyTorch's operator, kept: on large problems it takes gigabytes and a second."""
    found = measured(problem, device=device, seed=seed)
    release()
    return found


def measured(problem: Problem, *, device: torch.device, seed: int = 0, baseline: Run | None = None) -> Precision:
    """PyTorch's arithmetic on this problem, under the flags in force.

    The full batch runs, since cuDNN may pick another engine for another batch. The first sample is compared with
    float64 results, on the operands as they are and on operands rounded to TF32. `baseline` is PyTorch's side, by
    default PyTorch's operator.
    """
    operands = draw(problem, device, seed)
    result = conv_transpose(*operands, problem) if baseline is None else baseline(operands)
    # Copies of one sample, so that the other samples, perhaps gigabytes, can go.
    sample, operands = result[:1].clone(), operands._replace(x=operands.x[:1].clone())
    del result
    comparison = Comparison(Tolerance.of(problem.layer, "fp32"))
    comparison.add(sample, sample, operands, replace(problem, batch=1))
    return comparison.baseline_ran
