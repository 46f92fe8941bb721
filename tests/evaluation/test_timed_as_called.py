"""Files timed as programs call them, a process a side, and in PyTorch's other ways; times are numbers of operators."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fake_stopwatch import CompilingStopwatch

from tconv.evaluation.files.timing import two_files
from tconv.evaluation.report import Report
from tconv.evaluation.timing import Called
from tconv.evaluation.verdict import AsCalled, Timing

pytestmark = pytest.mark.rotates(12)

MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class NAME(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, channels, 3, stride=2)
        MORE

    def forward(self, x):
        y = self.up(x)
        BODY

def get_inputs():
    return [torch.randn(2, 4, 7, 6)]
"""
PLAIN = "return y"
#: So many operators more.
SLOWLY = "return y + 0 + 0 + 0 + 0"
Run = Callable[..., Report]


def text(body: str, name: str = "ModelNew", more: str = "pass") -> str:
    return MODEL.replace("NAME", name).replace("BODY", body.replace("; ", "\n        ")).replace("MORE", more)


class Side:
    """One that keeps what it was asked for; its calls take so many milliseconds."""

    def __init__(self, name: str, milliseconds: float, asked: list[tuple[str, int]]) -> None:
        self._name, self._milliseconds, self._asked = name, milliseconds, asked

    def begin(self, way: str, keeps: str) -> float:
        self._asked.append((self._name, 0))
        return self._milliseconds

    def called(self, way: str, count: int) -> Called:
        self._asked.append((self._name, count))
        return Called((self._milliseconds,) * count, (2 * self._milliseconds,) * count)


def test_sides_take_turns_and_the_slower_one_decides_how_many_calls_there_are() -> None:
    asked: list[tuple[str, int]] = []
    sides = {"candidate": Side("candidate", 1.0, asked), "reference": Side("reference", 40.0, asked)}
    found = two_files._by_turns(sides, "default", dict.fromkeys(sides, "calls"))  # type: ignore[arg-type]
    there = [("candidate", 10), ("reference", 10)]
    assert asked == [("candidate", 0), ("reference", 0), *there, *there[::-1], *there, *there[::-1], *there]
    assert found["candidate"] == Called((1.0,) * 50, (2.0,) * 50)
    assert found["reference"] == Called((40.0,) * 50, (80.0,) * 50)
    assert len(two_files._by_turns(sides, "default", dict.fromkeys(sides, "calls"), 2)["candidate"].wall_ms) == 20  # type: ignore[arg-type]


@pytest.fixture
def timed(timed_files: Run) -> Run:
    """Times a candidate of that body beside a model of another."""

    def run(body: str, model: str = PLAIN, more: str = "pass", of_model: str = "pass", **options: object) -> Report:
        return timed_files(text(model, "Model", of_model), text(body, more=more), **options)

    return run


def times_of(report: Report) -> tuple[Timing, AsCalled]:
    assert report.equal and report.timing is not None and report.timing.as_called is not None, report
    return report.timing, report.timing.as_called


def test_both_sides_are_called_as_they_are_constructed(timed: Run) -> None:
    """What either does in training, or with gradients, counts there and not in inference."""
    where = "if self.training and torch.is_grad_enabled(): y = y + 0 + 0"
    timing, called = times_of(timed(f"{where}; return y", f"{where}; return y"))
    assert timing.reference.median - called.reference.median == timing.candidate.median - called.candidate.median < 0
    assert called.calls == 100
    told = json.loads(json.dumps(timing.to_dict()))
    for sides in (told, told["as_called"]):
        assert sides["candidate"]["low"] < sides["candidate"]["high"]
        assert sides["alternatives"].keys() == {"cudnn.benchmark", "channels_last"}
        assert all(each["low"] < each["high"] for each in sides["alternatives"].values())
    assert [check["passed"] for check in told["checks"]] == [True] * 4


@pytest.mark.parametrize("condition", ["torch.is_grad_enabled()", "self.training"])
def test_what_is_fast_in_inference_alone_is_slower_as_it_is_called(timed: Run, condition: str) -> None:
    timing, called = times_of(timed(f"if {condition}: y = y + 0 + 0 + 0 + 0 + 0; return y", SLOWLY))
    assert timing.speedup > 1 and not timing.slower
    assert called.speedup < 1 and called.slower


def test_work_behind_the_call_counts_as_the_host_sees_it(timed: Run) -> None:
    honest = times_of(timed(PLAIN))[1]
    timing, called = times_of(timed(PLAIN, more="self.later = 7"))
    assert called.candidate.median - honest.candidate.median == 7 and called.reference == honest.reference
    disagreeing = [check.name for check in timing.checks if not check.passed]
    assert disagreeing == ["candidate as called: events and the host's clock agree"]


def test_a_candidate_that_stops_working_where_it_is_called_plainly_is_refused(timed: Run) -> None:
    """Honest in the few calls of a comparison, and without gradients."""
    cheat = "self.n = getattr(self, 'n', 0) + 1; return y * 0 if self.n > 30 and torch.is_grad_enabled() else y"
    reports = (timed(cheat) for _ in range(4))
    report = next(report for report in reports if not report.equal)
    assert report.timing is None and "right while it is timed: one of the calls that were timed" in report.reasons[0]


@pytest.mark.parametrize("side", ["candidate", "model"])
def test_what_does_not_run_with_gradients_is_timed_in_inference_alone(timed: Run, side: str) -> None:
    body = "if torch.is_grad_enabled() and self.training: raise ValueError('no training here'); return y"
    report = timed(body, PLAIN if side == "candidate" else body)
    assert report.equal and report.timing is not None, report.reasons
    assert report.timing.as_called is None
    (note,) = report.timing.notes
    assert note.startswith("not timed as called: ") and note.endswith("ValueError: no training here (in forward)")


