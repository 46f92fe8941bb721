"""What a replacement must still do beside its result: gradients, and results that follow weights as they change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tconv.errors import OutOfMemory
from tconv.evaluation.files import infinite_values, other_inputs
from tconv.evaluation.files.calls import Calls
from tconv.evaluation.files.case import (
    HOST,
    MODEL_DRAWS,
    ROUNDING,
    SEED,
    Case,
    Comparisons,
    drawn_state,
    finer,
    near,
    outcome_of,
    plain_of,
)
from tconv.evaluation.files.routes import OTHER_TYPE, ROUTES, Route, type_of
from tconv.evaluation.files.samples import mapped
from tconv.evaluation.files.side import CandidateFailed, CandidateRaised, Outcome, Side
from tconv.evaluation.files.weights import halved_in_places, randomised
from tconv.evaluation.files.whole_model import OutputComparison, Results, same_outputs
from tconv.evaluation.precision import Wanted
from tconv.evaluation.rules import same_form
from tconv.evaluation.tolerance import TF32_OPERANDS
from tconv.evaluation.verdict import GRADIENTS, INFERENCE_ONLY, Check, Verdict
from tconv.precision import of_kind
from tconv.problem import TF32
from tconv.sandbox.exchange import tensors
from tconv.sandbox.model_file import ModelFileError

_WEIGHTS, _ENABLED = "weights that change", "with gradients enabled"
#: Other ways to gradients: what is frozen there, and how they are told.
_OTHER_WAYS = {
    "last": "of the last output alone, by a second backward(), after another call, the last weight frozen",
    "first": "in evaluation, of the first output alone, after another call, the first weight frozen",
    "all": "in evaluation, of the first output alone, after another call, all parameters frozen",
}
#: Seeds of the draws in evaluation and in training.
_IN_EVALUATION, _IN_TRAINING = SEED + MODEL_DRAWS - 2, SEED + MODEL_DRAWS - 1
#: Operands are moved by so many units in the last place of float32: further than the sums of a layer round.
_MOVED_UNITS = 16
#: Draws of that for gradients that are further off than what one draw makes of them: it may have met no kink.
_MOVED_DRAWS = 12


@dataclass(frozen=True)
class _Bench:
    """Both sides of the comparison, on one case."""

    case: Case
    model: Side
    calls: Calls
    wanted: Wanted
    device: torch.device
    types: Sequence[torch.dtype]
    emulated: bool


def check_replacement(
    case: Case,
    model: Side,
    open_candidate: Callable[[], Side],
    wanted: Wanted,
    device: torch.device,
    *,
    training: bool,
    types: Sequence[torch.dtype],
    emulated: bool,
) -> list[Check]:
    """Put a candidate whose results are equal to the rules for weights that change and for gradients.

    Args:
        training: a candidate without gradients fails.
        types: it is also called in those of them that are not its own.
        emulated: its kernels run in the emulator.

    Raises:
        ModelFileError: when `Model` fails where it ran before.
    """
    try:
        with open_candidate() as candidate:
            candidate.construct(SEED, case.arguments)
            bench = _Bench(case, model, Calls(candidate), wanted, device, types, emulated)
            checks: list[Check] = []
            for name, part in (
                (_WEIGHTS, _weights),
                (other_inputs.NAME, _other_inputs),
                (infinite_values.NAME, _infinite_values),
                (GRADIENTS, partial(_gradients, training=training)),
            ):
                try:
                    checks += part(bench)
                except OutOfMemory as error:  # gradients take more than what was judged so far
                    checks.append(Check(name, None, reason=f"not checked: {error}"))
            return [*checks, *(check for check in bench.calls.checks() if check.passed is False)]
    except CandidateFailed as failure:
        return [Check("runs", False, reason=str(failure))]


def _other_inputs(bench: _Bench) -> list[Check]:
    return other_inputs.check_other_inputs(
        bench.case, bench.model, bench.calls, bench.wanted, bench.device, _IN_EVALUATION, emulated=bench.emulated
    )


def _infinite_values(bench: _Bench) -> list[Check]:
    return infinite_values.check_infinite_values(
        bench.case, bench.model, bench.calls, bench.wanted, _IN_EVALUATION, emulated=bench.emulated
    )


# ---- weights that change


@dataclass(frozen=True)
class _Expected:
    """What `Model` gives in evaluation for the inputs with that state."""

    inputs: list[Any]
    state: dict[str, Tensor]
    outputs: Any

    @classmethod
    def of(cls, bench: _Bench, inputs: list[Any], state: dict[str, Tensor], route: Route | None = None) -> _Expected:
        plain = plain_of(bench.model, inputs, state, _IN_EVALUATION, bench.wanted, False, route)
        bench.calls.beside(plain)
        return cls(inputs, state, plain.outputs["output"])

    def wrong(self, bench: _Bench, got: Any) -> str:
        """What is wrong with a result of the same form, by the rules for whole models; empty if nothing is."""
        if near(got, self.outputs, TF32_OPERANDS):  # weights that are not the right ones are further away
            return ""
        plain = plain_of(bench.model, self.inputs, self.state, _IN_EVALUATION, bench.wanted, False)
        others = finer(bench.case, bench.model, plain, self.inputs, self.state, _IN_EVALUATION, bench.wanted, False)
        exact, rounded = (None if each is None else each["output"] for each in others)
        comparisons = Comparisons(bench.device, bench.case.coarsest)
        comparisons.add(got, self.outputs, exact, rounded)
        return next(iter(Verdict(tuple(outcome_of(bench.case, comparisons, exact is not None))).reasons), "")


def _weights(bench: _Bench) -> list[Check]:
    """In evaluation, where what is prepared of weights is kept if anywhere, and without a change of the mode."""
    case, model = bench.case, bench.model
    inputs = case.inputs(_IN_EVALUATION)
    state = drawn_state(case, model, _IN_EVALUATION, inputs, bench.wanted, False)
    tied = {each.name: each.first for each in model.parameters()}
    trained = [each.name for each in model.parameters() if each.requires_grad and each.name == each.first]
    if not trained:
        return [Check(_WEIGHTS, None, reason="not checked: Model has no parameter that requires a gradient")]
    state, cast = _castable(state)
    other = halved_in_places(state, trained, _IN_EVALUATION)
    # Who looks at one weight alone to see whether any has changed does not see the others' change, or that of this one.
    between = {**other, trained[0]: state[trained[0]]}
    state, other, between = ({name: each[tied.get(name, name)] for name in each} for each in (state, other, between))
    try:
        of_state, of_other = (_Expected.of(bench, inputs, each) for each in (state, other))
    except ModelFileError as error:
        return [Check(_WEIGHTS, None, reason=f"not checked: {error}")]
    bench.calls.run(inputs, state, training=False, seed=_IN_EVALUATION, on=HOST)
    checks = []
    if len(trained) > 1 and not bench.emulated:
        checks.append(_followed(bench, _Expected.of(bench, inputs, between), between, "step"))
    checks += [
        _followed(bench, of_other, other, "step"),
        _followed(bench, of_other, None, "file"),
        _followed(bench, of_state, state, "copy"),
        _followed(bench, of_other, None, None),
    ]
    if not bench.emulated:
        checks += _in_channels_last(bench, of_state)
    if cast is not None:
        own = type_of(state)
        checks += [check for each in bench.types if each != own for check in _called_in(bench, of_state, each)]
        checks.append(_followed(bench, of_state, _all_cast(state, cast), "back"))
    return [each for each in checks if not each.passed] or [Check(_WEIGHTS, True)]


def _called_in(bench: _Bench, of_state: _Expected, cast: torch.dtype) -> Iterator[Check]:
    """Whether a module that is cast is followed, where `Model` gives the same in that type."""
    inputs, state = [_cast(value, cast) for value in of_state.inputs], _all_cast(of_state.state, cast)
    with contextlib.suppress(ModelFileError):  # it may have no such operators here
        expected = _Expected.of(bench, inputs, state, "cast")
        if near(expected.outputs, of_state.outputs, ROUNDING):
            yield _followed(bench, expected, state, "cast")
    bench.model.construct(_IN_EVALUATION, bench.case.arguments)


def _in_channels_last(bench: _Bench, of_state: _Expected) -> Iterator[Check]:
    """Whether weights in another memory format are read rightly, where `Model` gives the same with them.

    Random numbers, say, are drawn in the order of memory.
    """
    with contextlib.suppress(ModelFileError):
        found = _Expected.of(bench, of_state.inputs, of_state.state, "format").outputs
        outputs, plainly = (mapped(each, Tensor.contiguous) for each in (found, of_state.outputs))
        if near(outputs, plainly, ROUNDING):
            yield _followed(bench, of_state, of_state.state, "format")


def _followed(bench: _Bench, expected: _Expected, state: dict[str, Tensor] | None, route: Route | None) -> Check:
    """Whether the result is that of the state which reaches the candidate by the route, or which it has."""
    words = "other weights in a deep copy" if route is None else ROUTES[route]
    allowed = TF32_OPERANDS
    if route == "cast" and state is not None:
        cast = type_of(state)
        words += f", {cast}"
        allowed = allowed if cast == torch.float64 else ROUNDING
    size = max(tensor.numel() * tensor.element_size() for _, tensor in tensors(expected.outputs))
    try:
        options = {"seed": _IN_EVALUATION, "output_bytes": size, "on": HOST, "route": route}
        got, outputs = bench.calls.run(expected.inputs, state, **options).outputs, expected.outputs
    except CandidateRaised as error:
        # Nobody takes that for a result; but of optimizers and saved states there is no doing without.
        loud = route in ("copy", "cast", "format")
        return Check(_WEIGHTS, None if loud else False, reason=f"{'not checked: ' * loud}after {words}, {error}")
    except CandidateFailed as failure:
        raise CandidateFailed(f"after {words}, {failure}") from None
    if route == "cast" and state is not None:
        # Whether it follows is asked, and neither what type it gives nor how fine its arithmetic is there.
        got, outputs = _cast(got, torch.float64), _cast(outputs, torch.float64)
    if route == "format":  # in which memory format a result is asked where the model is as it was built
        got, outputs = (mapped(each, Tensor.contiguous) for each in (got, outputs))
    form = same_outputs(got, outputs, numbers=allowed)
    if not form.passed:
        wrong = form.reason
    elif route == "cast":
        wrong = "" if near(got, outputs, allowed) else f"further than a relative {allowed:.1g} from Model's"
    else:
        wrong = expected.wrong(bench, got)
    remedy = "take them from the module's parameters in each call"
    if route == "cast":
        remedy = "compute in the type of what is given, or raise an error"
    what = f"the result is not that of the weights it has: {remedy}"
    return Check(_WEIGHTS, not wrong, reason=f"after {words} {what}; {wrong}" if wrong else "")


def _castable(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], torch.dtype | None]:
    """The state in numbers that another type has as well, and that type; None where there is none to cast it to."""
    types = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    cast = OTHER_TYPE.get(types.pop()) if len(types) == 1 else None
    if cast is None:
        return state, None
    there_and_back = {name: _cast(each, cast).to(each.dtype) for name, each in state.items()}
    finite = all(torch.equal(each.isfinite(), state[name].isfinite()) for name, each in there_and_back.items())
    return (there_and_back, cast) if finite else (state, None)


def _all_cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: _cast(tensor, dtype) for name, tensor in state.items()}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return mapped(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


# ---- gradients


@dataclass(frozen=True)
class _Way:
    """How `Model`'s gradients are taken: in training or in evaluation, of parameters and inputs or of those alone.

    Args:
        freezing: one of `_OTHER_WAYS`.
    """

    training: bool
    of: str
    freezing: str = ""


#: In the order in which they are tried: a model may change its inputs, or not train.
_WAYS = tuple(_Way(training, of) for training in (True, False) for of in ("parameters and inputs", "parameters"))


@dataclass(frozen=True)
class _Gradients:
    """What `Model` gives with gradients enabled: as it is, in float64, and with moved operands; None if it cannot.

    Args:
        outputs: with buffers.
        gradients: by the names of parameters and inputs; None where none flows.
    """

    outputs: tuple[Any, Any, Any]
    gradients: tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]

    def farther(self, gradients: Mapping[str, Any] | None) -> _Gradients:
        """The same with moved operands that moved each element of a gradient further, of these and the others."""
        own, exact, moved = self.gradients
        if gradients is None or moved is None:
            return self
        of = own if exact is None else exact
        found = {name: _farther(of.get(name), tensor, gradients.get(name)) for name, tensor in moved.items()}
        return replace(self, gradients=(own, exact, found))

    def results(self, name: str, got: Tensor) -> Results | None:
        """One gradient beside these; None where `Model` has none."""
        pytorch, *others = (None if each is None else each.get(name) for each in self.gradients)
        return None if pytorch is None else Results(got.contiguous(), pytorch.contiguous(), *others)


def _farther(of: Tensor | None, one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Of each element the one further from that of the first; None where one is missing."""
    if of is None or one is None or other is None:
        return one
    return torch.where((one - of).abs() >= (other - of).abs(), one, other)


