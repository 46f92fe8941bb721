"""One call in training with gradients, and the next one in evaluation, after an optimizer's step."""

from __future__ import annotations

from tconv.evaluation.files.replacement.changed_weights import check_step
from tconv.evaluation.files.replacement.gradients import first_way, on_a_way
from tconv.evaluation.files.results.many_layers import check_in_training
from tconv.evaluation.files.results.state import randomised
from tconv.evaluation.files.sides.inputs import IN_TRAINING
from tconv.evaluation.files.sides.model_and_candidate import Pair
from tconv.evaluation.verdict import Check


def check_one_training(pair: Pair, training: bool) -> list[Check]:
    """Whether outputs, buffers and gradients are right, with random weights, and results after an optimizer's step.

    Args:
        training: whether a candidate without gradients fails.
    """
    state = randomised(pair.built(IN_TRAINING), IN_TRAINING)
    inputs = pair.small_inputs(IN_TRAINING)
    first = first_way(pair, inputs, state)
    if isinstance(first, Check):
        checks, buffers = [first], None
    else:
        way, plain = first
        checks = on_a_way(pair, inputs, state, way, plain, training)
        buffers = plain.outputs["buffers"]
    if buffers is None or not pair.calls.has(state):  # Model or the candidate has no gradients
        results, buffers = check_in_training(pair, inputs, state)
        checks += results
    left = {**state, **{name: buffer.to(state[name].device) for name, buffer in buffers.items()}}
    if any(check.passed is False for check in checks):
        return checks
    return [*checks, *check_step(pair, inputs, left)]
