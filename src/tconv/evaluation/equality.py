"""When a transposed convolution is equal to PyTorch's. `docs/evaluation.md` states the rules and explains them.

`check_layer` runs a candidate on fresh draws and awkward inputs, and applies every rule of `rules` and `awkward`.
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

#: Further draws and awkward inputs have at most this many bytes of inputs and outputs. The first draw has the full size
#: and finds errors that depend on it.
_FURTHER_BYTES = 128 * 2**20
#: Bytes of inputs and outputs that PyTorch's side takes at once, as a slice of the batch.
_SLICE_BYTES = 128 * 2**20
#: The number of slices that are compared with float64 where not all samples need to be.
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
            (C_in, C_out/groups, *kernel) and bias (C_out,) or None; returns (N, C_out, *output). Its exceptions
            pass through.
        wanted: the arithmetic that it may use on float32: "match" for PyTorch's on this problem, "tf32" or "fp32".
        baseline: PyTorch's side, called like the candidate; by default PyTorch's operator.
        first: the first draw of inputs and weights; if None, it is drawn like the others, with all samples.
        draw_count: draws over which errors are pooled.
        awkward: also apply rules 5 and 6, scaling and adversarial inputs.
        awkward_batch: the most samples of those inputs; None for the problem's batch.
        all_samples: compare all of a large first draw with float64. Else a few slices are compared, and each other
            slice that is not as near to PyTorch's result as they are.
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
    """The problem of further draws and awkward inputs: the same, with fewer samples if it is large."""
    samples = max(1, _FURTHER_BYTES // _bytes_of(problem, 1))
    return replace(problem, batch=min(problem.batch, samples))


def _bytes_of(problem: Problem, samples: int) -> int:
    """Bytes of the inputs and outputs of that number of samples."""
    elements = math.prod(problem.input_shape[1:]) + math.prod(problem.output_shape[1:])
    return samples * elements * problem.layer.item_bytes


class _Incomparable(Exception):
    """The candidate's result has another form than PyTorch's, or it changed its operands: no other rule applies."""

    def __init__(self, check: Check) -> None:
        super().__init__(check.reason)
        self.check = check


def _checked_run(candidate: Candidate, problem: Problem, operands: Operands) -> Tensor:
    """Run the candidate on poisoned memory; its result has the right shape, dtype and device.

    Raises:
        _Incomparable: it has not.
    """
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
    """Apply rule 1 to two runs of the first draw, and add the draw to the comparison."""
    # Each of these tensors may be gigabytes. Fingerprints stand for those that are only compared with later ones.
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
    """Add a draw to the comparison, in slices of the batch: PyTorch's result and its workspace may be large.

    Args:
        got: shaped as the output.
        problem: gives the sizes of a sample.
        all_samples: as in `check_layer`.

    Returns:
        Rule 1 on the form. A result of another form is not added.
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
    """The failed check of two runs that differ. A third run, compared with `got`, may show where."""
    got = got.clone()  # the candidate may return the same memory again
    found = rules.same_bits(got, ours(operands))
    reason = "two runs on the same tensors differ, and a third gives the second's bits"
    return replace(found, passed=False, reason=found.reason or reason)
