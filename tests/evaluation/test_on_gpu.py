"""What only a GPU shows: PyTorch's own precision, poisoned device memory, and the clock."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from strict import judge
from torch import Tensor

from tconv.evaluation.equality import check_layer
from tconv.evaluation.precision import arithmetic, measured
from tconv.evaluation.reference import conv_transpose, rounded_tf32
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import Called, cross_check, interleave, quantile, settle_called
from tconv.evaluation.verdict import Level
from tconv.problem import TF32, Layer, Precision, Problem
from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.gpu

CORPUS = Path(__file__).parents[1] / "corpus"
DENSE = Problem(Layer(2, 64, 64, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=True), 4, (1, 32, 32), (0, 1, 1))
DEPTHWISE = Problem(Layer(2, 32, 32, (1, 4, 4), (1, 2, 2), (0, 1, 1), groups=32), 4, (1, 32, 32))


def test_pytorch_runs_full_precision_where_tf32_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert measured(DENSE, device=torch.device("cuda")) == "fp32"


def test_pytorch_runs_tf32_on_a_dense_layer_and_full_precision_on_a_depthwise_one() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 came with sm_80")
    assert measured(DENSE, device=torch.device("cuda")) in TF32
    assert measured(DEPTHWISE, device=torch.device("cuda")) == "fp32"


def test_tf32_is_refused_where_fp32_was_asked_for_though_pytorch_runs_tf32_by_default() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 came with sm_80")
    verdict = check_layer(lambda x, w, b: conv_transpose(x, w, b, DENSE), DENSE, "fp32", device="cuda", awkward=False)
    assert {check.name for check in verdict.checks if check.passed is False} >= {"every element", "pooled error"}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "fp64"])
@pytest.mark.parametrize("problem", [DENSE, DEPTHWISE])
def test_pytorch_itself_is_equal(problem: Problem, precision: Precision) -> None:
    problem = replace(problem, layer=replace(problem.layer, precision=precision))
    verdict = check_layer(lambda x, w, b: conv_transpose(x, w, b, problem), problem, device="cuda", reach="phases")
    assert verdict.equal, verdict.reasons


def test_tf32_rounded_as_pytorch_rounds_it_is_close_and_the_other_way_is_not_held_against_it() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 came with sm_80")
    problem = Problem(Layer(2, 64, 64, (1, 3, 3)), 8, (1, 256, 256))
    theirs = measured(problem, device=torch.device("cuda"))
    for precision in TF32:

        def rounded(x: Tensor, weight: Tensor, bias: Tensor | None, precision: Precision = precision) -> Tensor:
            with arithmetic("fp32"):
                return conv_transpose(rounded_tf32(x, precision), rounded_tf32(weight, precision), bias, problem)

        verdict = check_layer(rounded, problem, "match", device="cuda", draw_count=1, awkward=False)
        assert verdict.equal, verdict.reasons
        close = verdict.check("close to PyTorch")
        assert close.passed is (True if precision == theirs else None), (precision, theirs, close)


@pytest.mark.parametrize("size", [1, 64, 1024])
def test_device_memory_is_poisoned(size: int) -> None:
    problem = Problem(Layer(2, 2, 2, (1, 1, 1)), 1, (1, size, size))

    def forgetful(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.empty(problem.output_shape, device="cuda")
        y[:, :1] = conv_transpose(x, weight, bias, problem)[:, :1]
        return y

    verdict = check_layer(forgetful, problem, "tf32", device="cuda", draw_count=1, awkward=False)
    assert verdict.check("every element written").passed is False
    assert "[0, 1, 0, 0] was not written" in verdict.check("every element written").reason


def test_the_clock_hides_the_host_and_counts_the_device() -> None:
    clock = CudaClock()
    tiny = torch.zeros(16, device="cuda")
    # An element-wise kernel takes a few microseconds on any GPU, its launch as many on the host.
    assert quantile(clock.device_ms(lambda: tiny.add_(1), 10), 0.5) < 0.02
    short, long = (quantile(clock.device_ms(lambda c=c: torch.cuda._sleep(c), 5), 0.5) for c in (200_000, 2_000_000))
    assert long / short == pytest.approx(10, rel=0.2)


def test_every_call_starts_with_a_cold_cache() -> None:
    """16 MiB, which fit into the L2 of a large GPU: a second read of them is faster than the first, from memory."""
    clock = CudaClock()
    data = torch.zeros(2**22, device="cuda")

    def many() -> None:
        for _ in range(50):
            data.sum()

    cold = quantile(clock.device_ms(lambda: data.sum(), 20), 0.5)
    warm = quantile(clock.device_ms(many, 5), 0.5) / 50
    assert cold > 1.15 * warm


def test_work_on_another_stream_is_seen_by_the_cross_check() -> None:
    clock = CudaClock()
    side = torch.cuda.Stream()

    def elsewhere() -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(5_000_000)

    found = interleave(clock, {"elsewhere": elsewhere, "here": lambda: torch.cuda._sleep(5_000_000)}, rounds=2, each=5)
    assert cross_check("here", found["here"]).passed
    assert cross_check("elsewhere", found["elsewhere"]).passed is False


def test_a_call_as_programs_make_it_holds_the_hosts_part_and_both_clocks_agree() -> None:
    clock = CudaClock()
    tiny = torch.zeros(16, device="cuda")

    def slow_host() -> None:
        end = time.perf_counter() + 2e-3
        while time.perf_counter() < end:
            pass
        tiny.add_(1)

    assert quantile(clock.device_ms(slow_host, 10), 0.5) < 0.02
    assert clock.warm_called(slow_host) == pytest.approx(2, rel=0.5)
    found = {}
    for name, call in {"candidate": slow_host, "reference": lambda: torch.cuda._sleep(5_000_000)}.items():
        found[name] = Called(*map(tuple, clock.called_ms(call, 20)))
    series, checks = settle_called(found, {})
    assert [check.passed for check in checks] == [True, True], checks
    assert series["candidate"].median == pytest.approx(2, rel=0.1)


def test_such_a_call_with_work_on_another_stream_has_the_hosts_time() -> None:
    clock = CudaClock()
    side = torch.cuda.Stream()

    def elsewhere() -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(5_000_000)

    calls = {"candidate": elsewhere, "reference": lambda: torch.cuda._sleep(5_000_000)}
    found = {name: Called(*map(tuple, clock.called_ms(call, 10))) for name, call in calls.items()}
    series, checks = settle_called(found, {})
    assert [check.passed for check in checks] == [False, True], checks
    assert series["candidate"].median == pytest.approx(series["reference"].median, rel=0.1)


@pytest.mark.parametrize("where", ["torch.is_grad_enabled()", "self.training"])
def test_what_is_slow_outside_inference_is_slower_as_it_is_called(
    workshop: Workshop, tmp_path: Path, where: str
) -> None:
    model, candidate = tmp_path / "model.py", tmp_path / "candidate.py"
    model.write_text(MODEL.replace("UP", "self.up(x)"))
    body = f"(torch.cuda._sleep(2_000_000) if {where} and x.is_cuda else 0, self.up(x))[1]"
    candidate.write_text(MODEL.replace("class Model(", "class ModelNew(").replace("UP", body))
    report = judge(model, candidate, bench=True, level="default", workshop=workshop)
    assert report.equal and report.timing is not None and report.timing.as_called is not None, report.reasons
    assert report.timing.speedup == pytest.approx(1, rel=0.35)
    assert report.timing.as_called.slower and report.timing.as_called.speedup < 0.5


def test_both_under_torch_compile(workshop: Workshop, tmp_path: Path) -> None:
    """Where there is a compiler, a layer's epilogue is one kernel; where there is none, a line says so."""
    text = MODEL.replace("UP", "(self.up(x).relu() * 2 + 1).sigmoid().tanh().relu()")
    model, candidate = tmp_path / "model.py", tmp_path / "candidate.py"
    model.write_text(text)
    candidate.write_text(text.replace("class Model(", "class ModelNew("))
    report = judge(model, candidate, bench=True, compile=True, level="default", workshop=workshop)
    timing = report.timing
    assert report.equal and timing is not None and timing.as_called is not None, report.reasons
    if timing.notes:
        assert all(" under torch.compile was not timed: " in note for note in timing.notes)
        pytest.skip(timing.notes[0])
    for sides in (timing, timing.as_called):
        assert sides.compiled is not None
        # As called, the host's part is most of it, and differs from process to process.
        assert sides.compiled.median == pytest.approx(sides.alternatives["torch.compile"].median, rel=0.6)


