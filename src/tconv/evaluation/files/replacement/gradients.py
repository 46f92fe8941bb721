"""Whether gradients equal `Model`'s, on each way to take them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tconv.errors import OutOfMemory
from tconv.evaluation.files.replacement.other_inputs import first_sample_twice
from tconv.evaluation.files.results.near_ties import NearTies, hangs_on_rounding
from tconv.evaluation.files.results.output_rules import OutputComparison, Results, same_outputs
from tconv.evaluation.files.results.state import randomised
from tconv.evaluation.files.sides.file_process import CandidateRaised, Outcome
from tconv.evaluation.files.sides.inputs import IN_TRAINING
from tconv.evaluation.files.sides.model_and_candidate import HOST, Pair
from tconv.evaluation.rules import same_form
from tconv.evaluation.verdict import GRADIENTS, INFERENCE_ONLY, Check
from tconv.sandbox.exchange import largest_bytes
from tconv.sandbox.model_file import ModelFileError

_ENABLED = "with gradients enabled"
#: Other ways to take gradients, as in `process/backward.py`, and their names in reports.
_OTHER_WAYS = {
    "again": "of the last output alone, by a second backward(), after another call",
    "ends": "in evaluation, of the first output alone, after another call, the first weight and the last frozen",
    "all": "in evaluation, of the first output alone, after another call, all parameters frozen",
}
#: Draws of moved operands for gradients that are further off than one draw explains, as one may have met no kink.
_MOVED_DRAWS = 12


@dataclass(frozen=True)
class Way:
    """A way to take gradients: in training or in evaluation, of parameters and inputs or of parameters alone.

    Args:
        other: one of `_OTHER_WAYS`, or empty.
    """

    training: bool
    of: str
    other: str = ""


#: The ways in the order of trial, since a model may change its inputs, or refuse to train.
_WAYS = tuple(Way(training, of) for training in (True, False) for of in ("parameters and inputs", "parameters"))


@dataclass(frozen=True)
class _Gradients:
    """`Model`'s results with gradients enabled: in its own arithmetic, in float64, and on moved operands; or None.

    Args:
        outputs: outputs and buffers.
        gradients: gradients by the names of parameters and inputs; None for a tensor that gets none.
    """

    outputs: tuple[Any, Any, Any]
    gradients: tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]

    def farther(self, gradients: Mapping[str, Any] | None) -> _Gradients:
        """The same, with the moved gradients that are further off in each element: these or the given ones."""
        own, exact, moved = self.gradients
        if gradients is None or moved is None:
            return self
        of = own if exact is None else exact
        found = {name: _farther(of.get(name), tensor, gradients.get(name)) for name, tensor in moved.items()}
        return replace(self, gradients=(own, exact, found))

    def results(self, name: str, got: Tensor) -> Results | None:
        """One gradient of the candidate for comparison with these; None if `Model` has none."""
        pytorch, *others = (None if each is None else each.get(name) for each in self.gradients)
        return None if pytorch is None else Results(got.contiguous(), pytorch.contiguous(), *others)


def _farther(of: Tensor | None, one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The elements of `one` or `other`, whichever is further from `of`; None if a tensor is missing."""
    if of is None or one is None or other is None:
        return one
    return torch.where((one - of).abs() >= (other - of).abs(), one, other)


def check_gradients(pair: Pair, training: bool) -> list[Check]:
    """Compare gradients, of small inputs on further ways.

    Args:
        training: whether a candidate without gradients fails.
    """
    state = randomised(pair.built(IN_TRAINING), IN_TRAINING)
    inputs = pair.case.inputs(IN_TRAINING)
    first = first_way(pair, inputs, state)
    if isinstance(first, Check):
        return [first]
    way, plain = first
    checks = on_a_way(pair, inputs, state, way, plain, training)
    if all(check.passed for check in checks):
        found: dict[str, list[Check]] = {}
        small = pair.small_inputs(IN_TRAINING)
        twice = None if pair.emulated else first_sample_twice(small)
        for which in _OTHER_WAYS:
            if which == "all" and way.of == "parameters":
                continue
            # As in a training, where data asks for no gradient.
            other = Way(way.training and which == "again", "parameters" if which == "again" else way.of, which)
            for inputs in filter(None, (twice, small)):
                with contextlib.suppress(ModelFileError):  # it may run in training only, or take one batch size only
                    plain = _backward(pair, inputs, state, other)
                    if not plain.stopped:
                        found[which] = on_a_way(pair, inputs, state, other, plain, training)
                        break
        # The candidate is for inference only if it has no gradients on any of the ways.
        flows = any(check.passed for of_way in found.values() for check in of_way)
        checks += [
            replace(
                check,
                passed=False if flows else check.passed,
                reason=f"{_OTHER_WAYS[which]}: {check.reason}",
                about=which,
            )
            for which, of_way in found.items()
            for check in of_way
            if not check.passed
        ]
    return [check for check in checks if not check.passed] or checks[:1]


