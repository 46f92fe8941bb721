"""What is tried for a model: the questions that its layers put to the planner, and the kernels that may answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tconv.evaluation.precision import Resolve, Wanted, problems, understood
from tconv.planner import Gpu, Kernel
from tconv.planner.choice import leading
from tconv.planner.tuned import Question
from tconv.precision import question_of
from tconv.problem import Problem
from tconv.sandbox.trace import Trace


@dataclass(frozen=True)
class Job:
    """A layer at one size, measured in one go.

    Args:
        name: of the first layer of the model that computes this.
        problem: with the precision of its dtype, and the program behind it.
        questions: what the library asks, and what a written file asks, where that differs.
        candidates: for each question the kernels, with the seconds predicted; the planner's own choice is in front.
    """

    name: str
    problem: Problem
    questions: tuple[Question, ...]
    candidates: tuple[tuple[tuple[Kernel[Any], float], ...], ...]

    @property
    def kernels(self) -> tuple[Kernel[Any], ...]:
        """All candidates, each once."""
        return tuple(dict.fromkeys(kernel for candidates in self.candidates for kernel, _ in candidates))

    def of_file(self) -> Job:
        """The same for what a written file asks alone."""
        return replace(self, questions=self.questions[-1:], candidates=self.candidates[-1:])

    @property
    def channels_last(self) -> bool:
        """How input and output lie in memory."""
        return self.questions[0].channels_last


def jobs(
    trace: Trace,
    gpu: Gpu,
    wanted: Wanted,
    resolve: Resolve,
    first: int,
    channels_last: bool = False,
    programs: Mapping[str, str] = MappingProxyType({}),
) -> list[Job]:
    """A job for each distinct layer, program behind it, and size of a model.

    Args:
        first: how many candidates a question has.
        channels_last: of layers that know that format; written files do not ask for it.
        programs: by what is called behind layers; without them layers are alone.
    """
    rounds = wanted != "fp32" and trace.tf32
    asked = problems(trace.layers, understood(wanted, trace.tf32), resolve)
    found: dict[Problem, Job] = {}
    for traced, in_file in zip(trace.layers, asked, strict=True):
        problem, in_file = (traced.with_program(each, programs) for each in (traced.problem, in_file))
        if problem not in found:
            questions = _questions(question_of(problem, gpu, rounds), in_file, channels_last)
            found[problem] = _job(traced.name, problem, questions, gpu, first)
    return list(found.values())


def _questions(library: Question, in_file: Problem, channels_last: bool) -> tuple[Question, ...]:
    layer = library.problem.layer
    if channels_last and layer.spatial_dims > 1 and layer.precision != "fp64":
        return (library.in_channels_last(),)
    return tuple(dict.fromkeys((library, Question(in_file))))


def _job(name: str, problem: Problem, questions: Sequence[Question], gpu: Gpu, first: int) -> Job:
    return Job(name, problem, tuple(questions), tuple(tuple(leading(question, gpu, first)) for question in questions))