def test_a_candidate_that_is_pytorch_itself_is_as_fast(workshop: Workshop) -> None:
    report = judge(CORPUS / "model.py", CORPUS / "honest_functional.py", bench=True, workshop=workshop)
    assert report.equal and report.timing is not None
    timing, called = report.timing, report.timing.as_called
    assert called is not None and called.calls == 100 and timing.notes == ()
    for sides in (timing, called):
        assert sides.speedup == pytest.approx(1, rel=0.25)
        assert set(sides.alternatives) == {"cudnn.benchmark", "channels_last"}
        for series in (sides.candidate, sides.reference, *sides.alternatives.values()):
            assert 0 < series.low <= series.median <= series.high
    assert called.reference.median > timing.reference.median, "the host counts"
    assert [check.passed for check in timing.checks] == [True] * 4, timing.checks
    assert timing.settings["inference"] == "eval(), no_grad()"


MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 8, 3, 2)

    def forward(self, x):
        return UP

def get_inputs():
    return [torch.rand(4, 8, 16, 16)]
"""
#: Where a candidate launches, and behind what.
LAUNCHES = {
    "on the current stream": "HERE",
    "on the default stream": "self.there(x)",
    "on another stream that waits": "self.aside(x, True)",
    "on another stream that does not wait": "self.aside(x, False)",
}
METHODS = """
    def there(self, x):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return HERE

    def aside(self, x, waits):
        stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
        if waits:
            stream.wait_stream(here)
        with torch.cuda.stream(stream):
            y = HERE
        here.wait_stream(stream)
        return y
"""


@pytest.mark.parametrize("level", ["default", "strict"])
@pytest.mark.parametrize("here", ["self.up(x)", "torch.relu(self.up(x))"])  # one layer, and more
@pytest.mark.parametrize("launch", LAUNCHES)
def test_on_which_stream_a_candidate_launches(
    workshop: Workshop, tmp_path: Path, launch: str, here: str, level: Level
) -> None:
    model, candidate = tmp_path / "model.py", tmp_path / "candidate.py"
    model.write_text(MODEL.replace("UP", here))
    text = MODEL.replace("class Model(", "class ModelNew(").replace("UP", LAUNCHES[launch])
    candidate.write_text(text.replace("\ndef get_inputs", METHODS + "\ndef get_inputs").replace("HERE", here))
    report = judge(model, candidate, level=level, workshop=workshop)
    waits = launch in ("on the current stream", "on another stream that waits")
    assert report.equal is (waits or level == "default"), report.reasons
    assert report.verdict.default_stream_only is not waits
    assert waits or level == "default" or "launch on the current stream" in report.reasons[0]
