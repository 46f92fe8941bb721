"""When a transposed convolution is equal to PyTorch's. `docs/evaluation.md` states the rules and explains them.

`check_layer` runs a candidate on fresh draws and awkward inputs, and puts it to every rule of `rules` and `awkward`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tconv.evaluation import rules
from tconv.evaluation.awkward import Reach, Run, adversarial, nonfinite, scaling
from tconv.evaluation.comparison import Comparison
from tconv.evaluation.draws import draw
from tconv.evaluation.poison import poisoned
from tconv.evaluation.precision import Wanted, arithmetic, resolve
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Check, Verdict
from tconv.problem import Problem

#: Draws after the first, and the awkward inputs, have so many samples as hold their inputs and outputs in these bytes:
#: what depends on the size has shown by then.
_FURTHER_BYTES = 128 * 2**20

#: ``candidate(x, weight, bias) -> y``; bias is None for a layer without.
Candidate = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def check_layer(
    candidate: Candidate,
    problem: Problem,
    wanted: Wanted = "match",
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    baseline: Candidate | None = None,
    draw_count: int = 5,
    awkward: bool = True,
    awkward_batch: int | None = None,
    reach: Reach = "exact",
) -> Verdict:
    """Judge one transposed convolution by all rules.

    Args:
        candidate: called as ``candidate(x, weight, bias)`` with x (N, C_in, *spatial), weight
            (C_in, C_out/groups, *kernel) and bias (C_out,) or None; returns (N, C_out, *output). What it raises
            goes through.
        wanted: the arithmetic it may use on float32: PyTorch's on this problem, "tf32" or "fp32".
        baseline: PyTorch's side, called in the same way; by default its own operator.
        draw_count: draws of inputs and weights over which errors are pooled; the first has all samples.
        awkward: also put it to rules 5 and 6, scaling and adversarial inputs.
        awkward_batch: samples that those inputs have at most; None for the problem's own batch.
        reach: how far a non-finite input may spread.
    """
    device = torch.device(device)
    pytorch: Candidate = baseline or partial(conv_transpose, problem=problem)
    ours: Run = partial(_checked_run, candidate, problem)

    precision = resolve(problem, wanted, device=device, seed=seed, baseline=lambda operands: pytorch(*operands))

    def theirs(operands: Operands) -> Tensor:
        with arithmetic(precision):
            return pytorch(*operands)

    comparison = Comparison(Tolerance.of(problem.layer, precision))
    fewer = further_draws(problem)
    first = draw(problem, device, seed)
    checks: list[Check] = []
    try:
        form, inputs, again = _first_draw(ours, theirs, first, problem, comparison)
        checks += (form, inputs, again)
        for number in range(1, draw_count):
            operands = draw(fewer, device, seed + number)
            comparison.add(ours(operands), theirs(operands), operands, problem)
        checks.append(rules.all_written(comparison))
        checks.append(rules.every_element(comparison))
        checks.append(rules.pooled(comparison))
        checks.append(rules.close_to_pytorch(comparison))
        if awkward and problem.batch:
            few = first._replace(x=first.x[: fewer.batch][:awkward_batch])
            scales = scaling(ours, few, problem)
            if again.passed is None and not scales.passed:
                reason = f"not required: PyTorch's own runs differ, too; {scales.reason}"
                scales = replace(scales, passed=None, reason=reason)
            checks.append(scales)
            checks += adversarial(ours, theirs, few, problem, comparison.tolerance)
            checks.append(nonfinite(ours, theirs, few, problem, reach))
    except _WrongForm as wrong:
        checks.append(wrong.check)
    return Verdict(tuple(checks))


def further_draws(problem: Problem) -> Problem:
    """The problem of the draws after the first, and of the awkward inputs: with as many samples, or with fewer."""
    elements = math.prod(problem.input_shape[1:]) + math.prod(problem.output_shape[1:])
    samples = max(1, _FURTHER_BYTES // (elements * problem.layer.item_bytes))
    return replace(problem, batch=min(problem.batch, samples))


class _WrongForm(Exception):
    """The candidate returned another form than PyTorch, so that nothing else can be compared."""

    def __init__(self, check: Check) -> None:
        super().__init__(check.reason)
        self.check = check


def _checked_run(candidate: Candidate, problem: Problem, operands: Operands) -> Tensor:
    """Run the candidate on poisoned memory; what it returns has the right shape, dtype and device."""
    shape = (operands.x.shape[0], *problem.output_shape[1:])
    output_bytes = math.prod(shape) * problem.layer.item_bytes
    with poisoned(operands.x.device, output_bytes):
        got = candidate(*operands)
    form = rules.same_form(got, operands.x.new_empty(1).expand(shape), strides=False)
    if not form.passed:
        raise _WrongForm(form)
    return got


def _first_draw(
    ours: Run, theirs: Run, operands: Operands, problem: Problem, comparison: Comparison
) -> tuple[Check, Check, Check]:
    """Rule 1 on two runs of the first draw, which is then counted in."""
    saved = operands.clone()
    expected = theirs(operands)
    got = ours(operands)
    form = rules.same_form(got, expected)
    # A copy: the candidate may return the same memory again.
    got = got.clone()
    inputs = rules.unchanged(saved, operands)
    again = rules.same_bits(got, ours(saved.clone()))
    if not again.passed and not rules.same_bytes(expected, theirs(saved)):
        again = replace(again, passed=None, reason=f"not required: PyTorch's own runs differ, too; {again.reason}")
    comparison.add(got, expected, saved, problem)
    return form, inputs, again
