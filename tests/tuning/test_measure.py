"""What is tried, what is found wrong, and who wins. Kernels are PyTorch's operator here, and times are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from tconv.errors import CompileError
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.timing import Call, nothing
from tconv.jit.compile import Compiled
from tconv.memory import memory_format
from tconv.planner import Gpu, Kernel, Plan
from tconv.planner.mma.builder import with_pipeline
from tconv.planner.tuned import Question, Tuned
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.program import SUM, parse
from tconv.precision import allows_tf32
from tconv.problem import Layer, Precision, Problem
from tconv.sandbox.trace import Trace, TracedLayer
from tconv.tuning import measure, trials
from tconv.tuning.jobs import Job, jobs
from tconv.tuning.measure import Answer, Discarded, Tuner
from tconv.tuning.trials import Distance, submit

H200 = Gpu.h200()
DENSE = Problem(Layer(2, 16, 8, (1, 4, 4), (1, 2, 2), (0, 1, 1)), 2, (1, 8, 8))
DEPTHWISE = Problem(Layer(1, 8, 8, (1, 1, 4), (1, 1, 2), groups=8), 2, (1, 1, 20))
HALF = replace(DENSE, layer=replace(DENSE.layer, precision="fp16"))


def by_kind(problem: Problem, wanted: str) -> Precision:
    if problem.layer.precision != "fp32" or wanted == "fp32":
        return problem.layer.precision
    return "fp32" if problem.layer.groups > 1 else "tf32"


def jobs_of(*problems: Problem, wanted: Any = "match", tf32: bool = True, **options: Any) -> list[Job]:
    found = Trace(tuple(TracedLayer(f"layer {i}", problem) for i, problem in enumerate(problems)), tf32)
    return jobs(found, H200, wanted, by_kind, options.pop("first", 4), **options)


class Pool(Executor):
    """Compiles at once, or not at all; what is in `refused` does not compile."""

    def __init__(self) -> None:
        self.refused: set[Any] = set()

    def submit(self, function: Any, kernel: Any, arch: Any) -> Future[Any]:  # type: ignore[override]
        done: Future[Any] = Future()
        if kernel.tile in self.refused:
            done.set_exception(CompileError("NVRTC refused it", "line 1\nline 2"))
        else:
            done.set_result((kernel, Compiled(b"cubin", 64, 0, 0, "", 0.1)))
        return done


class Clock:
    """A call takes the milliseconds that it says; PyTorch's operator takes 2, and 5 where TF32 is not allowed."""

    def warm_up(self, call: Call) -> None:
        call()

    def device_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        strict = getattr(call, "__name__", "") == "in_full_precision"
        return [getattr(call, "ms", 5.0 if strict else 2.0)] * count

    def synchronised_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        return self.device_ms(call, count)

    def host_us(self, call: Call, count: int, between: Call = nothing) -> float:
        return 1.0


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, pool: Pool) -> Callable[..., list[Any]]:
    """Tunes jobs whose kernels take the given times by their place among the job's, and change results as told."""
    kept: dict[Question, Tuned] = {}

    def run(
        found: list[Job],
        times: Callable[[Kernel[Any]], float] = lambda kernel: 1.0,
        spoil: Callable[[Kernel[Any], torch.Tensor], torch.Tensor] = lambda kernel, y: y,
    ) -> list[Any]:
        def caller(
            plan: Plan, cubin: bytes, operands: Operands, channels_last: bool, read: Sequence[torch.Tensor]
        ) -> Call:
            assert channels_last == found[0].channels_last
            assert operands.x.is_contiguous(memory_format=memory_format(operands.x.dim(), channels_last))
            program = parse(plan.kernel.layer.epilogue or SUM)

            def call() -> torch.Tensor:
                return spoil(plan.kernel, evaluate(program, conv_transpose(*operands, plan.problem), read).clone())

            call.ms = times(plan.kernel)  # type: ignore[attr-defined]
            return call

        monkeypatch.setattr(measure, "caller", caller)
        return list(Tuner(H200, Clock(), pool, kept.update, device="cpu").run(found))

    run.kept = kept  # type: ignore[attr-defined]
    return run