def _gradients(bench: _Bench, training: bool) -> list[Check]:
    case, model = bench.case, bench.model
    state = randomised(model.construct(_IN_TRAINING, case.arguments), _IN_TRAINING)
    inputs = case.inputs(_IN_TRAINING)
    stopped = ""
    for way in _WAYS:
        try:
            plain = _backward(bench, inputs, state, way)
        except ModelFileError as error:
            stopped = str(error)
            continue
        stopped = plain.stopped
        if not stopped:
            break
    if stopped:
        return [Check(GRADIENTS, None, reason=f"not checked, Model has none: {stopped}")]
    checks = _on_a_way(bench, inputs, state, way, plain, training)
    if all(check.passed for check in checks):
        found: dict[str, list[Check]] = {}
        inputs = other_inputs.small_inputs(case, model, _IN_TRAINING, bench.emulated)
        for which in _OTHER_WAYS:
            if which == "all" and way.of == "parameters":
                continue
            other = _Way(way.training and which == "last", "parameters" if which == "last" else way.of, which)
            with contextlib.suppress(ModelFileError):  # it may run in training alone
                plain = _backward(bench, inputs, state, other)
                if not plain.stopped:
                    found[which] = _on_a_way(bench, inputs, state, other, plain, training)
        # Where none flows in evaluation it is inference only there; not where one does while another weight is frozen.
        flows = any(check.passed for of_way in found.values() for check in of_way)
        checks += [
            replace(
                check,
                passed=False if flows else check.passed,
                reason=f"{_OTHER_WAYS[which]}: {check.reason}",
            )
            for which, of_way in found.items()
            for check in of_way
            if not check.passed
        ]
    return [check for check in checks if not check.passed] or checks[:1]


