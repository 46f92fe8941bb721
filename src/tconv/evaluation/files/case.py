"""One set of constructor arguments: `ModelNew` beside `Model`, by the layer's rules or by those for whole models."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tconv.evaluation.comparison import Comparison
from tconv.evaluation.equality import Candidate, check_layer, further_draws
from tconv.evaluation.files.bench import Timed, TimedOutputs
from tconv.evaluation.files.calls import Calls, same_values_of
from tconv.evaluation.files.routes import Route
from tconv.evaluation.files.samples import some_samples
from tconv.evaluation.files.side import Arguments, CandidateFailed, OneLayer, Outcome, Side, Traced
from tconv.evaluation.files.weights import check_parameters, check_state, randomised
from tconv.evaluation.files.whole_model import OutputComparison, Results, distance, same_outputs
from tconv.evaluation.precision import Wanted, arithmetic, resolve
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.rules import all_written, close_to_pytorch, every_element, pooled, same_form
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Check, Verdict
from tconv.precision import of_kind
from tconv.problem import TF32, Precision, Problem
from tconv.sandbox.exchange import tensors
from tconv.sandbox.model_file import ModelFileError

#: Seeds the construction on both sides and the first inputs.
SEED = 0
#: Draws of inputs and weights: for one layer, and for a model of more as it is built. Then come one in evaluation and
#: one in training, in a state that is not as built.
_LAYER_DRAWS = 5
BUILT_DRAWS = 2
MODEL_DRAWS = BUILT_DRAWS + 2
_MODES = {"in evaluation": False, "in training": True}
#: Around the name of a buffer that is returned beside outputs.
_BUFFER, _END = "['buffers']['", "']"
_OWN_INPUTS = "own inputs"
_DRAWN = "one of the calls that were timed, drawn at random, is wrong"
#: Relative distances up to this one may be rounding, in whatever type; another result is further away.
ROUNDING = 0.1
HOST = torch.device("cpu")
#: A state is taken whose results are numbers in more than this share.
_NUMBERS = 0.5
#: Samples of the awkward inputs, each of which passes through files.
_AWKWARD_BATCH = 2


@dataclass(frozen=True)
class Case:
    """Constructor arguments with inputs for them.

    Args:
        inputs: makes the inputs for a seed, on the host, at the sizes that are judged. Of large ones, those for later
            seeds have fewer samples.
        traced: what `Model` runs at those sizes.
        full: what it runs at the sizes of its own inputs, which decide the arithmetic that PyTorch takes.
        thorough: all draws and the awkward inputs; else one draw.
    """

    arguments: Arguments
    inputs: Callable[[int], list[Any]]
    traced: Traced
    full: Traced
    thorough: bool = True

    @property
    def coarsest(self) -> torch.dtype:
        """The coarsest type that a transposed convolution of the model computes in."""
        problems = (problem for problem in self.traced.problems if problem is not None)
        return _coarser(torch.float64, *(getattr(torch, problem.layer.dtype) for problem in problems))


def check_case(
    case: Case, model: Side, open_candidate: Callable[[], Side], wanted: Wanted, device: torch.device
) -> Verdict:
    """Build both sides with the case's arguments and compare them. `model` may be in any state before and after.

    Raises:
        ModelFileError: when `Model` fails. What the candidate does wrong is part of the verdict.
    """
    expected, parameters = model.construct(SEED, case.arguments), model.parameters()
    checks: list[Check] = []
    operators: tuple[str, ...] = ()
    try:
        with open_candidate() as candidate:
            checks += check_state(candidate.construct(SEED, case.arguments), expected)
            if all(check.passed for check in checks):
                checks.append(check_parameters(candidate.parameters(), parameters))
            if all(check.passed for check in checks):
                # A layer that forward makes has no weights to draw before it ran.
                alone = case.traced.layer is not None and case.traced.layer.weight in expected
                if alone and case.traced.layer is not None and case.full.layer is not None:
                    precision = resolve(case.full.layer.problem, wanted, device=device)
                    checks += _layer(case, case.traced.layer, model, candidate, expected, wanted, precision, device)
                else:
                    checks += _model(case, model, candidate, wanted, device)
                # What cannot be seen, as in a program that refuses to run under a recorder, is no fault.
                if case.thorough:
                    with contextlib.suppress(CandidateFailed):
                        operators = candidate.operators()
    except CandidateFailed as failure:
        checks.append(Check("runs", False, reason=str(failure)))
    return Verdict(tuple(checks), operators)


def _layer(
    case: Case,
    layer: OneLayer,
    model: Side,
    candidate: Side,
    state: dict[str, Tensor],
    wanted: Wanted,
    precision: Precision,
    device: torch.device,
) -> list[Check]:
    """The rules of `check_layer`, and rule 2 on the model file's own inputs and first weights."""
    problem = layer.problem
    calls = Calls(candidate)
    seeds = itertools.count(SEED)

    def call(x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        given = {**state, layer.weight: weight}
        if layer.bias is not None and bias is not None:
            given[layer.bias] = bias
        output_bytes = x.shape[0] * math.prod(problem.output_shape[1:]) * problem.layer.item_bytes
        # Another seed each time: one layer has nothing random in it.
        return calls.forward([x], given, seed=next(seeds), output_bytes=output_bytes)

    own = Operands(
        case.inputs(SEED)[0].to(device), state[layer.weight], None if layer.bias is None else state[layer.bias]
    )
    judged = partial(
        check_layer,
        call,
        problem,
        "tf32" if precision in TF32 else "fp32",
        device=device,
        draw_count=_LAYER_DRAWS if case.thorough else 1,
        awkward=case.thorough,
        awkward_batch=_AWKWARD_BATCH,
        reach="phases",
    )
    if further_draws(problem).batch < problem.batch:
        # Every run of such inputs takes seconds: they are the first draw.
        checks = judged(first=own).checks
    else:
        on_own = _own_inputs(call, own, problem, precision)
        checks = (on_own, *judged().checks) if on_own.name == _OWN_INPUTS else (on_own,)
    in_modes = _in_modes(case, model, calls, wanted, device) if case.thorough and Verdict(tuple(checks)).equal else []
    return _with_calls([*(check for check in checks if check.name != "inputs unchanged"), *in_modes], calls)


def _own_inputs(call: Candidate, own: Operands, problem: Problem, precision: Precision) -> Check:
    """Rule 2 on the model file's own inputs and first weights, or rule 1 where it is not kept there."""
    got = call(*own)
    with arithmetic(precision):
        expected = conv_transpose(*own, problem)
    form = same_form(got, expected)
    if not form.passed:
        return form
    comparison = Comparison(Tolerance.of(problem.layer, precision))
    comparison.add(got, expected, own, problem)
    return every_element(comparison, _OWN_INPUTS)


def _model(case: Case, model: Side, candidate: Side, wanted: Wanted, device: torch.device) -> list[Check]:
    """The rules of `whole_model`, over draws of inputs and of freshly built weights.

    Outputs stay in the host's memory, but for the pieces that are compared: the two programs need the GPU's.
    """
    comparisons = Comparisons(device, case.coarsest)
    form = again = Check("", None)
    calls = Calls(candidate)
    in_float64 = True
    for seed in range(SEED, SEED + (BUILT_DRAWS if case.thorough else 1)):
        state = model.construct(seed, case.arguments)
        inputs = case.inputs(seed)
        plain = plain_of(model, inputs, state, seed, wanted)
        calls.beside(plain)
        pytorch = plain.outputs
        size = max(tensor.numel() * tensor.element_size() for _, tensor in tensors(pytorch))
        got = calls.forward(inputs, state, seed=seed, output_bytes=size, on=HOST)
        form = same_outputs(got, pytorch)
        if not form.passed:
            return _with_calls([form], calls)
        if seed == SEED:
            repeats = _called_again(model, inputs, state, pytorch, wanted)
            again = _same_bits(got, calls.forward(inputs, state, seed=seed, output_bytes=size, on=HOST))
            if not (again.passed or repeats):
                again = replace(again, passed=None, reason="not required: PyTorch's own runs differ, too")
        exact, rounded = finer(case, model, plain, inputs, state, seed, wanted)
        in_float64 = in_float64 and exact is not None
        comparisons.add(got, pytorch, exact, rounded)
    checks = [form, again, *outcome_of(case, comparisons, in_float64)]
    if case.thorough and Verdict(tuple(checks)).equal:
        checks += _in_modes(case, model, calls, wanted, device)
    return _with_calls(checks, calls)


def _called_again(model: Side, inputs: list[Any], state: dict[str, Tensor], outputs: Any, wanted: Wanted) -> bool:
    """Whether `Model` gives the same bits when it is called once more.

    Raises:
        ModelFileError: it gives something else, which nothing can be compared with.
    """
    try:
        again = plain_of(model, inputs, state, SEED, wanted).outputs
    except ModelFileError:  # the first call may have made layers, which the state has not
        return True
    if same_outputs(again, outputs).passed:
        if _same_bits(again, outputs).passed:
            return True
        if near(again, outputs, ROUNDING):
            return False
    what = "called twice on the same inputs, with the same state and seed, Model gives two results"
    remedy = "what it keeps between calls belongs into a buffer, and random numbers come from torch's generator"
    raise ModelFileError(f"{what}: {remedy}")


def drawn_state(
    case: Case, model: Side, seed: int, inputs: list[Any], wanted: Wanted, training: bool
) -> dict[str, Tensor]:
    """A state that is not as built, its parameters of either sign where `Model` gives numbers for such in that mode."""
    built = model.construct(seed, case.arguments)
    state = randomised(built, seed)
    other = randomised(built, seed, [each.name for each in model.parameters()])
    if any(not torch.equal(other[name], state[name]) for name in state if state[name].isfinite().all()):
        with contextlib.suppress(ModelFileError):
            outputs = plain_of(model, inputs, other, seed, wanted, training).outputs["output"]
            if all(float(tensor.isfinite().double().mean()) > _NUMBERS for _, tensor in tensors(outputs)):
                return other
    return state


def _in_modes(case: Case, model: Side, calls: Calls, wanted: Wanted, device: torch.device) -> list[Check]:
    """The same in evaluation and in training, each in a state that is not as built; buffers count as outputs.

    Another training call follows in the state that the first one leaves, of fewer samples where `Model` takes them.
    """
    checks: list[Check] = []
    for seed, (mode, training) in enumerate(_MODES.items(), SEED + BUILT_DRAWS):
        inputs = case.inputs(seed)
        if training:
            state = drawn_state(case, model, seed, inputs, wanted, training)
        else:
            state = randomised(model.construct(seed, case.arguments), seed)
        try:
            found, buffers = _in_mode(case, model, calls, wanted, device, seed, inputs, state, mode, training)
        except ModelFileError as error:
            checks.append(Check(mode, None, reason=f"not checked: {error}"))
            continue
        checks += found
        if training and Verdict(tuple(found)).equal:
            state |= buffers
            words = f"a second call {mode}"
            for again in filter(None, (some_samples(inputs, slice(-1)), inputs)):
                with contextlib.suppress(ModelFileError):  # it may take one batch alone
                    checks += _in_mode(case, model, calls, wanted, device, seed, again, state, words, training)[0]
                    break
    return checks


def _in_mode(
    case: Case,
    model: Side,
    calls: Calls,
    wanted: Wanted,
    device: torch.device,
    seed: int,
    inputs: list[Any],
    state: dict[str, Tensor],
    mode: str,
    training: bool,
) -> tuple[list[Check], dict[str, Tensor]]:
    """The rules on one call in a mode, and `Model`'s buffers behind it."""
    plain = plain_of(model, inputs, state, seed, wanted, training)
    calls.beside(plain)
    size = max(tensor.numel() * tensor.element_size() for _, tensor in tensors(plain.outputs))
    got = calls.forward(inputs, state, seed=seed, output_bytes=size, on=HOST, training=training)
    form = same_outputs(got, plain.outputs)
    buffers = {name: tensor.to(state[name].device) for name, tensor in plain.outputs["buffers"].items()}
    if not form.passed:
        return [replace(form, name=f"{form.name}, {mode}", reason=f"{mode}: {form.reason}")], buffers
    comparisons = Comparisons(device, case.coarsest)
    exact, rounded = finer(case, model, plain, inputs, state, seed, wanted, training)
    comparisons.add(got, plain.outputs, exact, rounded)
    of_mode = outcome_of(case, comparisons, exact is not None, mode)
    return [Check(mode, True)] if Verdict(tuple(of_mode)).equal else of_mode, buffers


def outcome_of(case: Case, comparisons: Comparisons, in_float64: bool, mode: str = "") -> list[Check]:
    """The rules for whole models on every output; in a `mode` on every buffer, too."""
    checks = []
    for path, comparison in comparisons.outputs.items():
        output = path.removeprefix("['output']") if mode else path
        where = f" of output{output}" if output else ""
        if mode and path.startswith(_BUFFER):
            where = f" of {path.removeprefix(_BUFFER).removesuffix(_END)}"
        checks += comparison.checks(where + (f", {mode}" if mode else ""), case.traced.products, in_float64)
    return checks


def layer_alone(case: Case, state: Mapping[str, Tensor]) -> OneLayer | None:
    """The one layer that the model is, where the judge can compute it from its state."""
    layer = case.traced.layer
    return layer if layer is not None and layer.weight in state else None


def _fit(call: TimedOutputs, problem: Problem) -> bool:
    """Whether the inputs of a call are samples of the problem's."""
    x, *others = [*call.inputs, None]
    alike = isinstance(x, Tensor) and x.dtype == getattr(torch, problem.layer.dtype)
    return others == [None] and alike and tuple(x.shape[1:]) == problem.input_shape[1:] and len(x) > 0


def check_timed(case: Case, model: Side, timed: Timed, wanted: Wanted, device: torch.device) -> Check:
    """Whether the kept calls gave the result while they were timed: a layer by rules 2 to 4, others as whole models."""
    name = "right while it is timed"
    state = model.construct(SEED, case.arguments)
    other_form = "the inputs that it says it was given have another form"
    if (layer := layer_alone(case, state)) is not None:
        if not all(_fit(call, layer.problem) for call in timed.candidate):
            return Check(name, False, reason=other_form)
        # Nothing in it is random: it gives the same again.
        precision = resolve(layer.problem, wanted, device=device)
        wrong = _wrong_in_layer(timed.candidate, layer, state, precision)
        return Check(name, False, reason=f"{_DRAWN}: {wrong}") if wrong else Check(name, True)
    form = same_outputs([call.inputs for call in timed.candidate], [call.inputs for call in timed.reference])
    if not form.passed:
        return Check(name, False, reason=f"{other_form}: {form.reason}")
    wrong = _wrong_in(timed.candidate, case, model, state, wanted, device)
    if not wrong:
        return Check(name, True)
    # A model with dropout, or one that counts its calls, does not give the same again.
    theirs = _wrong_in(timed.reference, case, model, state, wanted, device)
    if theirs:
        return Check(name, None, reason=f"not required: Model's own timed calls do not give the same again; {theirs}")
    return Check(name, False, reason=f"{_DRAWN}: {wrong}")


def _wrong_in(
    calls: list[TimedOutputs],
    case: Case,
    model: Side,
    state: dict[str, Tensor],
    wanted: Wanted,
    device: torch.device,
) -> str:
    """What is wrong with the outputs of the calls; empty if nothing is."""
    comparisons = Comparisons(device, case.coarsest)
    in_float64 = True
    for call in calls:
        plain = plain_of(model, call.inputs, state, SEED, wanted)
        form = same_outputs(call.outputs, plain.outputs)
        if not form.passed:
            return form.reason
        exact, rounded = finer(case, model, plain, call.inputs, state, SEED, wanted)
        in_float64 = in_float64 and exact is not None
        comparisons.add(call.outputs, plain.outputs, exact, rounded)
    return next(iter(Verdict(tuple(outcome_of(case, comparisons, in_float64))).reasons), "")


def _wrong_in_layer(calls: list[TimedOutputs], layer: OneLayer, state: dict[str, Tensor], precision: Precision) -> str:
    """The same for a model that is one layer, which is computed here: nothing passes to `Model` and back."""
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


def _with_calls(checks: list[Check], calls: Calls) -> list[Check]:
    """With what the calls themselves showed, and where they explain a wrong result, with that first."""
    checks = [*checks, *calls.checks()]
    return checks if Verdict(tuple(checks)).equal else [*calls.repeats(), *checks]


def finer(
    case: Case,
    model: Side,
    plain: Outcome,
    inputs: list[Any],
    state: dict[str, Tensor],
    seed: int,
    wanted: Wanted,
    training: bool | None = None,
) -> tuple[Any, Any]:
    """What `Model` gives on the inputs of its last call, `plain`, in float64 and on rounded operands."""
    # They are gigabytes, perhaps, and there already, unless the model changes what it is given.
    there = inputs if any(name.startswith("input") for name in plain.changed) else None
    exact = _in_float64(model, there, state, seed, training=training)
    by_samples = True
    if exact is not None and exact.by_samples:
        # Small inputs are run at once, and say nothing of that.
        by_samples = near(plain.outputs, exact.outputs, ROUNDING)
        if training is None:  # in the mode in which the model is timed, too
            model.samples_apart = by_samples
        if not by_samples:
            exact = _in_float64(model, there, state, seed, by_samples=False, training=training)
    rounded = _rounded(case, model, there, state, seed, wanted, by_samples, training)
    return None if exact is None else exact.outputs, rounded


def near(one: Any, other: Any, relative: float) -> bool:
    """Whether no tensor of two results of the same form is further from the other's than that, pooled."""
    theirs = dict(tensors(other))
    return all(distance(tensor, theirs[path]) <= relative for path, tensor in tensors(one))


def plain_of(
    model: Side,
    inputs: list[Any],
    state: dict[str, Tensor],
    seed: int,
    wanted: Wanted,
    training: bool | None = None,
    route: Route | None = None,
) -> Outcome:
    """What `Model` gives as it is."""
    mode = "fp32" if wanted == "fp32" else "plain"
    return model.forward(inputs, state, seed=seed, mode=mode, on=HOST, training=training, route=route)


def _in_float64(
    model: Side,
    inputs: list[Any] | None,
    state: dict[str, Tensor],
    seed: int,
    by_samples: bool = True,
    training: bool | None = None,
) -> Outcome | None:
    """What a copy in float64 gives; None where the model does not run so, because it makes tensors of its own."""
    try:
        options = {"mode": "float64", "by_samples": by_samples, "training": training}
        return model.forward(inputs, state, seed=seed, on=HOST, **options)
    except ModelFileError:
        return None


def _rounded(
    case: Case,
    model: Side,
    inputs: list[Any] | None,
    state: dict[str, Tensor],
    seed: int,
    wanted: Wanted,
    by_samples: bool,
    training: bool | None = None,
) -> Any:
    """The outputs with transposed convolutions on operands rounded to TF32 where that is allowed; None if nowhere."""
    if wanted == "fp32":
        return None
    problems = enumerate(case.full.problems) if wanted == "match" else ()
    exempt = [number for number, problem in problems if problem is not None and of_kind(problem) not in TF32]
    options = {"mode": "rounded", "exempt": exempt, "by_samples": by_samples, "training": training}
    return model.forward(inputs, state, seed=seed, on=HOST, **options).outputs


class Comparisons:
    """One comparison for each output of a model, by its path.

    Args:
        device: where pieces are compared.
        inside: the coarsest type inside the model, which counts where it does not run in float64.
    """

    def __init__(self, device: torch.device, inside: torch.dtype = torch.float64) -> None:
        self._device, self._inside = device, inside
        self.outputs: dict[str, OutputComparison] = {}

    def add(self, got: Any, pytorch: Any, exact: Any, rounded: Any) -> None:
        """Count in one draw."""
        others = [dict(tensors(value)) for value in (pytorch, exact, rounded)]
        for path, tensor in tensors(got):
            # Counts and masks follow from floats: they may differ by as much as coarser arithmetic makes them differ.
            real = tensor.real if tensor.is_complex() else tensor
            dtype = real.dtype if real.is_floating_point() else torch.float32
            if exact is None:
                dtype = _coarser(dtype, self._inside)
            comparison = self.outputs.setdefault(path, OutputComparison(dtype, self._device))
            comparison.add(Results(tensor, others[0][path], others[1].get(path), others[2].get(path)))


def _coarser(*dtypes: torch.dtype) -> torch.dtype:
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _same_bits(first: Any, second: Any) -> Check:
    name = "same bits twice"
    if same_values_of(first, second):
        return Check(name, True)
    return Check(name, False, "others", "same bits", "two runs on the same inputs and weights differ")
