"""The kernels that the planner puts in front, measured before a file is written with the fastest of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

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
_FIRST = 12
#: What others may have of the GPU's memory where nobody else uses it: contexts of our own processes.
_CONTEXT_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Searched:
    """What was found.

    Args:
        answers: of the layers that were measured now, one for each question that the file asks.
        mistakes: kernels that do not compile or are wrong, and what is wrong with them: bugs in tconv.
        kept: where the library finds the winners, or why it does not.
    """

    answers: tuple[Answer, ...] = ()
    mistakes: tuple[str, ...] = ()
    kept: str = ""

    @property
    def tuned(self) -> Answers:
        """The winners."""
        return {answer.question: answer.tuned for answer in self.answers if answer.tuned is not None}


@dataclass
class Search:
    """Measures the layers of a model on the current GPU, each at most once.

    Args:
        pool: compiles.
        known: what was measured here before, and is not measured again.
        say: is told in a few words what begins.
    """

    gpu: Gpu
    pool: Executor
    known: Answers
    say: Callable[[str], None]
    _found: dict[Question, Tuned] = field(default_factory=dict)

    def run(self, trace: Trace, wanted: Wanted, resolve: Resolve) -> Searched:
        """Every layer whose question, as the file asks it, has no answer yet."""
        asked = [job for job in jobs(trace, self.gpu, wanted, resolve, _FIRST) if job.questions[-1] not in self.known]
        if not asked:
            return Searched()
        alone = _others_bytes() < _CONTEXT_BYTES
        answers: list[Answer] = []
        mistakes: list[str] = []
        tuner = Tuner(self.gpu, CudaClock(), self.pool, self._found.update, lambda done, what: self.say(SEARCHING))
        for found in tuner.run(asked):
            if not isinstance(found, Answer):
                mistakes.append(f"{found.job.name}: {found.kernel.family}: {found.reason}")
            elif found.question == found.job.questions[-1]:
                answers.append(found)
        return Searched(tuple(answers), tuple(mistakes), _keep(self.gpu, self._found, alone))


#: The step, whatever of it is going on.
SEARCHING = "measuring the leading kernels"


def _keep(gpu: Gpu, found: Mapping[Question, Tuned], alone: bool) -> str:
    """Winners of a GPU that others use may be chance: they are for this file alone."""
    if not found:
        return ""
    if not alone:
        return "not kept for the library: other programs use this GPU"
    try:
        return f"kept for the library in {store(gpu, dict(found))}"
    except Trouble as trouble:
        return f"not kept for the library: {trouble}"


def _others_bytes() -> int:
    """Of the current GPU's memory, what this process did not ask for."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
