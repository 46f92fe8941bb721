"""What a replacement must still do beside its result: gradients, and results that follow weights as they change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch

from tconv.errors import OutOfMemory
from tconv.evaluation.files.levels import COPIED, EACH_ROUTE, EACH_WAY_BACK
from tconv.evaluation.files.replacement import infinite_values, other_inputs
from tconv.evaluation.files.replacement.changed_weights import WEIGHTS, check_cast, check_copies, check_weights
from tconv.evaluation.files.replacement.gradients import check_gradients
from tconv.evaluation.files.replacement.training_step import check_one_training
from tconv.evaluation.files.sides.file_process import CandidateFailed, Side
from tconv.evaluation.files.sides.inputs import SEED
from tconv.evaluation.files.sides.model_and_candidate import Pair, Reference
from tconv.evaluation.verdict import GRADIENTS, Check

_COPIES, _CASTS = "copies", "casts"
#: Those of which each check is excused by itself.
ONE_BY_ONE = (WEIGHTS, _COPIES, _CASTS, "")


def parts_of(reference: Reference) -> tuple[str, ...]:
    """What is looked at, in this order."""
    if reference.looks_at(EACH_ROUTE):
        return (WEIGHTS, other_inputs.NAME, infinite_values.NAME, GRADIENTS)
    copies = (_COPIES,) * reference.looks_at(COPIED)
    # What a cast leaves is called no more.
    return (GRADIENTS, other_inputs.NAME, infinite_values.NAME, *copies, _CASTS)


def check_replacement(
    reference: Reference,
    open_candidate: Callable[[], Side],
    *,
    training: bool,
    types: Sequence[torch.dtype],
    emulated: bool,
    parts: Collection[str] | None = None,
) -> dict[str, list[Check]]:
    """Put a candidate whose results are equal to the rules for weights that change and for gradients.

    Args:
        training: a candidate without gradients fails.
        types: it is also called in those of them that are not its own.
        emulated: its kernels run in the emulator.
        parts: of `parts_of` those that are looked at; None for all.

    Returns:
        The checks of each part, and under "" those of all calls together.

    Raises:
        ModelFileError: when `Model` fails where it ran before.
    """
    try:
        with open_candidate() as candidate:
            candidate.construct(SEED, reference.case.arguments)
            pair = Pair.of(reference, candidate, types=types, emulated=emulated)
            return check_parts(pair, training=training, parts=parts)
    except CandidateFailed as failure:
        return {"": [Check("runs", False, reason=str(failure))]}


def check_parts(pair: Pair, *, training: bool, parts: Collection[str] | None = None) -> dict[str, list[Check]]:
    """The same of a candidate that is there."""
    functions: dict[str, Callable[[Pair], list[Check]]] = {
        WEIGHTS: check_weights,
        other_inputs.NAME: other_inputs.check_other_inputs,
        infinite_values.NAME: infinite_values.check_infinite_values,
        GRADIENTS: partial(check_gradients if pair.looks_at(EACH_WAY_BACK) else check_one_training, training=training),
        _COPIES: check_copies,
        _CASTS: check_cast,
    }
    checks: dict[str, list[Check]] = {}
    try:
        for name in parts_of(pair):
            if parts is not None and name not in parts:
                continue
            checks[name] = []
            try:
                checks[name] = functions[name](pair)
            except OutOfMemory as error:  # gradients take more than what was judged so far
                checks[name] = [Check(name, None, reason=f"not checked: {error}")]
        checks[""] = [check for check in pair.calls.checks() if check.passed is False]
    except CandidateFailed as failure:
        checks[next(reversed(checks), "")] = [Check("runs", False, reason=str(failure))]
    return checks
