"""Whether calls gave right results while they were timed."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tconv.evaluation.comparison import Comparison
from tconv.evaluation.files.results.one_layer import layer_alone
from tconv.evaluation.files.results.output_rules import same_outputs
from tconv.evaluation.files.sides.file_process import OneLayer
from tconv.evaluation.files.sides.inputs import SEED
from tconv.evaluation.files.sides.model_and_candidate import Reference
from tconv.evaluation.files.timing.timing_process import TimedOutputs
from tconv.evaluation.files.timing.two_files import Kept
from tconv.evaluation.precision import arithmetic, resolve
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.rules import all_written, close_to_pytorch, every_element, pooled, same_form
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Check, Verdict
from tconv.problem import Precision, Problem

_NAME = "right while it is timed"
_DRAWN = "one of the calls that were timed, drawn at random, is wrong"


def check_timed(reference: Reference, *kept: Kept) -> Check:
    """Whether kept calls gave right results: one layer by rules 2 to 4, other models by the rules for whole models."""
    checks = [_check(reference, each) for each in kept]
    wrong = next((check for check in checks if check.passed is False), None)
    return wrong or next((check for check in checks if check.passed is None), checks[0])


def _check(reference: Reference, kept: Kept) -> Check:
    state = reference.built(SEED)
    other_form = "the inputs that it says it was given have another form"
    if (layer := layer_alone(reference.case, state)) is not None:
        if not all(_fit(call, layer.problem) for call in kept.candidate):
            return Check(_NAME, False, reason=other_form)
        # Nothing in a layer is random: another call gives the same.
        precision = resolve(layer.problem, reference.wanted, device=reference.device)
        wrong = _wrong_in_layer(kept.candidate, layer, state, precision)
        return Check(_NAME, False, reason=f"{_DRAWN}: {wrong}") if wrong else Check(_NAME, True)
    form = same_outputs([call.inputs for call in kept.candidate], [call.inputs for call in kept.reference])
    if not form.passed:
        return Check(_NAME, False, reason=f"{other_form}: {form.reason}")
    wrong = _wrong_in(kept.candidate, reference, state, kept.training)
    if not wrong:
        return Check(_NAME, True)
    # A model with dropout, or one that counts its calls, does not give the same again.
    theirs = _wrong_in(kept.reference, reference, state, kept.training)
    if theirs:
        return Check(_NAME, None, reason=f"not required: Model's own timed calls do not give the same again; {theirs}")
    return Check(_NAME, False, reason=f"{_DRAWN}: {wrong}")


def _fit(call: TimedOutputs, problem: Problem) -> bool:
    """Whether the inputs of a call are samples with the problem's sizes."""
    x, *others = [*call.inputs, None]
    alike = isinstance(x, Tensor) and x.dtype == getattr(torch, problem.layer.dtype)
    return others == [None] and alike and tuple(x.shape[1:]) == problem.input_shape[1:] and len(x) > 0


def _wrong_in(calls: list[TimedOutputs], reference: Reference, state: dict[str, Tensor], training: bool | None) -> str:
    """Says what is wrong with the outputs of calls in this mode; empty if nothing is."""
    comparisons = reference.comparisons()
    for call in calls:
        given = call.inputs, state, SEED, training
        plain = reference.plain(*given)
        # With a mode, results have buffers, which timed calls do not keep.
        got = call.outputs if training is None else {**plain.outputs, "output": call.outputs}
        ties = reference.ties(*given)
        form = ties.form(same_outputs(got, plain.outputs), plain.outputs)
        if form.passed is False:
            return form.reason
        if form.passed:
            comparisons.add(got, plain.outputs, *reference.finer(plain, *given), ties)
    return next(iter(Verdict(tuple(comparisons.checks())).reasons), "")


def _wrong_in_layer(calls: list[TimedOutputs], layer: OneLayer, state: dict[str, Tensor], precision: Precision) -> str:
    """The same for a model that is one layer. This process computes the layer, without `Model`'s process."""
    comparison = Comparison(Tolerance.of(layer.problem.layer, precision))
    for call in calls:
        given = Operands(call.inputs[0], state[layer.weight], None if layer.bias is None else state[layer.bias])
        problem = replace(layer.problem, batch=len(given.x))
        with arithmetic(precision):
            expected = conv_transpose(*given, problem)
        form = same_form(call.outputs, expected)
        if not form.passed:
            return form.reason
        comparison.add(call.outputs, expected, given, problem)
    checks = tuple(rule(comparison) for rule in (all_written, every_element, pooled, close_to_pytorch))
    return next(iter(Verdict(checks).reasons), "")
