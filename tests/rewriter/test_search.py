"""What the search of `tconv optimize` measures, keeps and says. Times are made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tconv.errors import Trouble
from tconv.planner import Gpu
from tconv.planner.choice import leading
from tconv.planner.tuned import Answers, Question, Tuned
from tconv.problem import Layer, Precision, Problem
from tconv.rewriter import search
from tconv.rewriter.search import Searched
from tconv.sandbox.trace import Trace, TracedLayer
from tconv.tuning.jobs import Job
from tconv.tuning.measure import Answer, Discarded

H200 = Gpu.h200()
UP = Problem(Layer(2, 64, 64, (1, 4, 4), (1, 2, 2), (0, 1, 1), precision="fp16"), 2, (1, 32, 32))
LAST = Problem(Layer(2, 64, 32, (1, 4, 4), (1, 2, 2), (0, 1, 1), precision="fp16"), 2, (1, 32, 32))
TRACE = Trace((TracedLayer("up", UP), TracedLayer("again", UP), TracedLayer("last", LAST, epilogues=("relu",))))
KEPT: list[dict[Question, Tuned]] = []


def as_it_is(problem: Problem, wanted: str) -> Precision:
    return problem.layer.precision


class Tuner:
    """Finds the third kernel of each job the fastest, and the second one wrong."""

    def __init__(self, gpu: Gpu, clock: object, pool: object, keep: Any) -> None:
        self.keep = keep

    def run(self, jobs: Sequence[Job]) -> Iterator[Answer | Discarded]:
        for job in jobs:
            yield Discarded(job, job.kernels[1], "its results are WRONG")
            for question, candidates in zip(job.questions, job.candidates, strict=True):
                best = candidates[2][0]
                times = [(best, 1.0), *((kernel, 2.0) for kernel, _ in candidates if kernel != best)]
                tuned, *others = (Tuned(kernel.family, kernel.tile, ms, 3.0, len(times)) for kernel, ms in times)
                found = Answer(job, question, 3.0, 2.0, tuned, (tuned, *others))
                assert found.tuned is not None
                self.keep({question: found.tuned})
                yield found


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(
        known: Answers = {},  # noqa: B006
        alone: bool = True,
        trouble: bool = False,
        programs: Mapping[str, str] = {},
    ) -> Searched:
        def store(gpu: Gpu, found: dict[Question, Tuned]) -> Path:
            if trouble:
                raise Trouble("no place")
            KEPT.append(found)
            return Path("tuned.json")

        KEPT.clear()
        monkeypatch.setattr(search, "Tuner", Tuner)
        monkeypatch.setattr(search, "CudaClock", lambda: None)
        monkeypatch.setattr(search, "store", store)
        pool: Any = None
        return search.search(TRACE, H200, pool, "match", as_it_is, known, alone, programs)

    return run


def test_every_distinct_layer_is_measured_once_and_kept(searched: Any) -> None:
    found = searched()
    assert [answer.job.name for answer in found.answers] == ["up", "last"]
    assert found.tuned[Question(UP)].tile == leading(Question(UP), H200, 12)[2][0].tile
    assert found.kept == "kept for the library in tuned.json" and [dict(found.tuned)] == KEPT
    assert len(found.mistakes) == 2 and found.mistakes[0].startswith("up: ") and "WRONG" in found.mistakes[0]


def test_what_was_measured_before_is_not_measured_again(searched: Any) -> None:
    before = searched().tuned
    assert [answer.job.name for answer in searched({Question(UP): before[Question(UP)]}).answers] == ["last"]
    assert searched(before) == Searched() and KEPT == []


def test_a_layer_is_measured_with_its_program(searched: Any) -> None:
    alone, programs = searched().tuned, {"relu": "max(y, 0)"}
    found = searched(alone, programs=programs)
    assert [answer.job.name for answer in found.answers] == ["last"]
    (question,) = found.tuned
    assert question.problem.layer.epilogue == "max(y, 0)" and question.alone() == Question(LAST)
    assert searched({**alone, **found.tuned}, programs=programs) == Searched()


def test_on_a_gpu_that_others_use_winners_are_for_the_file_alone(searched: Any) -> None:
    found = searched(alone=False)
    assert found.tuned and KEPT == []
    assert found.kept == "not kept for the library: other programs use this GPU"


def test_times_that_hold_the_work_of_others_choose_no_family(searched: Any) -> None:
    assert set(searched().measured) == set(searched().tuned)
    assert not searched(alone=False).measured


@pytest.mark.parametrize(("others", "shared"), [(0, False), (2**30, False), (3 * 2**30, True)])
def test_a_gpu_is_shared_where_others_have_more_than_contexts(
    others: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30 - others, 14 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 4 * 2**30)
    assert search.gpu_is_shared() == shared


def test_where_nothing_can_be_written_the_file_has_the_winners(searched: Any) -> None:
    found = searched(trouble=True)
    assert found.tuned and found.kept == "not kept for the library: no place"
