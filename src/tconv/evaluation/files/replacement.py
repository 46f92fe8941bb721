"""What a replacement must still do beside its result: gradients, and results that follow weights as they change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch

from tconv.errors import OutOfMemory
from tconv.evaluation.files import infinite_values, other_inputs
from tconv.evaluation.files.case import SEED
from tconv.evaluation.files.changed_weights import WEIGHTS, check_weights
from tconv.evaluation.files.gradients import check_gradients
from tconv.evaluation.files.pair import Pair, Reference
from tconv.evaluation.files.side import CandidateFailed, Side
from tconv.evaluation.verdict import GRADIENTS, Check

#: In this order.
PARTS = (WEIGHTS, other_inputs.NAME, infinite_values.NAME, GRADIENTS)


def check_replacement(
    reference: Reference,
    open_candidate: Callable[[], Side],
    *,
    training: bool,
    types: Sequence[torch.dtype],
    emulated: bool,
    parts: Collection[str] = PARTS,
) -> dict[str, list[Check]]:
    """Put a candidate whose results are equal to the rules for weights that change and for gradients.

    Args:
        training: a candidate without gradients fails.
        types: it is also called in those of them that are not its own.
        emulated: its kernels run in the emulator.
        parts: of `PARTS` those that are looked at.

    Returns:
        The checks of each part, and under "" those of all calls together.

    Raises:
        ModelFileError: when `Model` fails where it ran before.
    """
    functions: tuple[Callable[[Pair], list[Check]], ...] = (
        check_weights,
        other_inputs.check_other_inputs,
        infinite_values.check_infinite_values,
        partial(check_gradients, training=training),
    )
    checks: dict[str, list[Check]] = {}
    try:
        with open_candidate() as candidate:
            candidate.construct(SEED, reference.case.arguments)
            pair = Pair.of(reference, candidate, types=types, emulated=emulated)
            for name, part in zip(PARTS, functions, strict=True):
                if name not in parts:
                    continue
                checks[name] = []
                try:
                    checks[name] = part(pair)
                except OutOfMemory as error:  # gradients take more than what was judged so far
                    checks[name] = [Check(name, None, reason=f"not checked: {error}")]
            checks[""] = [check for check in pair.calls.checks() if check.passed is False]
    except CandidateFailed as failure:
        checks[next(reversed(checks), "")] = [Check("runs", False, reason=str(failure))]
    return checks
