"""Tuning on a GPU, to the end: measured, kept, taken by the library, and right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tconv
from tconv import routes
from tconv.evaluation.precision import resolve
from tconv.evaluation.stopwatch import CudaClock
from tconv.jit import tuned
from tconv.jit.loader import gpu_of
from tconv.problem import Layer, Problem
from tconv.sandbox.trace import Trace, TracedLayer
from tconv.settings import settings
from tconv.tuning.compilers import compilers
from tconv.tuning.jobs import jobs
from tconv.tuning.measure import Answer, Tuner

pytestmark = pytest.mark.gpu
PROBLEM = Problem(Layer(2, 128, 64, (1, 4, 4), (1, 2, 2), (0, 1, 1)), 4, (1, 32, 32))


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TCONV_INSIST")
    settings.cache_clear()
    tuned.answers.cache_clear()
    monkeypatch.setattr(routes, "_routes", {})
    yield
    settings.cache_clear()
    tuned.answers.cache_clear()


@pytest.mark.parametrize("channels_last", [False, True])
def test_what_is_measured_is_what_runs(channels_last: bool) -> None:
    gpu = gpu_of(torch.cuda.current_device())
    device = torch.device("cuda")
    trace = Trace((TracedLayer("up", PROBLEM),))
    found = jobs(trace, gpu, "match", lambda *asked: resolve(*asked, device=device), 6, channels_last)
    with compilers() as pool:
        answers = list(Tuner(gpu, CudaClock(), pool, lambda new: tuned.store(gpu, new)).run(found))
    assert len(answers) == len(found[0].questions)
    for answer in answers:
        assert isinstance(answer, Answer), "a kernel was wrong"
        assert answer.tuned is not None and answer.first_ms is not None
        assert 0 < answer.tuned.milliseconds <= answer.first_ms and answer.pytorch_ms > 0
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(PROBLEM.input_shape, device="cuda").to(memory_format=memory_format)
    weight = torch.randn(PROBLEM.layer.weight_shape, device="cuda").to(memory_format=memory_format)
    explained = tconv.explain(x, weight, stride=2, padding=1)
    winner = answers[0].tuned
    if winner.prefers_pytorch:
        assert explained.runs == "pytorch" and "was measured faster on this GPU" in explained.reason
    else:
        assert explained.plan is not None and explained.plan.kernel.tile == winner.tile
        assert explained.plan.reasons[0].startswith("measured fastest of")
    got = tconv.conv_transpose2d(x, weight, stride=2, padding=1)
    expected = torch.nn.functional.conv_transpose2d(x.double(), weight.double(), stride=2, padding=1)
    assert float((got - expected).norm() / expected.norm()) < 2e-3
    assert got.is_contiguous(memory_format=memory_format)
