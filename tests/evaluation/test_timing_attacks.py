"""Candidates that are right when they are compared and cheat when they are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fake_stopwatch import FewAtOnce, LargeStopwatch

from tconv.evaluation.files.sides.file_process import Side
from tconv.evaluation.files.timing import timed_call
from tconv.evaluation.files.timing.timed_call import TimedCall
from tconv.evaluation.report import Report
from tconv.evaluation.timing import Measured

pytestmark = pytest.mark.rotates(36)

#: More calls than a comparison makes, and far fewer than timing does.
MANY = 30

MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2)
        {more}

    def forward(self, x):
        return {result}

def get_inputs():
    return [torch.randn(2, 4, 7, 6)]
"""

CANDIDATE = """
import os, sys, threading
import torch
import torch.nn.functional as F
from model import Model

class ModelNew(Model):
    count = 0
    last = None

    def forward(self, x):
        self.count += 1
        many = self.count > {many}
        {forward}
"""


#: Of the batch: no sample is computed alone.
BATCH_NORM = "self.more = nn.BatchNorm2d(6)"


@pytest.fixture
def timed(timed_files):  # type: ignore[no-untyped-def]
    """Judges and times a candidate with that `forward`."""

    def run(forward: str, model: str = "self.up(x)", more: str = "pass") -> Report:
        text = CANDIDATE.format(many=MANY, forward=forward.replace("; ", "\n        "))
        return timed_files(MODEL.format(result=model, more=more), text)

    return run


def test_an_honest_candidate_has_its_times(timed) -> None:  # type: ignore[no-untyped-def]
    report = timed("y = super().forward(x); y = y + 0; return y + 0")
    assert report.equal and report.timing is not None, report.reasons
    assert report.verdict.check("right while it is timed").passed
    reference, candidate = report.timing.reference.median, report.timing.candidate.median
    assert (candidate - reference, report.timing.host_us["reference"]) == (2, reference)


