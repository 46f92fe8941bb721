"""Rules 1 to 4 as functions: form, repeatability, the bound per element, the pooled error, closeness to PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from tconv.evaluation.bits import Fingerprint, fingerprint, same_bytes
from tconv.evaluation.comparison import Comparison
from tconv.evaluation.reference import Operands
from tconv.evaluation.tolerance import POOLED_SLACK
from tconv.evaluation.verdict import Check
from tconv.problem import TF32


def same_form(got: object, expected: Tensor, *, strides: bool = True) -> Check:
    """Rule 1: shape, dtype, device and (with `strides`) memory format are those of PyTorch's result."""
    name = "shape, dtype, memory format"
    if not isinstance(got, Tensor):
        kind = type(got).__name__
        return Check(name, False, kind, "Tensor", f"got {kind}, PyTorch returns a tensor")
    for what, ours, theirs in (
        ("shape", tuple(got.shape), tuple(expected.shape)),
        ("dtype", got.dtype, expected.dtype),
        ("device", got.device, expected.device),
        ("memory format (strides)", _strides(got), _strides(expected) if strides else _strides(got)),
    ):
        if ours != theirs:
            return Check(name, False, str(ours), str(theirs), f"{what} is {ours}, PyTorch's is {theirs}")
    return Check(name, True, str(tuple(got.shape)), str(tuple(expected.shape)))


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides that matter: of axes longer than one; none for a tensor without elements."""
    if not tensor.numel():
        return ()
    return tuple(stride for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1)


def prints(operands: Operands) -> list[Fingerprint | None]:
    """Fingerprints of the tensors, which tell whether they change."""
    return [None if tensor is None else fingerprint(tensor) for tensor in operands]


def unchanged(before: list[Fingerprint | None], after: Operands) -> Check:
    """Rule 1: a call changes neither its input nor weight and bias, whose `prints` were taken before."""
    name = "inputs unchanged"
    for what, old, new in zip(Operands._fields, before, prints(after), strict=True):
        if old != new:
            return Check(name, False, "changed", "unchanged", f"the call changed its {what}")
    return Check(name, True)


def same_bits(first: Tensor, second: Tensor) -> Check:
    """Rule 1: a second run on the same tensors gives the same bits."""
    name = "same bits twice"
    if first.shape != second.shape or first.dtype != second.dtype:
        shapes = f"{tuple(first.shape)} {first.dtype}, then {tuple(second.shape)} {second.dtype}"
        return Check(name, False, shapes, "same bits", f"the second run returned another form: {shapes}")
    if same_bytes(first, second):
        return Check(name, True)
    index = first_difference(first, second)
    values = f"{float(first[index]):.9g}, then {float(second[index]):.9g}"
    return Check(name, False, values, "same bits", f"two runs on the same tensors differ at {list(index)}: {values}")


def same_values(one: Tensor, other: Tensor) -> bool:
    """Equal shape, dtype and values. NaN equals NaN, and 0.0 equals -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def first_difference(one: Tensor, other: Tensor) -> tuple[int, ...]:
    """Index of the first element that differs in value; all zeros if only signs of zero differ."""
    places = ((one != other) & ~(one.isnan() & other.isnan())).nonzero()
    return tuple(int(i) for i in places[0]) if len(places) else (0,) * one.dim()


def all_written(comparison: Comparison) -> Check:
    """Rule 1: every element is written, and is finite where it should be."""
    name = "every element written"
    if comparison.unwritten is None:
        return Check(name, True)
    reason = f"the element at {list(comparison.unwritten)} was not written, or is not finite"
    return Check(name, False, "missing", "written", reason)


def every_element(comparison: Comparison, name: str = "every element") -> Check:
    """Rule 2: every element within (c*epsilon + u) times its magnitude, plus the rounding of the output.

    Not required where PyTorch's own result is further out, as it may be with algorithms that transform operands. `got`
    is the difference from float64 at the worst element, `allowed` its bound.
    """
    worst, theirs = comparison.beyond_bound, comparison.baseline_beyond_bound
    passed: bool | None = worst.ratio <= 1
    reason = f"{worst.describe()}; {worst.ratio:.3g} of what {comparison.tolerance.precision} is allowed"
    if not passed and worst.ratio <= theirs.ratio:
        passed, reason = None, _pytorch_outside(comparison, reason)
    return Check(
        name, passed, abs(worst.got - worst.expected), worst.allowed, reason if worst.index is not None else ""
    )


def _pytorch_outside(comparison: Comparison, reason: str) -> str:
    out = comparison.baseline_beyond_bound.ratio
    return f"not required: PyTorch's own result is outside, {out:.3g} of the bound; {reason}"


def pooled(comparison: Comparison) -> Check:
    """Rule 3: the error's norm over all draws, relative to the result's."""
    tolerance = comparison.tolerance
    theirs = comparison.relative(comparison.baseline.exact)
    allowances = {
        "1.25 × PyTorch's": POOLED_SLACK * theirs,
        "of any summation order": tolerance.pooled_floor,
        "of the output's rounding": comparison.relative(comparison.half_ulp),
    }
    if tolerance.precision in TF32:
        allowances["1.25 × that of rounded operands"] = POOLED_SLACK * comparison.relative(comparison.rounded)
    return within("pooled error", comparison.relative(comparison.candidate.exact), theirs, allowances)


def within(name: str, got: float, theirs: float, allowances: Mapping[str, float]) -> Check:
    """A relative error must not exceed the largest of the allowances, which are named by their origin.

    Allowances that are not finite count for nothing; they arise where the true result is zero everywhere. If none is
    finite, a zero error passes, another finite error is not checked, and an infinite one fails.
    """
    finite = {origin: allowed for origin, allowed in allowances.items() if math.isfinite(allowed)}
    errors = f"relative error {got:.3g}, PyTorch's {theirs:.3g}"
    if not finite:
        passed = True if got == 0 else None if math.isfinite(got) else False
        return Check(name, passed, got, reason=f"not checked: no allowance is a number; {errors}" if got else "")
    origin = max(finite, key=finite.__getitem__)
    allowed = finite[origin]
    return Check(name, got <= allowed, got, allowed, f"{errors}; allowed {allowed:.3g}, {origin}")


def close_to_pytorch(comparison: Comparison) -> Check:
    """Rule 4: allclose to PyTorch's own result, required where both ran the same arithmetic.

    Not required where PyTorch's result breaks rule 2 and the candidate's does not: a right result must not be refused.
    `got` is the difference from PyTorch's result at the worst element, `allowed` its bound.
    """
    worst = comparison.beyond_pytorch
    passed = worst.ratio <= 1 if comparison.same_arithmetic else None
    reason = worst.describe()
    if passed is None:
        ours, theirs = comparison.candidate_ran, comparison.baseline_ran
        mixed = ", and its two operands rounded in different ways" if ours == theirs else ""
        reason = f"not comparable: the candidate ran {ours}, PyTorch {theirs}{mixed}; {reason}"
    elif not passed and comparison.beyond_bound.ratio <= 1 < comparison.baseline_beyond_bound.ratio:
        passed, reason = None, _pytorch_outside(comparison, reason)
    return Check("close to PyTorch", passed, abs(worst.got - worst.expected), worst.allowed, reason)