def first_way(pair: Pair, inputs: list[Any], state: dict[str, Tensor]) -> tuple[Way, Outcome] | Check:
    """The first way to take `Model`'s gradients, and its outcome; a check not made if there is no way."""
    stopped = ""
    for way in _WAYS:
        try:
            plain = _backward(pair, inputs, state, way)
        except ModelFileError as error:
            stopped = str(error)
            continue
        if not plain.stopped:
            return way, plain
        stopped = plain.stopped
    return Check(GRADIENTS, None, reason=f"not checked, Model has none: {stopped}")


def on_a_way(
    pair: Pair, inputs: list[Any], state: dict[str, Tensor], way: Way, plain: Outcome, training: bool
) -> list[Check]:
    """The rules for gradients on this way, compared with those of `Model`."""
    pair.calls.beside(plain)
    size = largest_bytes(plain.outputs)
    try:
        options = {"training": way.training, "gradients": way.of, "way": way.other, "seed": IN_TRAINING}
        got = pair.calls.run(inputs, state, output_bytes=size, on=HOST, **options)
    except CandidateRaised as error:
        return [_inference_only(f"with gradients enabled, {error}", training)]
    exact = _gradients_or_none(pair, inputs, state, way, "float64")
    ties = pair.ties(inputs, state, IN_TRAINING, way.training)
    checks = _compared(pair, inputs, state, way, got, _beside(plain, exact), ties, training)
    if any(check.passed is False for check in checks):  # moved operands excuse, and nothing else
        moved = _moved(pair, inputs, state, way, 0, exact[0] is not None)
        checks = _compared(pair, inputs, state, way, got, _beside(plain, exact, moved), ties, training, _MOVED_DRAWS)
    return checks


def _compared(
    pair: Pair,
    inputs: list[Any],
    state: dict[str, Tensor],
    way: Way,
    got: Outcome,
    expected: _Gradients,
    ties: NearTies,
    training: bool,
    draws: int = 0,
) -> list[Check]:
    """The rules, with at most `draws` draws of moved operands."""
    outputs, gradients = _split(got.outputs)
    form = ties.form(same_outputs(outputs, expected.outputs[0]), expected.outputs[0])
    if not form.passed:
        named = replace(form, name=f"{form.name}, {_ENABLED}")
        return [named if hangs_on_rounding(form) else replace(named, reason=f"{_ENABLED}: {form.reason}")]
    comparisons = pair.comparisons()
    comparisons.add(outputs, *expected.outputs, ties)
    checks = [check for check in comparisons.checks(_ENABLED) if check.passed is False]
    flowing = {name: tensor for name, tensor in gradients.items() if isinstance(tensor, Tensor)}
    models = {name: tensor for name, tensor in expected.gradients[0].items() if tensor is not None and tensor.any()}
    missing = [name for name in models if name not in flowing]
    wrong = _wrong_ones(pair, flowing, expected)
    if wrong and missing:
        # If a kernel passes no gradient on, the others must be right without its share.
        plain = _backward(pair, inputs, state, way, cut_off=True)
        exact = _gradients_or_none(pair, inputs, state, way, "float64", cut_off=True)
        cut = _beside(plain, exact, _moved(pair, inputs, state, way, 0, exact[0] is not None, cut_off=True))
        wrong_there = _wrong_ones(pair, {name: flowing[name] for name in wrong}, cut)
        wrong = {name: check for name, check in wrong.items() if name in wrong_there}
    for number in range(1, draws):
        if not wrong:
            break
        expected = expected.farther(_moved(pair, inputs, state, way, number, expected.gradients[1] is not None)[1])
        wrong = _wrong_ones(pair, {name: flowing[name] for name in wrong}, expected)
    checks += wrong.values()
    if missing:
        to = "no gradient flows" if not flowing else f"no gradient flows to {', '.join(missing)}"
        if way.other and flowing:  # all do on the other way
            return [*checks, Check(GRADIENTS, False, reason=to)]
        return [*checks, _inference_only("; ".join(filter(None, [to, got.stopped])), training)]
    return checks or [Check(GRADIENTS, True)]