def test_what_has_no_room_for_gradients_is_timed_in_inference_alone(timed: Run) -> None:
    words = "CUDA out of memory. Tried to allocate 9.00 GiB"
    many = "self.n = getattr(self, 'n', 0) + 1; many = self.n > 30 and torch.is_grad_enabled()"
    report = timed(f"{many}; if many: raise torch.OutOfMemoryError('{words}'); return y")
    assert report.equal and report.timing is not None and report.timing.as_called is None, report.reasons
    assert report.timing.notes == (f"not timed as called: {words}",)


def test_a_model_without_evaluation_is_timed_as_it_was_constructed(timed: Run) -> None:
    body = "if not self.training: raise ValueError('only training'); return y + 0"
    report = timed("return y + 0", body)
    timing, _ = times_of(report)
    assert timing.settings["inference"] == "as constructed, no_grad()" and timing.speedup == 1.0


def test_inference_is_in_evaluation(timed: Run) -> None:
    """A norm of the batch's statistics, dropout: both are other operators there, and what is judged is theirs."""
    norm = "self.norm = nn.BatchNorm2d(6)"
    body = "return F.dropout(self.norm(y), 0.5, self.training)"
    report = timed(body, body, more=norm, of_model=norm)
    timing, called = times_of(report)
    assert timing.settings["inference"] == "eval(), no_grad()"
    assert called.candidate.median > timing.candidate.median
    many = "self.n = getattr(self, 'n', 0) + 1; many = self.n > 40 and not self.training"
    reports = (
        timed(f"{many}; return F.dropout(self.norm(y + many), 0.5, self.training)", body, norm, norm) for _ in range(4)
    )
    report = next(report for report in reports if not report.equal)
    assert "right while it is timed" in report.reasons[0]


def test_each_way_is_measured_where_none_of_the_others_has_run(timed: Run) -> None:
    """cuDNN keeps the plan that it took first: who ran the default has no benchmark."""
    first = "global FIRST; FIRST = globals().get('FIRST', torch.backends.cudnn.benchmark)"
    slow = "return y + 0 + 0 + 0 + 0 + 0 + 0 if FIRST and torch.backends.cudnn.benchmark else y"
    timing, called = times_of(timed(PLAIN, f"{first}; {slow}"))
    for sides in (timing, called):
        ways = {name: series.median for name, series in sides.alternatives.items()}
        assert round(ways["cudnn.benchmark"] - sides.reference.median) == 6
        assert ways["channels_last"] < ways["cudnn.benchmark"], "the flag is as it was"


def test_another_way_that_does_not_run_is_told_of(timed: Run) -> None:
    last = "is_contiguous(memory_format=torch.channels_last)"
    body = f"if x.{last} and self.up.weight.{last}: raise TypeError('rows only'); return y"
    timing, called = times_of(timed(PLAIN, body))
    assert timing.alternatives.keys() == called.alternatives.keys() == {"cudnn.benchmark"}
    (note,) = timing.notes
    assert note.startswith("PyTorch with channels_last was not timed: model.py line ") and "rows only" in note


def test_long_calls_are_fewer_and_that_is_said(timed: Run) -> None:
    # Each operator takes a millisecond; 40 operators and more are calls of which a round holds less than 20.
    timing, called = times_of(timed("for _ in range(60): y = y + 0; return y", "return y + 0"))
    assert 10 <= called.calls < 100
    assert timing.notes == (f"timed as called {called.calls} times instead of 100, since a call takes long",)


@pytest.fixture
def compiling(timed: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("tconv.evaluation.files.timing.timing_process.Stopwatch", CompilingStopwatch)
    return timed


def test_both_are_compiled_where_that_is_asked_for(compiling: Run) -> None:
    timing, called = times_of(compiling(SLOWLY, SLOWLY, compile=True))
    for sides in (timing, called):
        assert sides.compiled is not None and sides.compiled.median < sides.candidate.median - 3
        assert sides.alternatives["torch.compile"].median == sides.compiled.median
        assert sides.best_alternative == "torch.compile" and not sides.best_compiled
    assert timing.notes == ()
    timing, called = times_of(compiling(SLOWLY, SLOWLY))
    assert timing.compiled is called.compiled is None and "torch.compile" not in timing.alternatives


@pytest.mark.parametrize("side", ["ModelNew", "Model"])
def test_what_does_not_compile_is_one_line(compiling: Run, side: str) -> None:
    more = {"more" if side == "ModelNew" else "of_model": "self.refused = True"}
    timing, called = times_of(compiling(SLOWLY, SLOWLY, compile=True, **more))
    (note,) = timing.notes
    name = "candidate" if side == "ModelNew" else "model"
    assert note.startswith(f"{side} under torch.compile was not timed: ") and "\n" not in note
    assert f"{name}.py: RuntimeError: no compiler that takes it (in torch.compile)" in note
    for sides in (timing, called):
        assert (sides.compiled is None) == (side == "ModelNew")
        assert ("torch.compile" in sides.alternatives) == (side == "ModelNew")
        assert sides.best_compiled == (side == "Model")


def test_what_is_wrong_when_it_is_compiled_has_no_time_there(compiling: Run) -> None:
    timing, called = times_of(compiling(SLOWLY, SLOWLY, more="self.spoils = 2", compile=True))
    assert timing.compiled is called.compiled is None and "torch.compile" in timing.alternatives
    (note,) = timing.notes
    assert note.startswith("ModelNew under torch.compile was not timed: one of the calls that were timed")
