"""The results of any model, by the rules of `whole_model`: as it is built, then in other states, in both modes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from tconv.evaluation.files.levels import ALL_SAMPLES, MORE_DRAWS
from tconv.evaluation.files.process.by_samples import some_samples
from tconv.evaluation.files.results.current_stream import check_on_both
from tconv.evaluation.files.results.near_ties import hangs_on_rounding
from tconv.evaluation.files.results.output_rules import same_outputs
from tconv.evaluation.files.results.some_samples import check_some_in_float64
from tconv.evaluation.files.results.state import randomised
from tconv.evaluation.files.sides.candidate_calls import same_values_of
from tconv.evaluation.files.sides.inputs import BUILT_DRAWS, IN_EVALUATION, IN_TRAINING, SEED
from tconv.evaluation.files.sides.model_and_candidate import HOST, ROUNDING, Pair, near
from tconv.evaluation.verdict import Check, Verdict
from tconv.sandbox.exchange import largest_bytes
from tconv.sandbox.model_file import ModelFileError


def check_as_built(pair: Pair) -> list[Check]:
    """The rules over draws of inputs and of freshly built weights."""
    return check_on_both(pair, partial(_as_built, pair))


def _as_built(pair: Pair, aside: bool) -> list[Check]:
    """The same.

    Args:
        aside: a call runs on a side stream: the second; at the strict level, one more.
    """
    comparisons = pair.comparisons()
    form = again = Check("", None)
    draws = BUILT_DRAWS if pair.case.thorough and pair.looks_at(MORE_DRAWS) else 1
    for seed in range(SEED, SEED + draws):
        state = pair.built(seed)
        inputs = pair.case.inputs(seed)
        plain = pair.plain(inputs, state, seed, on=pair.place)
        pair.calls.beside(plain)
        pytorch = plain.outputs
        size = largest_bytes(pytorch)
        got = pair.calls.forward(inputs, state, seed=seed, output_bytes=size, on=pair.place)
        ties = pair.ties(inputs, state, seed)
        form = ties.form(same_outputs(got, pytorch), pytorch)
        if not form.passed:
            return [form]
        if seed == SEED:
            strict = pair.looks_at(MORE_DRAWS)
            repeats = strict and _called_again(pair, inputs, state, pytorch)
            for there in (False, True) if strict and aside else (aside,):
                options = {"seed": seed, "output_bytes": size, "on": pair.place, "aside": there}
                again = _same_bits(got, pair.calls.run(inputs, state, **options).outputs)
                if not again.passed:
                    break
            if not again.passed and not (repeats if strict else _called_again(pair, inputs, state, pytorch)):
                again = replace(again, passed=None, reason="not required: PyTorch's own runs differ, too")
        of_some = None if pair.looks_at(ALL_SAMPLES) else check_some_in_float64(pair, got, plain, state, seed)
        if of_some is not None:
            return [form, again, *of_some]
        comparisons.add(got, pytorch, *pair.finer(plain, inputs, state, seed), ties)
    return [form, again, *comparisons.checks()]


def _called_again(pair: Pair, inputs: list[Any], state: dict[str, Tensor], outputs: Any) -> bool:
    """Whether `Model` gives the same bits in another call.

    Raises:
        ModelFileError: the results differ by more than rounding, so nothing can be compared with them.
    """
    try:
        again = pair.plain(inputs, state, SEED).outputs
    except ModelFileError:  # the first call may have made layers, which the state lacks
        return True
    if same_outputs(again, outputs).passed:
        if _same_bits(again, outputs).passed:
            return True
        if near(again, outputs, ROUNDING):
            return False
    what = "called twice on the same inputs, with the same state and seed, Model gives two results"
    remedy = "what it keeps between calls belongs into a buffer, and random numbers come from torch's generator"
    raise ModelFileError(f"{what}: {remedy}")


def check_in_modes(pair: Pair) -> list[Check]:
    """The rules in evaluation and in training, each with random weights. Buffers count as outputs.

    A second training call follows in the state that the first one leaves, with fewer samples if `Model` takes them.
    """
    return [*check_in_evaluation(pair), *_in_training(pair)]


def check_in_evaluation(pair: Pair) -> list[Check]:
    seed, mode = IN_EVALUATION, "in evaluation"
    try:
        state = randomised(pair.built(seed), seed)
        return _in_mode(pair, seed, pair.case.inputs(seed), state, mode, False)[0]
    except ModelFileError as error:
        return [Check(mode, None, reason=f"not checked: {error}")]


def check_in_training(pair: Pair, inputs: list[Any], state: dict[str, Tensor]) -> tuple[list[Check], dict[str, Tensor]]:
    """The rules on one call in training, without gradients, and `Model`'s buffers after it."""
    seed, mode = IN_TRAINING, "in training"
    try:
        return _in_mode(pair, seed, inputs, state, mode, True)
    except ModelFileError as error:
        return [Check(mode, None, reason=f"not checked: {error}")], {}


def _in_training(pair: Pair) -> list[Check]:
    seed, mode = IN_TRAINING, "in training"
    inputs = pair.case.inputs(seed)
    state = pair.drawn_state(seed, inputs, True)
    checks, buffers = check_in_training(pair, inputs, state)
    if Verdict(tuple(checks)).equal:
        state |= buffers
        for again in filter(None, (some_samples(inputs, slice(-1)), inputs)):
            with contextlib.suppress(ModelFileError):  # it may take one batch alone
                return [*checks, *_in_mode(pair, seed, again, state, f"a second call {mode}", True)[0]]
    return checks


def _in_mode(
    pair: Pair, seed: int, inputs: list[Any], state: dict[str, Tensor], mode: str, training: bool
) -> tuple[list[Check], dict[str, Tensor]]:
    """The rules on one call in a mode, and `Model`'s buffers after it."""
    plain = pair.plain(inputs, state, seed, training)
    pair.calls.beside(plain)
    size = largest_bytes(plain.outputs)
    got = pair.calls.forward(inputs, state, seed=seed, output_bytes=size, on=HOST, training=training)
    ties = pair.ties(inputs, state, seed, training)
    form = ties.form(same_outputs(got, plain.outputs), plain.outputs)
    buffers = {name: tensor.to(state[name].device) for name, tensor in plain.outputs["buffers"].items()}
    if not form.passed:
        named = replace(form, name=f"{form.name}, {mode}")
        return [named if hangs_on_rounding(form) else replace(named, reason=f"{mode}: {form.reason}")], buffers
    comparisons = pair.comparisons()
    comparisons.add(got, plain.outputs, *pair.finer(plain, inputs, state, seed, training), ties)
    of_mode = comparisons.checks(mode)
    return [Check(mode, True)] if Verdict(tuple(of_mode)).equal else of_mode, buffers


def _same_bits(first: Any, second: Any) -> Check:
    name = "same bits twice"
    if same_values_of(first, second):
        return Check(name, True)
    return Check(name, False, "others", "same bits", "two runs on the same inputs and weights differ")
