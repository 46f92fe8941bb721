"""What a replacement must still do beside its result: gradients, and results that follow weights as they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def check_replacement(
    reference: Reference,
    open_candidate: Callable[[], Side],
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
            candidate.construct(SEED, reference.case.arguments)
            pair = Pair.of(reference, candidate, types=types, emulated=emulated)
            checks: list[Check] = []
            for name, part in (
                (WEIGHTS, check_weights),
                (other_inputs.NAME, other_inputs.check_other_inputs),
                (infinite_values.NAME, infinite_values.check_infinite_values),
                (GRADIENTS, partial(check_gradients, training=training)),
            ):
                try:
                    checks += part(pair)
                except OutOfMemory as error:  # gradients take more than what was judged so far
                    checks.append(Check(name, None, reason=f"not checked: {error}"))
            return [*checks, *(check for check in pair.calls.checks() if check.passed is False)]
    except CandidateFailed as failure:
        return [Check("runs", False, reason=str(failure))]