def _on_a_way(
    bench: _Bench, inputs: list[Any], state: dict[str, Tensor], way: _Way, plain: Outcome, training: bool
) -> list[Check]:
    """The rules for gradients that are taken so, beside those of `Model`."""
    bench.calls.beside(plain)
    expected = _with_others(bench, inputs, state, way, plain)
    size = max(tensor.numel() * tensor.element_size() for _, tensor in tensors(plain.outputs))
    try:
        options = {
            "training": way.training,
            "gradients": way.of,
            "freezing": way.freezing,
            "seed": _IN_TRAINING,
        }
        got = bench.calls.run(inputs, state, output_bytes=size, on=HOST, **options)
    except CandidateRaised as error:
        return [_inference_only(f"with gradients enabled, {error}", training)]
    return _compared(bench, inputs, state, way, got, expected, training)


def _compared(
    bench: _Bench,
    inputs: list[Any],
    state: dict[str, Tensor],
    way: _Way,
    got: Outcome,
    expected: _Gradients,
    training: bool,
) -> list[Check]:
    outputs, gradients = _split(got.outputs)
    form = same_outputs(outputs, expected.outputs[0])
    if not form.passed:
        return [replace(form, name=f"{form.name}, {_ENABLED}", reason=f"{_ENABLED}: {form.reason}")]
    comparisons = Comparisons(bench.device, bench.case.coarsest)
    comparisons.add(outputs, *expected.outputs)
    in_float64 = expected.outputs[1] is not None
    of_outputs = outcome_of(bench.case, comparisons, in_float64, _ENABLED)
    checks = [check for check in of_outputs if check.passed is False]
    flowing = {name: tensor for name, tensor in gradients.items() if isinstance(tensor, Tensor)}
    models = {name: tensor for name, tensor in expected.gradients[0].items() if tensor is not None and tensor.any()}
    missing = [name for name in models if name not in flowing]
    wrong = _wrong_ones(bench, flowing, expected)
    if wrong and missing:
        # Behind a kernel without gradients others are what they are without it.
        plain = _backward(bench, inputs, state, way, cut_off=True)
        cut = _with_others(bench, inputs, state, way, plain, cut_off=True)
        wrong_there = _wrong_ones(bench, {name: flowing[name] for name in wrong}, cut)
        wrong = {name: check for name, check in wrong.items() if name in wrong_there}
    for number in range(1, _MOVED_DRAWS):
        if not wrong:
            break
        expected = expected.farther(_moved(bench, inputs, state, way, number, expected.gradients[1] is not None)[1])
        wrong = _wrong_ones(bench, {name: flowing[name] for name in wrong}, expected)
    checks += wrong.values()
    if missing:
        to = "no gradient flows" if not flowing else f"no gradient flows to {', '.join(missing)}"
        if way.freezing and flowing:  # all do on the other way
            return [*checks, Check(GRADIENTS, False, reason=to)]
        return [*checks, _inference_only("; ".join(filter(None, [to, got.stopped])), training)]
    return checks or [Check(GRADIENTS, True)]


