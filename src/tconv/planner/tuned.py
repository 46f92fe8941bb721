"""What `tconv tune` measured, as plain data: which kernel is the fastest for a question, and how long PyTorch takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tconv.planner.families import FAMILIES
from tconv.planner.plan import AnyTile, tile_fields, tile_of
from tconv.problem import PRECISIONS, Precision, Problem


@dataclass(frozen=True)
class Question:
    """What the planner is asked.

    Args:
        problem: in the precision of its tensors.
        tensor_core_precision: of families that run on tensor cores, where it is not that one: CUDA cores gain nothing
            from TF32.
        channels_last: how input and output lie in memory. A family that cannot read and write that has them copied.
    """

    problem: Problem
    tensor_core_precision: Precision | None = None
    channels_last: bool = False

    def problem_of(self, family: str) -> Problem:
        """The problem in the arithmetic in which `family` answers."""
        return self.on_tensor_cores() if FAMILIES[family].on_tensor_cores else self.problem

    def in_channels_last(self) -> Question:
        """The question of a model that is in channels_last: inputs and weights, and so the outputs."""
        problem = replace(self.problem, layer=self.problem.layer.in_channels_last())
        return replace(self, problem=problem, channels_last=True)

    def alone(self) -> Question:
        """The question without the program behind the layer."""
        layer = self.problem.layer
        return (
            replace(self, problem=replace(self.problem, layer=replace(layer, epilogue=""))) if layer.epilogue else self
        )

    def found_in(self, answers: Answers) -> tuple[Question, Tuned] | None:
        """What was measured: of the layer with its program or, where that was not, alone; None where neither was.

        Where the output is a slice of another tensor makes no difference to that.
        """
        whole = replace(self, problem=replace(self.problem, into=0)) if self.problem.into else self
        for question in dict.fromkeys((whole, whole.alone())):
            if (answer := answers.get(question)) is not None:
                return question, answer
        return None

    def on_tensor_cores(self) -> Problem:
        """The problem in the arithmetic of tensor cores."""
        layer = self.problem.layer
        return replace(self.problem, layer=replace(layer, precision=self.tensor_core_precision or layer.precision))


@dataclass(frozen=True)
class Tuned:
    """The answer: the tile that was measured to be the fastest of `tried`, and PyTorch's operator beside it.

    Times are medians of milliseconds, taken by turns with a cold L2 cache. The tile is only data: the planner takes it
    if it is one of those that it considers itself.
    """

    family: str
    tile: AnyTile
    milliseconds: float
    pytorch_milliseconds: float
    tried: int

    @property
    def prefers_pytorch(self) -> bool:
        """Whether PyTorch's own operator was the faster."""
        return self.pytorch_milliseconds < self.milliseconds

    def why(self) -> str:
        """The reason of a plan with this tile."""
        return (
            f"measured fastest of {self.tried} tiles by tconv tune: {self.milliseconds:.3g} ms; "
            f"PyTorch's operator took {self.pytorch_milliseconds:.3g} ms"
        )

    def why_pytorch(self) -> str:
        """The reason for leaving the problem to PyTorch."""
        return (
            f"PyTorch's operator was measured faster on this GPU: {self.pytorch_milliseconds:.3g} ms against "
            f"{self.milliseconds:.3g} ms (tconv tune)"
        )


#: The answers for one GPU.
Answers = Mapping[Question, Tuned]


def to_dict(question: Question, tuned: Tuned) -> dict[str, Any]:
    """An entry as JSON knows it."""
    return {"question": asdict(question), "answer": asdict(tuned) | {"tile": dict(tile_fields(tuned.tile))}}


def from_dict(entry: Any) -> tuple[Question, Tuned]:
    """The inverse of `to_dict`, also after a passage through JSON and through somebody's editor.

    Raises:
        ValueError: this is no entry; the message says what is wrong with it.
    """
    try:
        asked, answer = dict(entry["question"]), dict(entry["answer"])
        question = Question(Problem.from_dict(asked.pop("problem")), **asked)
        tile = tile_of(FAMILIES[answer["family"]].tile, answer.pop("tile"))
        tuned = Tuned(tile=tile, **answer)
        hash((question, tuned))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"an entry is damaged ({type(error).__name__}: {error})") from None
    times = (tuned.milliseconds, tuned.pytorch_milliseconds)
    if not all(isinstance(time, int | float) and 0 < time < math.inf for time in times):
        raise ValueError(f"got the times {times}; allowed are positive numbers of milliseconds")
    if not all(type(value) is int for value in (*(value for _, value in tile_fields(tile)), tuned.tried)):
        raise ValueError(f"got {tile} of {tuned.tried!r}; allowed are integers")
    if question.tensor_core_precision not in (None, *PRECISIONS):
        raise ValueError(f"got precision {question.tensor_core_precision!r}; allowed are {', '.join(PRECISIONS)}")
    return question, tuned
