"""Rules 5 and 6 as functions: exact scaling, and inputs that break wrong kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from tconv.evaluation import draws
from tconv.evaluation.comparison import Comparison
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.rules import every_element, first_difference, same_values
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Check
from tconv.problem import Problem, Triple

#: One side of a comparison on given operands.
Run = Callable[[Operands], Tensor]
#: How far a non-finite input may spread. "exact": to the outputs that depend on it. "phases": also to the other phases
#: of their positions, as implementations that stack phases in one dense product compute 0 × ∞ there, and to outputs
#: that it reaches in PyTorch. An implementation may choose where positions start.
Reach = Literal["exact", "phases"]

#: The large and the tiny inputs, as powers of two, by dtype; every product and sum stays finite and normal.
_EXTREME_EXPONENT = {"float32": 60, "bfloat16": 60, "float16": 9, "float64": 500}


def scaling(run: Run, operands: Operands, problem: Problem) -> Check:
    """Rule 5: an input times a power of two gives the result times that power, bit for bit. The bias is zero."""
    name = "power-of-two scaling"
    if problem.layer.dtype == "float16":
        return Check(
            name, None, reason=f"not checked: float16 itself has no room for a factor of 2^{draws.BEYOND_FLOAT16}"
        )
    plain = draws.without_bias(operands)
    unit = run(plain).clone()
    for exponent in (draws.BEYOND_FLOAT16, -draws.BEYOND_FLOAT16):
        got = run(plain._replace(x=plain.x * 2.0**exponent)) * 2.0**-exponent
        if not same_values(unit, got):
            index = first_difference(unit, got)
            values = f"{float(got[index]):.9g} instead of {float(unit[index]):.9g}"
            reason = f"input × 2^{exponent} does not scale the result exactly, at {list(index)}: {values} (scaled back)"
            return Check(name, False, values, "exact", f"{reason}; a narrower type inside?")
    return Check(name, True)


def adversarial(run: Run, baseline: Run, operands: Operands, problem: Problem, tolerance: Tolerance) -> list[Check]:
    """Rule 6, finite part: zeros give exactly the bias; rule 2 holds on the other inputs."""
    exponent = _EXTREME_EXPONENT[problem.layer.dtype]
    cases: dict[str, Callable[[Operands], Operands]] = {
        "one-hot input": draws.one_hot,
        "large input": partial(draws.scaled, exponent=exponent),
        "tiny input": partial(draws.scaled, exponent=-exponent),
        "non-contiguous tensors": draws.non_contiguous,
        "tensors at an offset": draws.offset_storage,
    }
    checks = [_only_bias(run(draws.zeros(operands)), operands)]
    for name, changed in cases.items():
        case = changed(operands)
        comparison = Comparison(tolerance)
        comparison.add(run(case), baseline(case), case, problem)
        checks.append(every_element(comparison, name))
    return checks


def _only_bias(got: Tensor, operands: Operands) -> Check:
    shape = (-1, *[1] * (got.dim() - 2))
    bias = torch.zeros_like(got) if operands.bias is None else operands.bias.view(shape).expand_as(got)
    if same_values(got, bias):
        return Check("input of zeros", True)
    index = first_difference(got, bias)
    reason = f"at {list(index)} got {float(got[index]):.9g}, expected exactly {float(bias[index]):.9g}"
    return Check("input of zeros", False, float(got[index]), float(bias[index]), reason)


def nonfinite(run: Run, baseline: Run, operands: Operands, problem: Problem, reach: Reach) -> Check:
    """Rule 6: a non-finite input makes all outputs that depend on it non-finite, and no output beyond `reach`.

    ∞ and NaN are put, one at a time, into the middle of the first sample.
    """
    name = "non-finite input"
    place = (0, problem.layer.in_channels // 2, *(length // 2 for length in operands.x.shape[2:]))
    device = operands.x.device
    must = _touched(problem, place, problem.layer.kernel, problem.layer.dilation, (0, 0, 0), device)
    may = must if reach == "exact" else _touched(problem, place, *_all_phases(problem), device)
    for value in (math.inf, math.nan):
        x = operands.x.clone()
        x[place] = value
        finite = run(operands._replace(x=x.clone())).isfinite()
        wrong = ~finite
        if reach == "phases":
            wrong &= baseline(operands._replace(x=x)).isfinite()
        wrong[:1] = (must & finite[:1]) | (~may & wrong[:1])
        if bool(wrong.any()):
            index = tuple(int(i) for i in wrong.nonzero()[0])
            found = "finite, and depends on it" if bool(finite[index]) else "not finite, and does not depend on it"
            return Check(name, False, reason=f"with {value} at input {list(place)}, output {list(index)} is {found}")
    return Check(name, True)


def _touched(
    problem: Problem, place: tuple[int, ...], kernel: Triple, dilation: Triple, before: Triple, device: torch.device
) -> Tensor:
    """True for the outputs (1, C_out, *output) of one sample that an input at `place` reaches with this kernel.

    The kernel starts `before` outputs earlier than the layer's own.
    """
    unpadded, unused = (0, 0, 0), 3 - problem.layer.spatial_dims
    layer = replace(problem.layer, kernel=kernel, dilation=dilation, padding=unpadded, bias=False, precision="fp32")
    one = torch.zeros(1, *problem.input_shape[1:], device=device)
    one[place] = 1
    whole = replace(problem, layer=layer, batch=1, output_padding=unpadded)
    reached = conv_transpose(one, torch.ones(layer.weight_shape, device=device), None, whole) > 0
    # Padding cuts the front off. Outputs beyond the end of the rest are reached by nothing.
    for axis, (padding, earlier) in enumerate(list(zip(problem.layer.padding, before, strict=True))[unused:], start=2):
        start = min(padding + earlier, reached.shape[axis])
        reached = reached.narrow(axis, start, reached.shape[axis] - start)
    result = torch.zeros(1, *problem.output_shape[1:], dtype=torch.bool, device=device)
    shared = tuple(slice(min(a, b)) for a, b in zip(reached.shape, result.shape, strict=True))
    result[shared] = reached[shared]
    return result


def _all_phases(problem: Problem) -> tuple[Triple, Triple, Triple]:
    """The dense kernel that covers all outputs less than a stride away from an output that a tap reaches.

    Returns the kernel, its dilation, and the number of outputs by which it starts before the layer's own.
    """
    axes = problem.layer.axes
    depth, height, width = (axis.dilation * (axis.kernel - 1) + 1 + 2 * (axis.stride - 1) for axis in axes)
    before = tuple(axis.stride - 1 for axis in axes)
    return (depth, height, width), (1, 1, 1), (before[0], before[1], before[2])
