"""When a transposed convolution is equal to PyTorch's. `docs/evaluation.md` states the rules and explains them.

`check_layer` runs a candidate on fresh draws and awkward inputs, and puts it to every rule of `rules` and `awkward`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tconv.evaluation import rules
from tconv.evaluation.awkward import Reach, Run, adversarial, nonfinite, scaling
from tconv.evaluation.bits import fingerprint, same_bytes
from tconv.evaluation.comparison import Comparison, apart, as_near
from tconv.evaluation.draws import draw
from tconv.evaluation.poison import poisoned
from tconv.evaluation.precision import Wanted, arithmetic, resolve
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Check, Verdict
from tconv.problem import Problem
from tconv.sandbox.gpu_memory import release

#: Draws after the first, and the awkward inputs, have so many samples as hold their inputs and outputs in these bytes:
#: what depends on the size has shown by then.
_FURTHER_BYTES = 128 * 2**20
#: Inputs and outputs that PyTorch's side takes at once.
_SLICE_BYTES = 128 * 2**20
#: So many of these are beside float64 where not all samples need be.
_SOME_SLICES = 3

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
    first: Operands | None = None,
    draw_count: int = 5,
    awkward: bool = True,
    awkward_batch: int | None = None,
    all_samples: bool = True,
    reach: Reach = "exact",
) -> Verdict:
    """Judge one transposed convolution by all rules.

    Args:
        candidate: called as ``candidate(x, weight, bias)`` with x (N, C_in, *spatial), weight
            (C_in, C_out/groups, *kernel) and bias (C_out,) or None; returns (N, C_out, *output). What it raises
            goes through.
        wanted: the arithmetic it may use on float32: PyTorch's on this problem, "tf32" or "fp32".
        baseline: PyTorch's side, called in the same way; by default its own operator.
        first: the first draw of inputs and weights; drawn as the others are if None, but with all samples.
        draw_count: draws over which errors are pooled.
        awkward: also put it to rules 5 and 6, scaling and adversarial inputs.
        awkward_batch: samples that those inputs have at most; None for the problem's own batch.
        all_samples: all of a large first draw beside float64; else some of it, and the rest where that is not as near
            PyTorch's.
        reach: how far a non-finite input may spread.
    """
    device = torch.device(device)
    pytorch: Candidate = baseline or partial(conv_transpose, problem=problem)
    ours: Run = partial(_checked_run, candidate, problem)

    theirs_alone = None if baseline is None else (lambda operands: pytorch(*operands))
    precision = resolve(problem, wanted, device=device, seed=seed, baseline=theirs_alone)

    def theirs(operands: Operands) -> Tensor:
        with arithmetic(precision):
            return pytorch(*operands)

    comparison = Comparison(Tolerance.of(problem.layer, precision))
    fewer = further_draws(problem)
    drawn = draw(problem if first is None else fewer, device, seed)
    checks: list[Check] = []
    try:
        form, inputs, again = _first_draw(
            ours, theirs, drawn if first is None else first, problem, comparison, all_samples
        )
        first = None  # it may be gigabytes
        checks += (form, inputs, again)
        for number in range(1, draw_count):
            operands = draw(fewer, device, seed + number)
            comparison.add(ours(operands), theirs(operands), operands, problem)
        checks.append(rules.all_written(comparison))
        checks.append(rules.every_element(comparison))
        checks.append(rules.pooled(comparison))
        checks.append(rules.close_to_pytorch(comparison))
        if awkward and problem.batch:
            few = drawn._replace(x=drawn.x[: fewer.batch][:awkward_batch])
            scales = scaling(ours, few, problem)
            if again.passed is None and not scales.passed:
                reason = f"not required: PyTorch's own runs differ, too; {scales.reason}"
                scales = replace(scales, passed=None, reason=reason)
            checks.append(scales)
            checks += adversarial(ours, theirs, few, problem, comparison.tolerance)
            checks.append(nonfinite(ours, theirs, few, problem, reach))
    except _Incomparable as found:
        checks.append(found.check)
    return Verdict(tuple(checks))


def further_draws(problem: Problem) -> Problem:
    """The problem of the draws after the first, and of the awkward inputs: with as many samples, or with fewer."""
    samples = max(1, _FURTHER_BYTES // _bytes_of(problem, 1))
    return replace(problem, batch=min(problem.batch, samples))


def _bytes_of(problem: Problem, samples: int) -> int:
    """Those of inputs and outputs."""
    elements = math.prod(problem.input_shape[1:]) + math.prod(problem.output_shape[1:])
    return samples * elements * problem.layer.item_bytes


class _Incomparable(Exception):
    """The candidate returned another form than PyTorch, or changed its operands: nothing else can be compared."""

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
        raise _Incomparable(form)
    return got


def _first_draw(
    ours: Run, theirs: Run, operands: Operands, problem: Problem, comparison: Comparison, all_samples: bool
) -> tuple[Check, Check, Check]:
    """Rule 1 on two runs of the first draw, which is then counted in."""
    # Each of these tensors may be gigabytes: of what is only compared with a later one there are fingerprints.
    before = rules.prints(operands)
    first = fingerprint(ours(operands))
    got = ours(operands)
    inputs = rules.unchanged(before, operands)
    if not inputs.passed:
        raise _Incomparable(inputs)
    again = Check("same bits twice", True) if fingerprint(got) == first else _differing(got, ours, operands)
    release()
    form = _compare(comparison, got, theirs, operands, problem, all_samples)
    if not again.passed and not _gives_the_same_again(theirs, operands, problem):
        again = replace(again, passed=None, reason=f"not required: PyTorch's own runs differ, too; {again.reason}")
    return form, inputs, again


def _compare(
    comparison: Comparison, got: Tensor, theirs: Run, operands: Operands, problem: Problem, all_samples: bool
) -> Check:
    """Count in a draw, of a large one a few samples at a time: what PyTorch gives, and takes for that, is as large.

    Args:
        got: shaped as the output.
        problem: gives the sizes of a sample.
        all_samples: as in `check_layer`.

    Returns:
        Rule 1 on the form. What has another one is not counted in.
    """
    slices = list(_slices(operands, problem))
    some = {number * (len(slices) - 1) // (_SOME_SLICES - 1) for number in range(_SOME_SLICES)}
    order = sorted(range(len(slices)), key=lambda number: number not in some)
    form: Check | None = None
    distances: list[tuple[float, float]] = []
    for number in order:
        samples, part = slices[number]
        expected = theirs(part)
        form = form or rules.same_form(got[samples], expected)
        if not form.passed:
            break
        if not all_samples:
            distance = apart(got[samples], expected)
            if number not in some and as_near(distance, distances):
                continue
            distances += [distance] * (number in some)
        comparison.add(got[samples], expected, part, problem, first=samples.start)
    assert form is not None, "there is a slice, if an empty one"
    return form


def _gives_the_same_again(theirs: Run, operands: Operands, problem: Problem) -> bool:
    return all(same_bytes(theirs(part), theirs(part)) for _, part in _slices(operands, problem))


def _slices(operands: Operands, problem: Problem) -> Iterator[tuple[slice, Operands]]:
    x = operands.x
    step = max(1, _SLICE_BYTES // max(1, _bytes_of(problem, 1)))
    for start in range(0, max(1, len(x)), step):
        samples = slice(start, min(start + step, len(x)))
        yield samples, operands._replace(x=x[samples])


def _differing(got: Tensor, ours: Run, operands: Operands) -> Check:
    """Where two runs differ, as they have done before: with `got` and one more, if that shows it."""
    got = got.clone()  # the candidate may return the same memory again
    found = rules.same_bits(got, ours(operands))
    reason = "two runs on the same tensors differ, and a third gives the second's bits"
    return replace(found, passed=False, reason=found.reason or reason)
