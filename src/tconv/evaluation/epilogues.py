"""When a transposed convolution with an epilogue is equal to PyTorch's. `docs/evaluation.md` states the rules.

A right sum lies in an interval around its float64 value, which rule 2 gives. Interval arithmetic carries the interval
through the program, with the program's own rounding. The candidate's result must lie in the interval that comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tconv.evaluation import rules
from tconv.evaluation.bits import fingerprint
from tconv.evaluation.comparison import Worst, further, square, worst
from tconv.evaluation.draws import draw
from tconv.evaluation.equality import further_draws
from tconv.evaluation.poison import poisoned
from tconv.evaluation.precision import Wanted, arithmetic, resolve
from tconv.evaluation.reference import Exact, Operands, conv_transpose, exact
from tconv.evaluation.tolerance import POOLED_SLACK, Tolerance, half_ulp
from tconv.evaluation.verdict import Check, Verdict
from tconv.pointwise.evaluate import evaluate, shape_of
from tconv.pointwise.interval import Interval, bounds
from tconv.pointwise.program import SUM, Program, parse
from tconv.problem import TF32, Problem

#: ``candidate(x, weight, bias, *operands) -> y``, the operands in the shapes of `pointwise.evaluate.shape_of`.
Candidate = Callable[..., Tensor]


def check_program(
    candidate: Candidate,
    problem: Problem,
    wanted: Wanted = "match",
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Verdict:
    """Judge one transposed convolution with the program of its layer's `epilogue`, if any, on fresh tensors.

    Args:
        candidate: called with x (N, C_in, *spatial), weight (C_in, C_out/groups, *kernel), bias (C_out,) or None, and
            the program's operands; returns (N, C_out, *output). Its exceptions pass through.
        wanted: the arithmetic that sums may use on float32: "match" for PyTorch's on this problem, "tf32" or "fp32".
    """
    device = torch.device(device)
    problem = further_draws(problem)
    program = parse(problem.layer.epilogue or SUM)
    precision = resolve(problem, wanted, device=device, seed=seed)
    tensors = draw(problem, device, seed)
    with arithmetic(precision):
        sums = conv_transpose(*tensors, problem)
    operands = draw_operands(program, problem, device, seed)
    if bool(evaluate(program, sums, operands).isnan().any()):
        operands = [operand.abs() for operand in operands]

    def run() -> Tensor:
        with poisoned(device, sums.nbytes):
            return candidate(*tensors, *operands)

    before = [fingerprint(t) for t in (*tensors, *operands) if t is not None]
    got = run()
    form = rules.same_form(got, sums)
    if not form.passed:
        return Verdict((form,))
    after = [fingerprint(t) for t in (*tensors, *operands) if t is not None]
    again = fingerprint(run()) == fingerprint(got)
    compared = _Compared(Tolerance.of(problem.layer, precision), program)
    compared.add(got, evaluate(program, sums, operands), tensors, operands, problem)
    checks = [
        form,
        Check("inputs unchanged", before == after, reason="" if before == after else "the call changed its tensors"),
        Check("same bits twice", again, reason="" if again else "two runs on the same tensors differ"),
        compared.every_element(),
        compared.pooled(),
        _nonfinite(candidate, program, problem, tensors, operands, compared.tolerance),
    ]
    return Verdict(tuple(checks))


def draw_operands(program: Program, problem: Problem, device: torch.device, seed: int) -> list[Tensor]:
    """Normal values for a program's operands. The program may give NaN for some, as a square root of -1 does."""
    generator = torch.Generator(device).manual_seed(seed + 1)
    dtype = getattr(torch, problem.layer.dtype)
    return [
        torch.randn(shape_of(operand.kind, problem.output_shape), generator=generator, device=device).to(dtype)
        for operand in program.operands
    ]


