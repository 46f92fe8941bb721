"""Whether the results of `ModelNew` are `Model`'s, built with the same arguments and called with the same inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tconv.evaluation.files.levels import SECOND_TRAINING
from tconv.evaluation.files.results.many_layers import check_as_built, check_in_evaluation, check_in_modes
from tconv.evaluation.files.results.one_layer import check_one_layer, layer_alone
from tconv.evaluation.files.results.state import check_parameters, check_state
from tconv.evaluation.files.sides.file_process import CandidateFailed, Side
from tconv.evaluation.files.sides.inputs import SEED
from tconv.evaluation.files.sides.model_and_candidate import Pair, Reference
from tconv.evaluation.verdict import Check, Verdict

#: The stages in order. Each runs only if all before it pass.
Stage = Literal["state", "as built", "in modes"]


@dataclass
class Results:
    """The outcome of a comparison.

    Args:
        stage: the last stage that began.
        parts: the checks that `then` made after it.
    """

    verdict: Verdict
    stage: Stage
    parts: Mapping[str, list[Check]] = field(default_factory=dict)


def check_results(
    reference: Reference,
    open_candidate: Callable[[], Side],
    last: Stage = "in modes",
    then: Callable[[Pair], Mapping[str, list[Check]]] = lambda pair: {},
    **options: Any,
) -> Results:
    """Build both sides with the case's arguments and compare them.

    Args:
        last: the stage after which nothing further is compared.
        then: makes further checks in the same process, if all is equal.
        options: those of the `Pair`.

    Raises:
        ModelFileError: `Model` fails. The candidate's faults are part of the verdict.
    """
    stage: Stage = "state"
    arguments = reference.case.arguments
    state, parameters = reference.built(SEED), reference.model.parameters()
    checks: list[Check] = []
    operators: tuple[str, ...] = ()
    parts: Mapping[str, list[Check]] = {}
    try:
        with open_candidate() as candidate:
            checks += check_state(candidate.construct(SEED, arguments), state)
            if all(check.passed for check in checks):
                checks.append(check_parameters(candidate.parameters(), parameters))
            if all(check.passed for check in checks) and last != stage:
                stage = "as built"
                pair = Pair.of(reference, candidate, **options)
                layer = layer_alone(pair.case, state)
                found = check_as_built(pair) if layer is None else check_one_layer(pair, layer, state)
                if pair.case.thorough and Verdict(tuple(found)).equal and last != stage:
                    stage = "in modes"
                    in_modes = pair.looks_at(SECOND_TRAINING)
                    found += check_in_modes(pair) if in_modes else check_in_evaluation(pair)
                found = pair.calls.added_to(found)
                if pair.case.thorough and Verdict(tuple(found)).equal:
                    parts = then(pair)
                checks += found
                # What cannot be seen, as in a program that refuses to run under a recorder, is no fault.
                if last == "in modes" or not pair.case.thorough:
                    with contextlib.suppress(CandidateFailed):
                        operators = candidate.operators()
    except CandidateFailed as failure:
        checks.append(Check("runs", False, reason=str(failure)))
    return Results(Verdict(tuple(checks), operators), stage, parts)
