"""Constructor arguments and inputs for both files of a judgement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tconv.evaluation.files.sides.file_process import Arguments, Traced

#: The seed of the construction on both sides and of the first inputs.
SEED = 0
#: The number of draws of inputs and weights of a model of several layers as built. One draw in evaluation and one in
#: training follow, both with random weights.
BUILT_DRAWS = 2
MODEL_DRAWS = BUILT_DRAWS + 2
#: The seeds of those two.
IN_EVALUATION, IN_TRAINING = SEED + MODEL_DRAWS - 2, SEED + MODEL_DRAWS - 1


@dataclass(frozen=True)
class Case:
    """Constructor arguments with inputs for them.

    Args:
        inputs: makes the inputs for a seed, at the sizes that are judged. Large inputs for later seeds have fewer
            samples.
        traced: the convolutions of `Model` at these sizes.
        full: its convolutions at the sizes of its own inputs. They decide PyTorch's arithmetic.
        thorough: whether all draws and awkward inputs are judged; else one draw.
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
    """The type with the fewest significant bits."""
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