@dataclass
class _Compared:
    """The errors of a candidate and of PyTorch against the program applied to float64 sums, P(r).

    The numbers are sums of squares:

    - candidate, baseline, rounded: of the differences of the candidate, of PyTorch and of P(t) from P(r), where t are
      exact sums of operands rounded to TF32
    - least: of the change that any order of summation and the output's rounding may make
    - result: of P(r)
    """

    tolerance: Tolerance
    program: Program
    outside: Worst = field(default_factory=Worst)
    theirs_outside: Worst = field(default_factory=Worst)
    candidate: float = 0.0
    baseline: float = 0.0
    rounded: float = 0.0
    least: float = 0.0
    result: float = 0.0

    def add(
        self, got: Tensor, baseline: Tensor, tensors: Operands, operands: Sequence[Tensor], problem: Problem
    ) -> None:
        unit = 2 * self.tolerance.epsilon
        for part in exact(tensors, problem, rounded=self.tolerance.precision in TF32):
            there = [part_of_operand(operand, part) for operand in operands]
            wide = [operand.double() for operand in there]
            value = evaluate(self.program, part.result, wide)
            allowed = self.tolerance.factor * part.magnitude
            low, high = self._hull(part.result, allowed, there, unit)
            # A sum near the end of a function's domain may lie on either side of the end.
            ends = (evaluate(self.program, part.result + sign * allowed, wide) for sign in (-1, 1))
            may_be_nan = torch.stack([value, *ends]).isnan().any(0)
            ours, theirs = part.of(got).double(), part.of(baseline).double()
            place = {"first": part.samples.start, "row": part.rows.start}
            self.outside = further(self.outside, _worst(ours, value, low, high, may_be_nan, place))
            self.theirs_outside = further(self.theirs_outside, _worst(theirs, value, low, high, may_be_nan, place))
            sane = self._hull(part.result, self.tolerance.pooled_floor * part.result.abs(), there, unit)
            # Elements without finite bounds, such as quotients by a number that may be zero, are left to rule 2.
            finite = ~may_be_nan & value.isfinite() & sane.low.isfinite() & sane.high.isfinite()
            self.candidate += _square(ours - value, finite)
            self.baseline += _square(theirs - value, finite)
            self.least += _square(torch.maximum(sane[1] - value, value - sane[0]), finite)
            self.result += _square(value, finite)
            if part.rounded:
                rounded = part.rounded["tf32"]
                self.rounded += _square(evaluate(self.program, rounded, wide) - value, finite)

    def _hull(self, sums: Tensor, allowed: Tensor, operands: Sequence[Tensor], unit: float) -> Interval:
        """The interval of stored values where sums lie within `allowed` of `sums`."""
        low, high = bounds(self.program, Interval(sums - allowed, sums + allowed), operands, unit)
        dtype = self.tolerance.dtype
        low, high = low - half_ulp(low, dtype), high + half_ulp(high, dtype)
        # A value beyond the type's range may be stored as the largest number, or as infinity.
        largest = torch.finfo(dtype).max
        beyond = torch.where(high > largest, math.inf, high), torch.where(low < -largest, -math.inf, low)
        return Interval(beyond[1].clamp(max=largest), beyond[0].clamp(min=-largest))

    def every_element(self) -> Check:
        """Rule 2: every element lies in its interval."""
        passed: bool | None = self.outside.ratio <= 1
        reason = self.outside.describe()
        if not passed and self.outside.ratio <= self.theirs_outside.ratio:
            passed, reason = None, f"not required: PyTorch's own result is outside; {reason}"
        got = abs(self.outside.got - self.outside.expected)
        return Check("every element", passed, got, self.outside.allowed, reason)

    def pooled(self) -> Check:
        """Rule 3: the pooled relative error."""

        def relative(of: float) -> float:
            return 0.0 if of == 0.0 else math.sqrt(of / self.result) if self.result else math.inf

        theirs = relative(self.baseline)
        allowances = {
            "1.25 × PyTorch's": POOLED_SLACK * theirs,
            "of summation and rounding": relative(self.least),
        }
        if self.tolerance.precision in TF32:
            allowances["1.25 × that of rounded operands"] = POOLED_SLACK * relative(self.rounded)
        return rules.within("pooled error", relative(self.candidate), theirs, allowances)