def test_every_distinct_problem_is_a_job() -> None:
    found = jobs_of(DENSE, DEPTHWISE, DENSE, replace(DENSE, batch=3))
    assert [(job.name, job.problem) for job in found] == [
        ("layer 0", DENSE),
        ("layer 1", DEPTHWISE),
        ("layer 3", replace(DENSE, batch=3)),
    ]
    assert all(2 <= len(candidates) <= 4 for job in found for candidates in job.candidates)


def test_a_job_asks_what_the_library_asks_and_what_a_file_asks() -> None:
    in_tf32 = replace(DENSE, layer=replace(DENSE.layer, precision="tf32"))
    (dense,), (grouped,), (half,) = jobs_of(DENSE), jobs_of(DEPTHWISE), jobs_of(HALF)
    assert dense.questions == (Question(DENSE, "tf32"), Question(in_tf32))
    assert grouped.questions == (Question(DEPTHWISE, "tf32"), Question(DEPTHWISE))
    assert half.questions == (Question(HALF),)
    assert jobs_of(DENSE, wanted="fp32")[0].questions == (Question(DENSE),)
    assert jobs_of(DENSE, tf32=False)[0].questions == (Question(DENSE),)


def test_channels_last_is_asked_where_it_exists() -> None:
    double = replace(DENSE, layer=replace(DENSE.layer, precision="fp64"))
    asked = [job.questions for job in jobs_of(DENSE, DEPTHWISE, double, channels_last=True)]
    weights_last = replace(DENSE, layer=replace(DENSE.layer, weights_last=True))
    assert asked[0] == (Question(weights_last, "tf32", True),)
    assert not any(question.channels_last for questions in asked[1:] for question in questions)
    (job, *_) = jobs_of(DENSE, channels_last=True)
    assert any(kernel.family == "mma" and kernel.tile.channels_last for kernel in job.kernels)


def test_a_layer_is_tried_with_the_program_behind_it() -> None:
    layers = [
        TracedLayer("up", DENSE, epilogues=("", "relu into 24")),
        TracedLayer("alone", DENSE),
        TracedLayer("again", DENSE, epilogues=("relu",)),
        TracedLayer("unknown", HALF, epilogues=("quantize",)),
    ]
    found = jobs(Trace(tuple(layers)), H200, "match", by_kind, 4, programs={"relu": "max(y, 0)", "sum": ""})
    behind = replace(DENSE, layer=replace(DENSE.layer, epilogue="max(y, 0)"))
    assert [(job.name, job.problem) for job in found] == [("up", behind), ("alone", DENSE), ("unknown", HALF)]
    assert all(question.problem.layer.epilogue == "max(y, 0)" for question in found[0].questions)
    assert all(kernel.layer.epilogue == "max(y, 0)" for kernel in found[0].kernels)


#: The second makes much of little: its kernels' and PyTorch's results are far apart where sums are near zero.
PROGRAMS = ["max(y * channel0, 0) + output1", "1 / y", "sqrt(y) + sqrt(output0)"]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("problem", [DENSE, HALF])
def test_a_kernel_is_checked_with_its_program(problem: Problem, program: str, tune: Callable[..., list[Any]]) -> None:
    (job,) = jobs_of(replace(problem, layer=replace(problem.layer, epilogue=program)))
    bad = job.candidates[0][0][0]
    found = tune([job], spoil=lambda kernel, y: y * 1.02 if kernel == bad else y)
    discarded = [one for one in found if isinstance(one, Discarded)]
    assert [one.kernel for one in discarded] == [bad] and "WRONG" in discarded[0].reason
    answers = [one for one in found if isinstance(one, Answer)]
    assert all(answer.tuned is not None and answer.question.problem.layer.epilogue == program for answer in answers)


