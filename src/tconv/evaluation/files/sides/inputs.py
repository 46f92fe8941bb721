"""What both files of a judgement are built with and given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tconv.evaluation.files.sides.file_process import Arguments, Traced

#: Seeds the construction on both sides and the first inputs.
SEED = 0
#: Draws of inputs and weights of a model of more than one layer as it is built. Then come one in evaluation and one in
#: training, in a state that is not as built.
BUILT_DRAWS = 2
MODEL_DRAWS = BUILT_DRAWS + 2
#: The seeds of those two.
IN_EVALUATION, IN_TRAINING = SEED + MODEL_DRAWS - 2, SEED + MODEL_DRAWS - 1


@dataclass(frozen=True)
class Case:
    """Constructor arguments with inputs for them.

    Args:
        inputs: makes the inputs for a seed at the sizes that are judged. Of large ones, those for later seeds have
            fewer samples.
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
    def narrow(self) -> bool:
        """Whether a transposed convolution of the model runs in 16 bits."""
        return torch.finfo(self.coarsest).bits == 16

    @property
    def coarsest(self) -> torch.dtype:
        """The coarsest type that a transposed convolution of the model computes in."""
        problems = (problem for problem in self.traced.problems if problem is not None)
        return coarser(torch.float64, *(getattr(torch, problem.layer.dtype) for problem in problems))


def coarser(*dtypes: torch.dtype) -> torch.dtype:
    """The one with the fewest significant bits."""
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