def _square(tensor: Tensor, where: Tensor) -> float:
    return square(torch.where(where, tensor, 0.0))


def part_of_operand(operand: Tensor, part: Exact) -> Tensor:
    """The part of an operand that belongs to a part of the output."""
    samples = part.samples if operand.shape[0] > 1 else slice(None)
    return operand[samples, :, part.rows if operand.shape[2] > 1 else slice(None)]


def _worst(got: Tensor, value: Tensor, low: Tensor, high: Tensor, may_be_nan: Tensor, place: dict[str, int]) -> Worst:
    """The element furthest outside its interval. Where an end is NaN, only a missing NaN counts."""
    no_ends = low.isnan() | high.isnan()
    unknown = (got.isnan() & (no_ends | may_be_nan)) | (no_ends & value.isfinite())
    unknown |= (low == -math.inf) & (high == math.inf)
    inside = unknown | ((got >= low) & (got <= high))
    allowed = torch.where(got > value, high - value, value - low)
    expected = torch.where(inside, got, value.nan_to_num(nan=0.0))
    allowed = torch.where(unknown, math.inf, allowed.nan_to_num(nan=0.0).clamp_min(1e-300))
    return worst(got, expected, allowed, **place)


def _nonfinite(
    candidate: Candidate,
    program: Program,
    problem: Problem,
    tensors: Operands,
    operands: Sequence[Tensor],
    tolerance: Tolerance,
) -> Check:
    """Infinities and NaN, in the bias and in operands, give what PyTorch gives.

    Elements are left out where PyTorch's answer depends on the rounding of a sum, such as the sign of a sum near zero,
    or on a value so small that it is 0 in the type in which programs are computed.
    """
    name = "infinities and NaN"
    bias = None if tensors.bias is None else _with_nonfinite(tensors.bias)
    changed = [_with_nonfinite(operand) for operand in operands]
    if bias is None and not operands:
        return Check(name, None, reason="not checked: the layer has no bias, and the program reads nothing")
    given = tensors._replace(bias=bias)
    x, weight = tensors.x.double(), tensors.weight.double()
    sums = conv_transpose(x, weight, None if bias is None else bias.double(), problem)
    finite_bias = None if bias is None else bias.double().abs().nan_to_num(0.0, 0.0, 0.0)
    allowed = tolerance.factor * conv_transpose(x.abs(), weight.abs(), finite_bias, problem)
    wide = [operand.double() for operand in changed]
    # Infinite sums and NaN stay the same under these shifts.
    below, expected, above = (
        evaluate(program, y, wide).to(tensors.x.dtype) for y in (sums - allowed, sums, sums + allowed)
    )
    own = sums if tensors.x.dtype == torch.float64 else sums.float()
    in_type = [evaluate(program, own, changed, flushes=flushes).to(expected.dtype) for flushes in (False, True)]
    certain = torch.stack([_alike(each, expected) for each in (below, above, *in_type)]).all(0)
    got = candidate(*given, *changed)
    places = (certain & ~_alike(got, expected)).nonzero()
    if not len(places):
        return Check(name, True)
    index = tuple(int(i) for i in places[0])
    values = f"got {float(got[index]):.9g}, expected {float(expected[index]):.9g}"
    return Check(name, False, reason=f"at {list(index)} {values}")


def _alike(one: Tensor, other: Tensor) -> Tensor:
    """Whether both are numbers, or the same infinity, or NaN."""
    return (one.isnan() == other.isnan()) & ((one == other) | ~(one.isinf() | other.isinf()))


def _with_nonfinite(tensor: Tensor) -> Tensor:
    """∞, −∞ and NaN at every other element, as far as there are three."""
    changed = tensor.clone()
    for place, value in enumerate((math.inf, -math.inf, math.nan)):
        changed.view(-1)[2 * place + 1 :: 7] = value
    return changed
