"""The kernels that the planner puts in front, measured before a file is written with the fastest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from types import MappingProxyType

import torch

from tconv.errors import Trouble
from tconv.evaluation.precision import Resolve, Wanted
from tconv.evaluation.stopwatch import CudaClock
from tconv.jit.tuned import store
from tconv.planner import Gpu
from tconv.planner.tuned import Answers, Question, Tuned
from tconv.sandbox.trace import Trace
from tconv.tuning.jobs import jobs
from tconv.tuning.measure import Answer, Tuner

#: How many kernels a layer tries.
FIRST = 12
#: What others may have of the GPU's memory where nobody else uses it: contexts of our own processes.
_CONTEXT_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Searched:
    """What was found.

    Args:
        answers: of the layers that were measured now, one for each question that the file asks.
        mistakes: kernels that do not compile or are wrong, and what is wrong with them: bugs in tconv.
        kept: where the library finds the winners, or why it does not.
        alone: whether no other program used the GPU.
    """

    answers: tuple[Answer, ...] = ()
    mistakes: tuple[str, ...] = ()
    kept: str = ""
    alone: bool = True

    @property
    def tuned(self) -> Answers:
        """The winners."""
        return {answer.question: answer.tuned for answer in self.answers if answer.tuned is not None}

    @property
    def measured(self) -> Mapping[Question, Sequence[Tuned]]:
        """All kernels, the fastest of a question first; none where their times hold others' work.

        Then only a winner counts: it was faster than the planner's choice beyond what the calls of both differ by.
        """
        return {answer.question: answer.measured for answer in self.answers if self.alone}


def search(
    trace: Trace,
    gpu: Gpu,
    pool: Executor,
    wanted: Wanted,
    resolve: Resolve,
    known: Answers,
    alone: bool,
    programs: Mapping[str, str] = MappingProxyType({}),
) -> Searched:
    """Measures every distinct layer of a model whose question, as the file asks it, has no answer yet.

    A layer is measured with the program of its epilogue.

    Args:
        gpu: the current one.
        pool: compiles.
        wanted, resolve, programs: as in `tconv.tuning.jobs.jobs`.
        known: what was measured here before.
        alone: whether no other program uses the GPU.
    """
    found = (job.of_file() for job in jobs(trace, gpu, wanted, resolve, FIRST, programs=programs))
    asked = [job for job in found if job.questions[0] not in known]
    if not asked:
        return Searched()
    winners: dict[Question, Tuned] = {}
    answers: list[Answer] = []
    mistakes: list[str] = []
    for result in Tuner(gpu, CudaClock(), pool, winners.update).run(asked):
        if isinstance(result, Answer):
            answers.append(result)
        else:
            mistakes.append(f"{result.job.name}: {result.kernel.family}: {result.reason}")
    return Searched(tuple(answers), tuple(mistakes), _keep(gpu, winners, alone), alone)


def gpu_is_shared() -> bool:
    """Whether other programs use the current GPU, by the memory that they have."""
    return _others_bytes() >= _CONTEXT_BYTES


def _keep(gpu: Gpu, found: dict[Question, Tuned], alone: bool) -> str:
    """Winners of a GPU that others use may be chance: they are for this file alone."""
    if not found:
        return ""
    if not alone:
        return "not kept for the library: other programs use this GPU"
    try:
        return f"kept for the library in {store(gpu, found)}"
    except Trouble as trouble:
        return f"not kept for the library: {trouble}"


def _others_bytes() -> int:
    """Of the current GPU's memory, what this process did not ask for."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