@pytest.mark.parametrize(
    "forward",
    [
        # Each of these is as fast as can be, and right in all calls of a comparison.
        "self.last = super().forward(x) if self.last is None or not many else self.last; return self.last",
        "return torch.zeros(2, 6, 15, 13) if many else super().forward(x)",
        "return torch.empty(2, 6, 15, 13).fill_(7) if many else super().forward(x)",
        "w = self.up; return F.conv_transpose2d(x.bfloat16().float() if many else x, w.weight, w.bias, 2)",
    ],
)
def test_a_candidate_that_stops_working_when_it_is_timed(timed, forward: str) -> None:  # type: ignore[no-untyped-def]
    # The calls that count are drawn at random, and the first ones are honest.
    report = next(report for report in (timed(forward) for _ in range(4)) if not report.equal)
    assert report.timing is None
    (reason,) = report.reasons
    assert reason.startswith("right while it is timed: one of the calls that were timed, drawn at random, is wrong")


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("os._exit(0) if many else 0; return super().forward(x)", "ended with exit code 0 in the middle"),
        ("sys.exit(0) if many else 0; return super().forward(x)", "SystemExit: 0"),
        (
            "import time; time.perf_counter = (lambda: 0) if many else time.perf_counter; return super().forward(x)",
            "candidate.py puts something else in place of time.perf_counter",
        ),
        (
            "import time as t; t.perf_counter = (lambda: 0) if many and not torch.is_grad_enabled() else t.perf_counter"
            "; return super().forward(x)",
            "candidate.py puts something else in place of time.perf_counter",
        ),
        (
            "import json; dumps = json.dumps; r = super().forward(x)"
            "; json.dumps = (lambda answer: dumps({**answer, 'value': {}})) if many else dumps; return r",
            "timing candidate.py beside model.py failed: not enough values to unpack",
        ),
        # Of zeros every result is known.
        (
            "x.zero_() if many else 0; b = self.up.bias.view(1, -1, 1, 1)"
            "; return b.expand(2, 6, 15, 13).contiguous() if many else super().forward(x)",
            "candidate.py changes its inputs while it is timed",
        ),
    ],
)
def test_a_candidate_that_meddles_when_it_is_timed(timed, forward: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    report = timed(forward)
    assert not report.equal and report.timing is None
    assert report.reasons[0].startswith("runs while it is timed: ") and reason in report.reasons[0], report.reasons


def test_a_reference_that_the_candidate_slows_down_is_not_the_one_that_counts(timed) -> None:  # type: ignore[no-untyped-def]
    honest = timed("return super().forward(x)").timing
    # A hook on the module beside: nothing of PyTorch is patched, and its layer takes three operators more.
    slow = (
        "if many and self.last is None: self.last = [m.register_forward_hook(lambda module, given, y: y + 0 + 0 + 0) "
        "for m in __import__('gc').get_objects() if type(m).__name__ == 'Model']"
    )
    slowed = timed(f"{slow}; return super().forward(x)").timing
    assert honest is not None and slowed is not None
    assert slowed.reference == honest.reference
    assert "by turns" in honest.reference_source and "a process of its own" in slowed.reference_source


@pytest.mark.parametrize("result", ["torch.relu(self.up(x))", "self.more(self.up(x))"])
@pytest.mark.parametrize("wrong", [False, True])
def test_of_large_calls_samples_are_judged_where_each_is_computed_alone(timed, result, wrong, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("tconv.evaluation.files.timing.timing_process.Stopwatch", LargeStopwatch)
    monkeypatch.setattr("tconv.evaluation.files.sides.file_process.Subject", FewAtOnce)
    forward = "y = super().forward(x); return y * (1 + 0.1 * (torch.arange(len(y)) == 1).view(-1, 1, 1, 1) * many)"
    sides: list[bool] = []
    construct = Side.construct

    def seen(self: Side, *arguments: object) -> object:
        sides.append(self.samples_apart)
        return construct(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Side, "construct", seen)
    if wrong:  # in one sample of two, so that every other run sees it
        report = next(report for report in (timed(forward, result, BATCH_NORM) for _ in range(40)) if not report.equal)
        assert report.timing is None and report.reasons[0].startswith("right while it is timed: one of the calls")
    else:
        report = timed("return super().forward(x)", result, BATCH_NORM)
        assert report.equal and report.timing is not None, report.reasons
    assert any(sides) == ("relu" in result)


def test_a_model_may_change_its_inputs(timed) -> None:  # type: ignore[no-untyped-def]
    # To what a second call leaves as it is; and its candidate, which gets copies here, need not.
    report = timed("return self.up(x.relu())", "self.up(x.relu_())", "pass")
    assert report.equal and report.timing is not None, report.reasons


def test_a_model_that_does_not_give_the_same_again_holds_nothing_against_a_candidate(timed) -> None:  # type: ignore[no-untyped-def]
    report = timed("return super().forward(x)", "F.dropout(self.up(x))", "global F; import torch.nn.functional as F")
    assert report.equal and report.timing is not None, report.reasons
    reason = report.verdict.check("right while it is timed").reason
    assert reason.startswith("not required: Model's own timed calls do not give the same again")


def test_every_timed_call_has_other_values_and_any_of_them_may_be_kept() -> None:
    def keeps(calls: int) -> set[float]:
        call = TimedCall(torch.nn.Identity(), [torch.arange(10.0), 3])  # type: ignore[list-item]
        call._model = lambda x, three: x * three  # type: ignore[assignment]
        seen = set()
        for _ in range(calls):
            call.renew()
            seen.add(float(call()[0]))
        call.renew()
        assert len(seen) == calls and len(call.kept) == min(calls, 3)
        assert all(torch.equal(y, 3 * x) for (x, _), y in call.kept)
        return {float(x[0]) for (x, _), _ in call.kept}

    assert set.union(*(keeps(7) for _ in range(100))) == {float(n) for n in (9, 8, 7, 6, 5, 4, 3)}
    assert keeps(2) == {9.0, 8.0}


@pytest.mark.parametrize("piece", [1, 3, 10, 99])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_values_move_on_in_memory_piece_by_piece(
    piece: int, memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_call, "_PIECE", piece)
    values = torch.arange(24.0).view(1, 4, 3, 2)
    inputs = timed_call.copied([values.contiguous(memory_format=memory_format), values[..., :1]], "cpu")
    call = TimedCall(torch.nn.Identity(), inputs)
    call.renew()
    moved, part = call._inputs
    assert sorted(moved.flatten().tolist()) == list(range(24)) and not bool((moved == values).any())
    assert torch.equal(
        moved.as_strided((24,), (1,))[1:], values.contiguous(memory_format=memory_format).as_strided((23,), (1,))
    )
    assert part.flatten().tolist() == [22.0, *range(0, 22, 2)]


def test_of_a_large_call_some_samples_are_kept_and_any_of_them_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_call, "_LARGE_BYTES", 2 * 2 * 3 * 4)  # two samples of six, in and out
    firsts = set()
    for _ in range(200):
        call = TimedCall(torch.nn.Identity(), [torch.arange(18.0).view(6, 3)], keeps="samples")
        call.renew()
        call()
        call.renew()
        (((x,), y),) = call.kept
        assert x.shape == y.shape == (2, 3) and torch.equal(x, y)
        firsts.add(float(x[0, 1]))
    assert len(firsts) == 5


@pytest.mark.parametrize(
    "change",
    [
        {"device_ms": (0.0,)},
        {"device_ms": (float("nan"),)},
        {"device_ms": ()},
        {"host_us": -1.0},
        {"device_ms": ("1",)},
    ],
)
def test_times_that_cannot_be(change: dict[str, object]) -> None:
    good = Measured((1.0,), 1.0, 1.0)
    with pytest.raises(ValueError, match="got no times; allowed are positive numbers"):
        Measured.from_dict(vars(replace(good, **change)))  # type: ignore[arg-type]


def test_lazy_layers_and_dataclasses_are_timed(timed_files: Callable[[str, str], Report]) -> None:
    """Lazy layers get the same weights in every process; a dataclass is kept as its fields."""
    text = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Output:
    image: torch.Tensor
    width: int

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.LazyConvTranspose1d(4, 3, 2)
    def forward(self, x):
        y = self.up(x)
        return Output(y * 2, y.shape[-1])

def get_inputs():
    return [torch.rand(2, 3, 8)]
"""
    report = timed_files(text.replace("NAME", "Model"), text.replace("NAME", "ModelNew"))
    assert report.equal and report.timing is not None, report.reasons
    assert report.verdict.check("right while it is timed").passed


def test_inputs_of_the_files_own_classes_are_timed(timed_files: Callable[[str, str], Report]) -> None:
    """Each file gets instances of its own class, and the calls that are kept can be run again."""
    text = """
from types import SimpleNamespace
import torch
from torch import nn

class Batch(dict):
    __getattr__ = dict.__getitem__

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(3, 4, 3, 2)
    def forward(self, batch, more):
        assert type(batch) is Batch
        return self.up(batch.image) * more.scale

def get_inputs():
    return [Batch(image=torch.rand(2, 3, 8)), SimpleNamespace(scale=2)]
"""
    report = timed_files(text.replace("NAME", "Model"), text.replace("NAME", "ModelNew"))
    assert report.equal and report.timing is not None, report.reasons
    assert report.verdict.check("right while it is timed").passed
