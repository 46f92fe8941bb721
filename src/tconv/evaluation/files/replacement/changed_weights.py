"""Whether results follow weights that change: by an optimizer's step, a saved state, a copy or a cast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tconv.evaluation.files.process.by_samples import mapped
from tconv.evaluation.files.process.weight_changes import ATTRIBUTES, OTHER_TYPE, WEIGHT_CHANGES, WeightChange, type_of
from tconv.evaluation.files.results.near_ties import NearTies, hangs_on_rounding
from tconv.evaluation.files.results.output_rules import same_outputs
from tconv.evaluation.files.results.state import halved_in_places
from tconv.evaluation.files.sides.file_process import CandidateFailed, CandidateRaised
from tconv.evaluation.files.sides.inputs import IN_EVALUATION, IN_TRAINING
from tconv.evaluation.files.sides.model_and_candidate import HOST, ROUNDING, Pair, near
from tconv.evaluation.tolerance import TF32_OPERANDS
from tconv.evaluation.verdict import Check, Verdict
from tconv.sandbox.exchange import largest_bytes, tensors
from tconv.sandbox.model_file import ModelFileError

WEIGHTS = "weights that change"


@dataclass(frozen=True)
class _Expected:
    """`Model`'s results in evaluation for the inputs, with a state that reached it by a weight change."""

    inputs: list[Any]
    state: dict[str, Tensor]
    outputs: Any
    weight_change: WeightChange | None = None

    @classmethod
    def of(
        cls, pair: Pair, inputs: list[Any], state: dict[str, Tensor], weight_change: WeightChange | None = None
    ) -> _Expected:
        plain = pair.plain(inputs, state, IN_EVALUATION, False, weight_change=weight_change)
        pair.calls.beside(plain)
        return cls(inputs, state, plain.outputs["output"], weight_change)

    def ties(self, pair: Pair) -> NearTies:
        return pair.ties(self.inputs, self.state, IN_EVALUATION, False, weight_change=self.weight_change).of("output")

    def wrong(self, pair: Pair, got: Any) -> str:
        """Says what is wrong with a result of the same form, by the rules for whole models; empty if nothing is."""
        if near(got, self.outputs, TF32_OPERANDS):  # with wrong weights, results are further away
            return ""
        plain = pair.plain(self.inputs, self.state, IN_EVALUATION, False)
        others = pair.finer(plain, self.inputs, self.state, IN_EVALUATION, False)
        comparisons = pair.comparisons()
        exact, rounded = (None if each is None else each["output"] for each in others)
        comparisons.add(got, self.outputs, exact, rounded, self.ties(pair))
        return next(iter(Verdict(tuple(comparisons.checks())).reasons), "")


def check_weights(pair: Pair) -> list[Check]:
    """Whether results follow changed weights. All calls are in evaluation, where prepared weights may be kept."""
    inputs = pair.case.inputs(IN_EVALUATION)
    state = pair.drawn_state(IN_EVALUATION, inputs, False)
    found = _trained(pair, state)
    if isinstance(found, Check):
        return [found]
    trained, tied = found
    state, cast = _castable(state)
    other = halved_in_places(state, trained, IN_EVALUATION)
    # In this state one weight stays: a candidate that watches this weight alone misses the change of the others.
    between = {**other, trained[0]: state[trained[0]]}
    state, other, between = ({name: each[tied.get(name, name)] for name in each} for each in (state, other, between))
    try:
        of_state, of_other = (_Expected.of(pair, inputs, each) for each in (state, other))
    except ModelFileError as error:
        return [Check(WEIGHTS, None, reason=f"not checked: {error}")]
    pair.calls.run(inputs, state, training=False, seed=IN_EVALUATION, on=HOST)
    checks = []
    if len(trained) > 1 and not pair.emulated:
        checks.append(_followed(pair, _Expected.of(pair, inputs, between), between, "step"))
    checks += [
        _followed(pair, of_other, other, "step"),
        _followed(pair, of_other, None, "file"),
        _followed(pair, of_state, state, "copy"),
        _followed(pair, of_other, None, None),
    ]
    if not pair.emulated:
        checks += [*_in_channels_last(pair, of_state), *_after_training(pair, of_state)]
    if cast is not None:
        own = type_of(state)
        checks += [check for each in pair.types if each != own for check in _called_in(pair, of_state, each)]
        checks.append(_followed(pair, of_state, _all_cast(state, cast), "back"))
    return [each for each in checks if not each.passed] or [Check(WEIGHTS, True)]


