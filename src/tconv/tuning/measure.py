"""The fastest kernel of a layer: all candidates compiled and checked, then timed by turns with PyTorch's operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tconv.errors import CompileError
from tconv.evaluation.draws import draw
from tconv.evaluation.epilogues import check_program, draw_operands, part_of_operand
from tconv.evaluation.equality import further_draws
from tconv.evaluation.poison import poisoned
from tconv.evaluation.precision import arithmetic, as_stated
from tconv.evaluation.reference import Operands, conv_transpose, exact
from tconv.evaluation.timing import STEADY, Call, Clock, by_turns, series
from tconv.evaluation.verdict import Series
from tconv.memory import laid_out
from tconv.planner import Gpu, Kernel
from tconv.planner.choice import replan
from tconv.planner.tuned import Question, Tuned
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.program import SUM, parse
from tconv.problem import Problem
from tconv.sandbox.gpu_memory import release
from tconv.tuning.jobs import Job
from tconv.tuning.trials import WRONG, Distance, Trial, caller, submit

#: Calls of each candidate: by turns in so many rounds of so many each, fewer where they are steady.
_ROUNDS, _EACH = 6, 5
#: A call of this many times the fastest says enough of a candidate, but for the planner's choice, which others replace.
_HOPELESS = 1.5
#: How much further out than the pooled error a single element may be, in units of the root mean square.
_WORST = 10

#: Is told how many kernels' work was done since the last time, and in few words what comes next.
Say = Callable[[float, str], None]


@dataclass(frozen=True)
class Answer:
    """What was found out about one question of a job.

    Args:
        first_ms: of the planner's own choice; None where that was discarded.
        tuned: the winner: the planner's own choice unless another is faster beyond the spread of both. None where no
            kernel was left.
        measured: every kernel that was timed, the fastest first.
    """

    job: Job
    question: Question
    pytorch_ms: float
    first_ms: float | None
    tuned: Tuned | None
    measured: tuple[Tuned, ...] = ()


@dataclass(frozen=True)
class Discarded:
    """A candidate that does not compile, or whose results are wrong: a bug in tconv."""

    job: Job
    kernel: Kernel[Any]
    reason: str


@dataclass(frozen=True)
class Tuner:
    """Measures on one GPU.

    Args:
        keep: is given the winners of each job as soon as they are known.
        device: where the tensors lie.
    """

    gpu: Gpu
    clock: Clock
    pool: Executor
    keep: Callable[[dict[Question, Tuned]], object]
    say: Say = field(default=lambda done, what: None)
    device: str = "cuda"

    def run(self, jobs: Sequence[Job]) -> Iterator[Answer | Discarded]:
        """Every candidate that is discarded, and the answers of each job after they are kept.

        Kernels are compiled while those of earlier jobs are measured.
        """
        self.say(0, "compiling")
        submitted = [[submit(_computed(job, k), k, self.gpu, self.pool) for k in job.kernels] for job in jobs]
        for job, trials in zip(jobs, submitted, strict=True):
            discarded: list[Discarded] = []
            answers = self._answers(job, [trial for trial in trials if trial is not None], discarded)
            found = {answer.question: answer.tuned for answer in answers if answer.tuned is not None}
            if found:
                self.keep(found)
            release()
            yield from discarded
            yield from answers

    def _answers(self, job: Job, trials: Sequence[Trial], discarded: list[Discarded]) -> list[Answer]:
        operands = _laid_out(draw(job.problem, torch.device(self.device), seed=0), job.channels_last)
        calls = self._checked(job, trials, operands, discarded)
        release()  # what was compared with
        self.say(0, f"{job.name}: timing {len(calls)} kernels and PyTorch's operator")
        pytorch = {strict: _pytorch(operands, job.problem, strict) for strict in map(_is_strict, job.questions)}
        self.clock.warm_up(next(iter(pytorch.values())))
        # The better of two: the first call may wait for what is loaded then.
        once = {kernel: min(self.clock.device_ms(call, 2)) for kernel, call in calls.items()}
        limit = _HOPELESS * min(once.values(), default=0)
        first = {candidates[0][0] for candidates in job.candidates if candidates}
        worth = {kernel: call for kernel, call in calls.items() if once[kernel] <= limit or kernel in first}
        keys = [*worth, *pytorch]
        named = {str(number): call for number, call in enumerate([*worth.values(), *pytorch.values()])}
        measured = by_turns(self.clock, named, rounds=_ROUNDS, each=_EACH, steady=STEADY)
        times: dict[Any, Series] = {kernel: Series(ms, ms, ms) for kernel, ms in once.items()}
        times.update({keys[int(number)]: series(found) for number, found in measured.items()})
        self.say(len(job.kernels) - len(trials) / 2, job.name)
        return [self._answer(job, number, times) for number in range(len(job.questions))]

    def _checked(
        self, job: Job, trials: Sequence[Trial], operands: Operands, discarded: list[Discarded]
    ) -> dict[Kernel[Any], Call]:
        """Calls of the kernels whose results are right."""
        expected, read = _expected(operands, job.problem)
        calls: dict[Kernel[Any], Call] = {}
        for number, trial in enumerate(trials, 1):
            self.say(0.5, f"{job.name}: checking kernel {number} of {len(trials)}")
            try:
                kernel, compiled = trial.compiled.result()
            except CompileError as error:
                discarded.append(Discarded(job, trial.kernel, f"does not compile: {error}".splitlines()[0]))
                continue
            plan = replan(_computed(job, trial.kernel), kernel, self.gpu)
            assert plan is not None, "it was launched by the same rule before"
            call = caller(plan, compiled.cubin, operands, job.channels_last, read=read)
            reason = why_wrong(call, expected, job.problem, WRONG[kernel.layer.precision])
            if reason is not None and job.problem.layer.epilogue:
                reason = self._why_unequal(_computed(job, trial.kernel), kernel, compiled.cubin)
            if reason is None:
                calls[trial.kernel] = call
            else:
                discarded.append(Discarded(job, trial.kernel, reason))
        return calls

    def _why_unequal(self, problem: Problem, kernel: Kernel[Any], cubin: bytes) -> str | None:
        """As `why_wrong` by the rules for programs, on as many samples as these take.

        A program may make more of a sum's rounding than the sum itself is in error, or have no value of it.
        """
        few = further_draws(problem)
        plan = replan(few, kernel, self.gpu)
        assert plan is not None, "fewer samples make no difference to that"

        def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *read: Tensor) -> Tensor:
            return caller(plan, cubin, Operands(x, weight, bias), False, read=read)()

        verdict = check_program(candidate, few, as_stated(few), device=self.device)
        return None if verdict.equal else f"its results are WRONG: {'; '.join(verdict.reasons)}"

    def _answer(self, job: Job, number: int, times: Mapping[Any, Series]) -> Answer:
        question, kernels = job.questions[number], [kernel for kernel, _ in job.candidates[number]]
        pytorch = times[_is_strict(question)].median
        left = [kernel for kernel in kernels if kernel in times]
        if not left:
            return Answer(job, question, pytorch, None, None)
        best, first = min(left, key=lambda kernel: times[kernel].median), times.get(kernels[0])
        if first is not None and times[best].high >= first.low:
            best = kernels[0]
        in_order = sorted(left, key=lambda kernel: times[kernel].median)
        tuned, *measured = (
            Tuned(kernel.family, kernel.tile, times[kernel].median, pytorch, len(left)) for kernel in (best, *in_order)
        )
        return Answer(job, question, pytorch, None if first is None else first.median, tuned, tuple(measured))


def why_wrong(call: Callable[[], Tensor], expected: Tensor, problem: Problem, allowed: float) -> str | None:
    """What is wrong with a result, in words; None if nothing is. Memory that is not written counts as wrong."""
    with poisoned(expected.device, expected.numel() * problem.layer.item_bytes):
        got = call()
    distance = Distance.between(got, expected)
    if not distance.pooled <= allowed:
        return f"its results are WRONG by {distance.pooled:.1e}, pooled; allowed is {allowed:.0e}"
    if not distance.worst <= _WORST * allowed:
        return f"an element is WRONG by {distance.worst:.1e} of the others' size; allowed is {_WORST * allowed:.0e}"
    return None


def _computed(job: Job, kernel: Kernel[Any]) -> Problem:
    """The job's problem in the kernel's arithmetic."""
    asked = (question.problem_of(kernel.family) for question in job.questions)
    return next(problem for problem in asked if problem.layer.precision == kernel.layer.precision)


def _expected(operands: Operands, problem: Problem) -> tuple[Tensor, list[Tensor]]:
    """The float64 result, in float32 unless the problem is in float64, and what the layer's program reads for it."""
    program = parse(problem.layer.epilogue or SUM)
    read = draw_operands(program, problem, operands.x.device, seed=0)
    dtype = torch.float64 if problem.layer.precision == "fp64" else torch.float32
    expected = torch.empty(problem.output_shape, dtype=dtype, device=operands.x.device)
    for part in exact(operands, problem):
        there = [part_of_operand(each, part).double() for each in read]
        part.of(expected).copy_(evaluate(program, part.result, there))
    return expected, read


def _is_strict(question: Question) -> bool:
    """Whether the library asks this where PyTorch's flags do not allow TF32."""
    return question.problem.layer.precision == "fp32" and question.tensor_core_precision is None


def _pytorch(operands: Operands, problem: Problem, strict: bool) -> Callable[[], Tensor]:
    call = partial(conv_transpose, *operands, problem)
    if not strict:
        return call

    def in_full_precision() -> Tensor:
        with arithmetic("fp32"):
            return call()

    return in_full_precision


def _laid_out(operands: Operands, channels_last: bool) -> Operands:
    """Input and weight as a model in channels_last has them, or contiguous."""
    x, weight = (laid_out(tensor, channels_last) for tensor in operands[:2])
    return Operands(x, weight, operands.bias)