def _split(found: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs with the buffers, and the gradients."""
    outputs = dict(found)
    return outputs, outputs.pop("gradients")


def _wrong_ones(pair: Pair, gradients: Mapping[str, Tensor], expected: _Gradients) -> dict[str, Check]:
    """The failed checks of gradients, by name."""
    found = {name: _wrong(pair, name, tensor, expected) for name, tensor in gradients.items()}
    return {name: check for name, check in found.items() if check is not None}


def _wrong(pair: Pair, name: str, got: Tensor, expected: _Gradients) -> Check | None:
    """The failed check of a gradient; None if it is right."""
    results = expected.results(name, got)
    if results is None:
        what = "flows where none does in Model: detach what Model detaches"
        return Check(GRADIENTS, False, reason=f"a gradient of {name} {what}") if got.any() else None
    form = same_form(results.got, results.pytorch)
    if not form.passed:
        return Check(GRADIENTS, False, reason=f"of {name}: {form.reason}")
    comparison = OutputComparison(got.dtype, pair.device, in_parts=False)  # a kink moves all of a channel's
    comparison.add(results)
    products = pair.case.traced.products + pair.case.traced.multiply_adds // max(1, got.numel())
    checks = comparison.checks(f" of the gradient of {name}", products, results.exact is not None)
    failed = [check for check in checks if check.passed is False]
    # Of what cancels out, as a bias before a norm, the rounding is left: not compared with itself. And PyTorch's
    # own may lie on the other side of a kink: where there is float64, nothing need be close to it.
    left_out = ["pooled"] * comparison.is_noise + ["close to PyTorch"] * (results.exact is not None)
    return next((check for check in failed if not check.name.startswith(tuple(left_out))), None)


def _beside(plain: Outcome, exact: tuple[Any, Any], moved: tuple[Any, Any] = (None, None)) -> _Gradients:
    """`Model`'s own gradients, with those in float64 and on moved operands."""
    outputs, gradients = zip(_split(plain.outputs), exact, moved, strict=True)
    return _Gradients(outputs, gradients)


def _moved(
    pair: Pair,
    inputs: list[Any],
    state: dict[str, Tensor],
    way: Way,
    number: int,
    in_float64: bool,
    cut_off: bool = False,
) -> tuple[Any, Any]:
    """Outputs and gradients on operands moved by the draw of this number; None if there are none."""
    options = {"move": pair.rounding([inputs, state]), "move_seed": IN_TRAINING + number, "cut_off": cut_off}
    return _gradients_or_none(pair, inputs, state, way, "float64" if in_float64 else "plain", **options)


def _gradients_or_none(
    pair: Pair, inputs: list[Any], state: dict[str, Tensor], way: Way, mode: str, **options: Any
) -> tuple[Any, Any]:
    try:
        return _split(_backward(pair, inputs, state, way, mode, **options).outputs)
    except (ModelFileError, OutOfMemory):
        return None, None


def _backward(
    pair: Pair, inputs: list[Any], state: dict[str, Tensor], way: Way, mode: str = "", **options: Any
) -> Outcome:
    if mode:
        options["mode"] = mode
    return pair.plain(inputs, state, IN_TRAINING, way.training, gradients=way.of, way=way.other, **options)


def _inference_only(reason: str, training: bool) -> Check:
    """The check of a candidate without gradients. It fails only if training is asked for."""
    remedy = "; --training asks for all that Model has: give what computes the result a backward" if training else ""
    allowed = "Model's gradients"
    return Check(GRADIENTS, False if training else None, INFERENCE_ONLY, allowed, f"{INFERENCE_ONLY}: {reason}{remedy}")