def _trained(pair: Pair, state: Mapping[str, Tensor]) -> tuple[list[str], dict[str, str]] | Check:
    """The parameters that a step changes, and the first name of each; a check not made if there are none."""
    parameters = pair.model.parameters()
    trained = [each.name for each in parameters if each.requires_grad and each.name == each.first]
    if not trained:
        return Check(WEIGHTS, None, reason="not checked: Model has no parameter that requires a gradient")
    if renamed := [each.name for each in parameters if each.name not in state]:
        return Check(WEIGHTS, None, reason=f"not checked: Model's state has {renamed[0]} under another name")
    return trained, {each.name: each.first for each in parameters}


def check_step(pair: Pair, inputs: list[Any], state: dict[str, Tensor]) -> list[Check]:
    """Whether the next result in evaluation follows an optimizer's step, for a candidate that has this state."""
    found = _trained(pair, state)
    if isinstance(found, Check):
        return [found]
    trained, tied = found
    other = halved_in_places(state, trained, IN_EVALUATION)
    other = {name: other[tied.get(name, name)] for name in other}
    try:
        expected = _Expected.of(pair, inputs, other)
    except ModelFileError as error:
        return [Check(WEIGHTS, None, reason=f"not checked: {error}")]
    return [_followed(pair, expected, other, "step", evaluates=True)]


def check_copies(pair: Pair) -> list[Check]:
    """Whether a deep copy follows its own weights, the original still follows its own, and layers of copies their
    attributes."""
    inputs, state = pair.small if pair.emulated else pair.in_evaluation
    other = halved_in_places(state, list(state), IN_EVALUATION)
    try:
        of_state, of_other = (_Expected.of(pair, inputs, each) for each in (state, other))
    except ModelFileError as error:
        return [Check(WEIGHTS, None, reason=f"not checked: {error}")]
    pair.calls.run(inputs, other, training=False, seed=IN_EVALUATION, on=HOST)
    checks = [_followed(pair, of_state, state, "copy"), _followed(pair, of_other, None, None)]
    return checks + _with_attributes(pair, of_state)


def _with_attributes(pair: Pair, of_state: _Expected) -> list[Check]:
    """Whether layers follow their attributes: all at once; one by one if that fails or if `Model` rejects it."""
    together, *one_by_one = ATTRIBUTES
    checks = []
    for weight_change in (together, *one_by_one):
        with contextlib.suppress(ModelFileError):  # it may not take another size
            expected = _Expected.of(pair, of_state.inputs, of_state.state, weight_change)
            if not near(expected.outputs, of_state.outputs, 0.0):  # the model has such layers
                checks.append(_followed(pair, expected, of_state.state, weight_change))
            if weight_change == together and all(check.passed for check in checks):
                break
    named = [check for check in checks if not check.passed and check.about != WEIGHT_CHANGES[together]]
    return named or checks


def check_cast(pair: Pair) -> list[Check]:
    """Whether the module follows a cast to the first of the pair's types that is not its own. It keeps that type."""
    inputs, state = pair.small
    state, cast = _castable(state)
    types = [each for each in pair.types if cast is not None and each != type_of(state)]
    with contextlib.suppress(ModelFileError):
        return [check for each in types[:1] for check in _called_in(pair, _Expected.of(pair, inputs, state), each)]
    return []


def _called_in(pair: Pair, of_state: _Expected, cast: torch.dtype) -> Iterator[Check]:
    """Whether results follow a cast of the module, if `Model` gives the same results in that type."""
    inputs, state = [_cast(value, cast) for value in of_state.inputs], _all_cast(of_state.state, cast)
    with contextlib.suppress(ModelFileError):  # the device may lack operators of this type
        expected = _Expected.of(pair, inputs, state, "cast")
        if near(expected.outputs, of_state.outputs, ROUNDING):
            yield _followed(pair, expected, state, "cast")
    pair.built(IN_EVALUATION)  # back to its own type


def _in_channels_last(pair: Pair, of_state: _Expected) -> Iterator[Check]:
    """Whether weights in channels_last are read rightly, if `Model` gives the same results with them.

    It may not: random numbers, for example, are drawn in the order of memory.
    """
    try:
        found = _Expected.of(pair, of_state.inputs, of_state.state, "format").outputs
    except ModelFileError:  # deepcopy may refuse the module
        return
    outputs, plainly = (mapped(each, Tensor.contiguous) for each in (found, of_state.outputs))
    if near(outputs, plainly, ROUNDING):
        yield _followed(pair, of_state, of_state.state, "format")