def test_the_fastest_kernel_of_each_question_wins(tune: Callable[..., list[Any]]) -> None:
    (job,) = jobs_of(DENSE)
    library, file = ([kernel for kernel, _ in candidates] for candidates in job.candidates)
    times = {kernel: 1.5 for kernel in job.kernels} | {library[2]: 0.25, file[-1]: 0.5, library[0]: 1.0}
    assert {kernel.layer.precision for kernel in library} == {"fp32", "tf32"}
    assert {kernel.layer.precision for kernel in file} == {"tf32"}
    in_library, in_file = tune([job], lambda kernel: times[replace(kernel, wide_index=False)])
    assert in_library.tuned == Tuned(library[2].family, library[2].tile, 0.25, 2.0, len(library))
    assert (in_library.pytorch_ms, in_library.first_ms) == (2.0, 1.0)
    best = min(file, key=lambda kernel: times[kernel])
    assert in_file.tuned == Tuned(best.family, best.tile, times[best], 2.0, len(file))
    assert tune.kept == {in_library.question: in_library.tuned, in_file.question: in_file.tuned}  # type: ignore


def test_the_first_choice_stays_where_another_is_faster_within_the_spread(
    tune: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = jobs_of(HALF)
    first, second = (kernel for kernel, _ in job.candidates[0][:2])
    steady = Clock.device_ms

    def device_ms(self: Clock, call: Call, count: int, between: Call = nothing) -> list[float]:
        return [ms + spread * (number % 3) for number, ms in enumerate(steady(self, call, count))]

    monkeypatch.setattr(Clock, "device_ms", device_ms)
    times = {first: 1.0, second: 0.95}
    spread = 0.05
    (answer,) = tune([job], lambda kernel: times.get(replace(kernel, wide_index=False), 1.4))
    assert answer.tuned.tile == first.tile and answer.tuned.milliseconds == answer.first_ms
    spread = 0.01
    (answer,) = tune([job], lambda kernel: times.get(replace(kernel, wide_index=False), 1.4))
    assert answer.tuned.tile == second.tile and answer.first_ms > answer.tuned.milliseconds


def test_the_first_choice_is_timed_though_its_first_calls_were_slow(
    tune: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = jobs_of(HALF)
    first = job.candidates[0][0][0]
    steady = Clock.device_ms

    def device_ms(self: Clock, call: Call, count: int, between: Call = nothing) -> list[float]:
        busy = 3.0 if count == 2 and getattr(call, "ms", 0) == 1.0 else 0.0  # another program had the GPU
        return [ms + busy for ms in steady(self, call, count)]

    monkeypatch.setattr(Clock, "device_ms", device_ms)
    (answer,) = tune([job], lambda kernel: 1.0 if replace(kernel, wide_index=False) == first else 1.1)
    assert answer.tuned.tile == first.tile and answer.first_ms == 1.0


def test_pytorch_is_timed_under_the_flags_of_the_question(
    tune: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[bool] = []

    def recorded(*arguments: Any) -> torch.Tensor:
        allowed.append(allows_tf32())
        return conv_transpose(*arguments)

    monkeypatch.setattr(measure, "conv_transpose", recorded)
    library, file = tune(jobs_of(DEPTHWISE))
    assert (library.pytorch_ms, file.pytorch_ms) == (2.0, 5.0)
    assert allows_tf32()
    measure._pytorch(measure.draw(DENSE, torch.device("cpu"), 0), DENSE, strict=True)()
    assert allowed[-1] is False and allows_tf32()


def _one_element(y: torch.Tensor) -> torch.Tensor:
    y.view(-1)[y.numel() // 2] += 1.0
    return y


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        (lambda y: y * 1.01, "results are WRONG by 1.0e-02, pooled"),
        (_one_element, "WRONG by"),
        (lambda y: y.index_fill_(0, torch.tensor([1]), float("nan")), "WRONG by nan"),
        (lambda y: torch.empty_like(y), "WRONG"),
    ],
    ids=["all a little", "one element", "nan", "not written"],
)
@pytest.mark.parametrize("problem", [DENSE, HALF])
def test_a_wrong_kernel_is_discarded_however_fast(
    problem: Problem, spoiled: Any, says: str, tune: Callable[..., list[Any]]
) -> None:
    (job,) = jobs_of(problem)
    bad = job.candidates[0][0][0]
    found = tune(
        [job],
        lambda kernel: 0.1 if kernel == bad else 1.0,
        lambda kernel, y: spoiled(y) if kernel == bad else y,
    )
    discarded = [one for one in found if isinstance(one, Discarded)]
    answers = [one for one in found if isinstance(one, Answer)]
    assert len(discarded) == 1 and says in discarded[0].reason and discarded[0].kernel == bad
    assert all(answer.tuned.milliseconds == 1.0 for answer in answers) and answers[0].tuned.tile != bad.tile
    assert answers[0].first_ms is None and answers[0].tuned.tried == len(job.candidates[0]) - 1


def test_a_kernel_that_does_not_compile_is_discarded(tune: Callable[..., list[Any]], pool: Pool) -> None:
    (job,) = jobs_of(HALF)
    pool.refused = {job.candidates[0][1][0].tile}
    discarded, answer = tune([job])
    assert discarded.reason == "does not compile: NVRTC refused it"
    assert answer.tuned.tried == len(job.candidates[0]) - 1


def test_where_nothing_is_left_nothing_is_kept(tune: Callable[..., list[Any]]) -> None:
    (job,) = jobs_of(HALF)
    *discarded, answer = tune([job], spoil=lambda kernel, y: y + 1)
    assert len(discarded) == len(job.kernels)
    assert (answer.tuned, answer.first_ms, answer.pytorch_ms) == (None, None, 2.0)
    assert tune.kept == {}  # type: ignore[attr-defined]


def test_what_was_measured_is_kept_before_the_next_layer(
    tune: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(problem: Problem, *arguments: Any) -> Any:
        if problem == DEPTHWISE:
            raise KeyboardInterrupt
        return draw(problem, *arguments, seed=0)

    draw = measure.draw
    monkeypatch.setattr(measure, "draw", lambda problem, device, seed: drawn(problem, device))
    with pytest.raises(KeyboardInterrupt):
        tune(jobs_of(DENSE, DEPTHWISE))
    assert {question.problem for question in tune.kept} >= {DENSE}  # type: ignore[attr-defined]
    assert DEPTHWISE not in {question.problem for question in tune.kept}  # type: ignore[attr-defined]


def test_progress_adds_up_to_the_number_of_kernels(monkeypatch: pytest.MonkeyPatch, pool: Pool) -> None:
    steps: list[tuple[float, str]] = []

    def caller(plan: Plan, cubin: bytes, operands: Operands, channels_last: bool, read: object) -> Call:
        return partial(conv_transpose, *operands, plan.problem)

    monkeypatch.setattr(measure, "caller", caller)
    found = jobs_of(DENSE, DEPTHWISE)
    say = lambda done, what: steps.append((done, what))  # noqa: E731
    list(Tuner(H200, Clock(), pool, lambda _: None, say, "cpu").run(found))
    assert sum(done for done, _ in steps) == sum(len(job.kernels) for job in found)
    assert "layer 0: checking kernel 1 of" in " ".join(what for _, what in steps)


def test_a_kernel_that_does_not_run_these_sizes_is_not_compiled(pool: Pool) -> None:
    (job,) = jobs_of(DENSE)
    kernel = next(kernel for kernel in job.kernels if kernel.family == "mma")
    kernel = replace(kernel, tile=with_pipeline(kernel.tile, patch_columns=4))
    problem = job.questions[0].problem_of("mma")
    assert submit(problem, kernel, H200, pool) is not None
    assert submit(replace(problem, input_size=(1, 8, 7)), kernel, H200, pool) is None


def test_distance() -> None:
    expected = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert Distance.between(expected, expected) == Distance(0.0, 0.0)
    found = Distance.between(expected + torch.tensor([[0.0, 0.0], [0.0, 0.5]]), expected)
    assert found.pooled == pytest.approx(0.1) and found.worst == pytest.approx(0.5 / 2.5)


def test_distance_in_k_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    got, expected = torch.randn(7, 3, 5), torch.randn(7, 3, 5)
    whole = Distance.between(got, expected)
    monkeypatch.setattr(trials, "_K_TILE_ELEMENTS", 30)
    parts = Distance.between(got, expected)
    assert parts.pooled == pytest.approx(whole.pooled) and parts.worst == pytest.approx(whole.worst)
