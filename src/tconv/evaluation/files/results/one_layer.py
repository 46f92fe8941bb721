"""The results of a model that is one transposed convolution, by the layer's rules."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

from torch import Tensor

from tconv.evaluation.comparison import Comparison
from tconv.evaluation.equality import Candidate, check_layer, further_draws
from tconv.evaluation.files.levels import ALL_SAMPLES, EACH_AWKWARD, MORE_DRAWS
from tconv.evaluation.files.results.current_stream import check_on_both
from tconv.evaluation.files.sides.file_process import OneLayer
from tconv.evaluation.files.sides.inputs import SEED, Case
from tconv.evaluation.files.sides.model_and_candidate import Pair
from tconv.evaluation.precision import arithmetic, resolve
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.rules import every_element, same_form
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Check, Verdict
from tconv.problem import TF32, Precision, Problem

#: The number of draws at the strict level, and at the default one, whose first draw is the file's own inputs.
_DRAWS, _FEW_DRAWS = 5, 2
#: Samples of each awkward input; few, as inputs pass through files.
_AWKWARD_BATCH = 2
_OWN_INPUTS = "own inputs"


def layer_alone(case: Case, state: dict[str, Tensor]) -> OneLayer | None:
    """The single layer of a model that has no more, if the judge can compute it from the model's state."""
    # A layer that forward constructs has no weights before the first call.
    layer = case.traced.layer
    return layer if layer is not None and layer.weight in state else None


def check_one_layer(pair: Pair, layer: OneLayer, state: dict[str, Tensor]) -> list[Check]:
    """The rules of `check_layer`, and rule 2 on the model file's own inputs and its first weights, in `state`."""
    return check_on_both(pair, partial(_check_one_layer, pair, layer, state))


def _check_one_layer(pair: Pair, layer: OneLayer, state: dict[str, Tensor], aside: bool) -> list[Check]:
    """The same.

    Args:
        aside: a call runs on a side stream: the second; at the strict level, one more.
    """
    case, problem, strict = pair.case, layer.problem, pair.looks_at(EACH_AWKWARD)
    full = case.full.layer or layer
    precision = resolve(full.problem, pair.wanted, device=pair.device)
    seeds = itertools.count(SEED)

    def call(x: Tensor, weight: Tensor, bias: Tensor | None, there: bool = False) -> Any:
        given = {**state, layer.weight: weight}
        if layer.bias is not None and bias is not None:
            given[layer.bias] = bias
        output_bytes = x.shape[0] * math.prod(problem.output_shape[1:]) * problem.layer.item_bytes
        # Each call has another seed: a single layer draws no random numbers.
        seed = next(seeds)
        there = there or (aside and not strict and seed == SEED + 1)
        return pair.calls.forward([x], given, seed=seed, output_bytes=output_bytes, aside=there)

    bias = None if layer.bias is None else state[layer.bias]
    own = Operands(case.inputs(SEED)[0].to(pair.device), state[layer.weight], bias)
    draws = _DRAWS if pair.looks_at(MORE_DRAWS) else _FEW_DRAWS
    judged = partial(
        check_layer,
        call,
        problem,
        "tf32" if precision in TF32 else "fp32",
        device=pair.device,
        draw_count=draws if case.thorough else 1,
        awkward=case.thorough and strict,
        awkward_batch=_AWKWARD_BATCH,
        all_samples=pair.looks_at(ALL_SAMPLES),
        reach="phases",
    )
    if not strict or further_draws(problem).batch < problem.batch:
        # The own inputs are the first draw, as each run of large inputs takes seconds.
        checks = judged(first=own).checks
    else:
        on_own = _own_inputs(call, own, problem, precision)
        checks = (on_own, *judged().checks) if on_own.name == _OWN_INPUTS else (on_own,)
    if strict and aside and Verdict(checks).equal:
        # Not in the first call of all, which may take longer than the stream sleeps.
        checks = (*checks, _own_inputs(partial(call, there=True), own, problem, precision))
    return [check for check in checks if check.name != "inputs unchanged"]  # of all calls together


def _own_inputs(call: Candidate, own: Operands, problem: Problem, precision: Precision) -> Check:
    """Rule 2 on the model file's own inputs and first weights; rule 1 if the result breaks that."""
    got = call(*own)
    with arithmetic(precision):
        expected = conv_transpose(*own, problem)
    form = same_form(got, expected)
    if not form.passed:
        return form
    comparison = Comparison(Tolerance.of(problem.layer, precision))
    comparison.add(got, expected, own, problem)
    return every_element(comparison, _OWN_INPUTS)