def _after_training(pair: Pair, of_state: _Expected) -> Iterator[Check]:
    """Whether results follow buffers that a call in training writes, like a norm's statistics. No weight changes."""
    inputs, state = of_state.inputs, of_state.state
    try:
        buffers = pair.plain(inputs, state, IN_TRAINING, True).outputs["buffers"]
        left = {**state, **{name: buffer.to(state[name].device) for name, buffer in buffers.items()}}
        expected = _Expected.of(pair, inputs, left)
    except ModelFileError:  # it may run in evaluation alone
        return
    if not near(expected.outputs, of_state.outputs, 0.0):
        pair.calls.run(inputs, state, training=False, seed=IN_EVALUATION, on=HOST)
        try:
            pair.calls.run(inputs, None, training=True, seed=IN_TRAINING, on=HOST)
        except CandidateRaised:  # the part about training judges that
            return
        yield _followed(pair, expected, None, None, evaluates=True)


def _followed(
    pair: Pair,
    expected: _Expected,
    state: dict[str, Tensor] | None,
    weight_change: WeightChange | None,
    evaluates: bool = False,
) -> Check:
    """Whether the result is right after the state reached the candidate by this change, or for the state that it has.

    Args:
        evaluates: whether the last call was in training.
    """
    words = "other weights in a deep copy" if weight_change is None else WEIGHT_CHANGES[weight_change]
    words = "a call in training that changes buffers" if evaluates and weight_change is None else words
    allowed = TF32_OPERANDS
    if weight_change == "cast" and state is not None:
        cast = type_of(state)
        words += f", {cast}"
        allowed = allowed if cast == torch.float64 else ROUNDING
    size = largest_bytes(expected.outputs)
    try:
        options = {"seed": IN_EVALUATION, "output_bytes": size, "on": HOST, "weight_change": weight_change}
        options |= {"training": False} if evaluates else {}
        got, outputs = pair.calls.run(expected.inputs, state, **options).outputs, expected.outputs
        got = got["output"] if evaluates else got
    except CandidateRaised as error:
        # Nobody takes an error for a result. But every model must bear optimizers and saved states.
        loud = weight_change in ("copy", "cast", "format", *ATTRIBUTES)
        told = str(error) if f"(in {words})" in str(error) else f"after {words}, {error}"
        return Check(WEIGHTS, None if loud else False, reason="not checked: " * loud + told, about=words)
    except CandidateFailed as failure:
        raise CandidateFailed(f"after {words}, {failure}") from None
    if weight_change == "cast" and state is not None:
        # Whether it follows is asked, and neither what type it gives nor how fine its arithmetic is there.
        got, outputs = (mapped(each, _floats_wide) for each in (got, outputs))
    if weight_change == "format":  # in which memory format a result is asked where the model is as it was built
        got, outputs = (mapped(each, Tensor.contiguous) for each in (got, outputs))
    form = expected.ties(pair).form(same_outputs(got, outputs, numbers=allowed), outputs)
    if hangs_on_rounding(form):
        return Check(WEIGHTS, None, reason=form.reason, about=words)
    if not form.passed:
        wrong = form.reason
    elif weight_change == "cast" or weight_change in ATTRIBUTES:
        # 16-bit results, as of autocast, are rounded in each layer.
        floats = (tensor for _, tensor in tensors(outputs) if tensor.is_floating_point())
        allowed = max([allowed, *(2 * torch.finfo(tensor.dtype).eps for tensor in floats)])
        wrong = "" if near(got, outputs, allowed) else f"further than a relative {allowed:.1g} from Model's"
    else:
        wrong = expected.wrong(pair, got)
    remedy = "take them from the module's parameters in each call"
    if weight_change == "cast":
        remedy = "compute in the type of what is given, or raise an error"
    elif weight_change in ATTRIBUTES:
        remedy = "read a layer's attributes in each call, or raise an error"
    what = f"the result is not that of the weights it has: {remedy}"
    return Check(WEIGHTS, not wrong, reason=f"after {words} {what}; {wrong}" if wrong else "", about=words)


def _castable(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], torch.dtype | None]:
    """The state in numbers that another type also has, and this type; None if there is no type to cast to."""
    types = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    cast = OTHER_TYPE.get(types.pop()) if len(types) == 1 else None
    if cast is None:
        return state, None
    there_and_back = {name: _cast(each, cast).to(each.dtype) for name, each in state.items()}
    finite = all(torch.equal(each.isfinite(), state[name].isfinite()) for name, each in there_and_back.items())
    return (there_and_back, cast) if finite else (state, None)


def _all_cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: _cast(tensor, dtype) for name, tensor in state.items()}


def _floats_wide(tensor: Tensor) -> Tensor:
    """Floating-point numbers in float64; zeros for integers, such as indices of maxima, which depend on the type."""
    return tensor.double() if tensor.is_floating_point() else torch.zeros_like(tensor)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return mapped(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
