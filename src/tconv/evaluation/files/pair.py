"""Both sides of the comparison of a replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tconv.evaluation.files.calls import Calls
from tconv.evaluation.files.case import MODEL_DRAWS, SEED, Case
from tconv.evaluation.files.side import Side
from tconv.evaluation.precision import Wanted

#: Seeds of the draws in evaluation and in training.
IN_EVALUATION, IN_TRAINING = SEED + MODEL_DRAWS - 2, SEED + MODEL_DRAWS - 1


@dataclass(frozen=True)
class Pair:
    """`Model` and a candidate on one case.

    Args:
        calls: of the candidate.
        device: where results are compared.
        types: the candidate is also called in those of them that are not its own.
        emulated: its kernels run in the emulator.
    """

    case: Case
    model: Side
    calls: Calls
    wanted: Wanted
    device: torch.device
    types: Sequence[torch.dtype]
    emulated: bool