def _split(found: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs with the buffers, and the gradients."""
    outputs = dict(found)
    return outputs, outputs.pop("gradients")


def _wrong_ones(bench: _Bench, gradients: Mapping[str, Tensor], expected: _Gradients) -> dict[str, Check]:
    """What is wrong with each gradient of which something is."""
    found = {name: _wrong(bench, name, tensor, expected) for name, tensor in gradients.items()}
    return {name: check for name, check in found.items() if check is not None}


def _wrong(bench: _Bench, name: str, got: Tensor, expected: _Gradients) -> Check | None:
    """What is wrong with a gradient; None if nothing is."""
    results = expected.results(name, got)
    if results is None:
        what = "flows where none does in Model: detach what Model detaches"
        return Check(GRADIENTS, False, reason=f"a gradient of {name} {what}") if got.any() else None
    form = same_form(results.got, results.pytorch)
    if not form.passed:
        return Check(GRADIENTS, False, reason=f"of {name}: {form.reason}")
    comparison = OutputComparison(got.dtype, bench.device)
    comparison.add(results)
    products = bench.case.traced.products + bench.case.traced.multiply_adds // max(1, got.numel())
    checks = comparison.checks(f" of the gradient of {name}", products, results.exact is not None)
    failed = [check for check in checks if check.passed is False]
    # A kink moves all of a channel's gradient. And of what cancels out, as a bias before a norm, the rounding is left:
    # that is not compared with itself.
    apart = ("parts", "pooled") if comparison.is_noise else ("parts",)
    return next((check for check in failed if not check.name.startswith(apart)), None)


def _with_others(
    bench: _Bench, inputs: list[Any], state: dict[str, Tensor], way: _Way, plain: Outcome, cut_off: bool = False
) -> _Gradients:
    """Beside `Model`'s own gradients those in float64, and with moved operands."""

    exact = _gradients_or_none(bench, inputs, state, way, "float64", cut_off=cut_off)
    moved = _moved(bench, inputs, state, way, 0, exact[0] is not None, cut_off)
    outputs, gradients = zip(_split(plain.outputs), exact, moved, strict=True)
    return _Gradients(outputs, gradients)


def _moved(
    bench: _Bench,
    inputs: list[Any],
    state: dict[str, Tensor],
    way: _Way,
    number: int,
    in_float64: bool,
    cut_off: bool = False,
) -> tuple[Any, Any]:
    """Outputs and gradients of operands that are moved, as the draw of that number does; None if there are none."""
    options = {"move": _move(bench, [inputs, state]), "move_seed": _IN_TRAINING + number, "cut_off": cut_off}
    return _gradients_or_none(bench, inputs, state, way, "float64" if in_float64 else "plain", **options)


def _gradients_or_none(
    bench: _Bench, inputs: list[Any], state: dict[str, Tensor], way: _Way, mode: str, **options: Any
) -> tuple[Any, Any]:
    try:
        return _split(_backward(bench, inputs, state, way, mode, **options).outputs)
    except (ModelFileError, OutOfMemory):
        return None, None


def _backward(
    bench: _Bench, inputs: list[Any], state: dict[str, Tensor], way: _Way, mode: str = "", **options: Any
) -> Outcome:
    options = {"mode": mode or ("fp32" if bench.wanted == "fp32" else "plain"), **options}
    options |= {"training": way.training, "gradients": way.of, "freezing": way.freezing}
    return bench.model.forward(inputs, state, seed=_IN_TRAINING, on=HOST, **options)


def _move(bench: _Bench, values: Any) -> float:
    """The part by which operands are moved: what their types, and TF32 where it is allowed, may round them by."""
    narrowest = max(torch.finfo(each.dtype).eps for _, each in tensors(values) if each.is_floating_point())
    if narrowest > torch.finfo(torch.float32).eps:
        return narrowest
    problems = [problem for problem in bench.case.full.problems if problem is not None]
    rounded = bench.wanted == "tf32" or (bench.wanted == "match" and any(of_kind(each) in TF32 for each in problems))
    return TF32_OPERANDS / 2 if rounded and narrowest > torch.finfo(torch.float64).eps else _MOVED_UNITS * narrowest


def _inference_only(reason: str, training: bool) -> Check:
    """No fault, unless training is asked for."""
    remedy = "; --training asks for all that Model has: give what computes the result a backward" if training else ""
    allowed = "Model's gradients"
    return Check(GRADIENTS, False if training else None, INFERENCE_ONLY, allowed, f"{INFERENCE_ONLY}: {reason}{remedy}")
