"""Further checks of a candidate whose results are equal, in parts: gradients, changed weights and other inputs."""

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
#: The parts in which the control excuses each check by itself.
ONE_BY_ONE = (WEIGHTS, _COPIES, _CASTS, "")


def parts_of(reference: Reference) -> tuple[str, ...]:
    """The names of the parts, in order."""
    if reference.looks_at(EACH_ROUTE):
        return (WEIGHTS, other_inputs.NAME, infinite_values.NAME, GRADIENTS)
    copies = (_COPIES,) * reference.looks_at(COPIED)
    # The cast comes last, as a module that is cast is not called again.
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
    """Open a candidate whose results are equal, and make all further checks.

    Args:
        training: whether a candidate without gradients fails.
        types: types that the candidate is cast to, except its own.
        emulated: whether its kernels run in the emulator.
        parts: the parts to check, of `parts_of`; None for all.

    Returns:
        The checks of each part, and under "" the checks of side effects of all calls.

    Raises:
        ModelFileError: `Model` fails where it ran before.
    """
    try:
        with open_candidate() as candidate:
            candidate.construct(SEED, reference.case.arguments)
            pair = Pair.of(reference, candidate, types=types, emulated=emulated)
            return check_parts(pair, training=training, parts=parts)
    except CandidateFailed as failure:
        return {"": [Check("runs", False, reason=str(failure))]}


def check_parts(pair: Pair, *, training: bool, parts: Collection[str] | None = None) -> dict[str, list[Check]]:
    """The same for a candidate that is open."""
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
            except OutOfMemory as error:  # gradients take more memory than the checks before
                checks[name] = [Check(name, None, reason=f"not checked: {error}")]
        checks[""] = [check for check in pair.calls.checks() if check.passed is False]
    except CandidateFailed as failure:
        checks[next(reversed(checks), "")] = [Check("runs", False, reason=str(failure))]
    return checks
