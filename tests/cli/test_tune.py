"""`tconv tune`: what it lists, what it shows and keeps, and what it says where it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tconv.cli import tune
from tconv.cli.app import app
from tconv.errors import MissingToolchain, Trouble
from tconv.jit import loader, toolchain, tuned
from tconv.planner import Gpu
from tconv.planner.tuned import Question, Tuned
from tconv.settings import settings
from tconv.tuning import measure
from tconv.tuning.compilers import compilers
from tconv.tuning.jobs import Job
from tconv.tuning.measure import Answer, Discarded

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = {layer}

    def forward(self, x):
        return self.up(x)

def get_inputs():
    return [torch.rand(2, 32, 16, 16)]
"""
pytestmark = [pytest.mark.rotates(4), pytest.mark.usefixtures("one_workshop")]  # each takes seconds
DENSE = "nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "cache"
    monkeypatch.setenv("TCONV_CACHE_DIR", str(directory))
    settings.cache_clear()
    tuned.answers.cache_clear()
    yield directory
    settings.cache_clear()
    tuned.answers.cache_clear()


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], str]:
    def write(layer: str) -> str:
        path = tmp_path / "model.py"
        path.write_text(MODEL.format(layer=layer))
        return str(path)

    return write


def tconv(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["tune", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("without_gpu")
def test_a_dry_run_lists_the_kernels_and_writes_nothing(model: Callable[[str], str], cache: Path) -> None:
    code, out, err = tconv(model(DENSE), "--dry-run", "--first", "5")
    assert (code, err) == (0, "")
    heads = re.findall(r"^up: (.*)$", out, re.MULTILINE)
    assert heads == ["2-D 32→16 k4 s2 p1 bias fp32 (tf32 on tensor cores) on 2x32x16x16"]
    lines = re.findall(r"^  ([\d.]+) ms  (\w+) (\w+): ([\w.]+ \d+, .*)$", out, re.MULTILINE)
    # As the library asks and as files do: what answers both is listed once.
    assert 5 < len(lines) < 10 and len({line[1:] for line in lines}) == len(lines)
    found = {(family, precision) for _, family, precision, _ in lines}
    on_tensor_cores = {(family, "tf32") for family in ("mma", "wgmma", "col2im", "col2im_wgmma")}
    assert found == {*on_tensor_cores, ("direct", "fp32"), ("direct", "tf32")}
    times = [float(milliseconds) for milliseconds, *_ in lines]
    assert times == sorted(times) and times[0] > 0
    assert out.splitlines()[-1] == (
        "Predicted for one NVIDIA H200 (sm_90a); there is no GPU here. Nothing was measured."
    )
    assert not cache.exists()


@pytest.mark.usefixtures("without_gpu")
def test_a_layer_is_tried_alone_and_with_what_stands_behind_it(model: Callable[[str], str]) -> None:
    code, out, _ = tconv(model(f"nn.Sequential({DENSE}, nn.ReLU())"), "--dry-run", "--first", "2")
    heads = re.findall(r"^up\.0: (.*)$", out, re.MULTILINE)
    alone, behind = "2-D 32→16 k4 s2 p1 bias fp32", "then max(y, 0) (tf32 on tensor cores) on 2x32x16x16"
    assert code == 0 and heads == [f"{alone} (tf32 on tensor cores) on 2x32x16x16", f"{alone} {behind}"]


@pytest.mark.usefixtures("without_gpu")
def test_precision_and_memory_format_of_a_dry_run(model: Callable[[str], str]) -> None:
    _, out, _ = tconv(model(DENSE), "--dry-run", "--first", "2", "--precision", "fp32")
    assert re.findall(r"^up: (.*)$", out, re.MULTILINE) == ["2-D 32→16 k4 s2 p1 bias fp32 on 2x32x16x16"]
    _, out, _ = tconv(model(DENSE), "--dry-run", "--first", "2", "--channels-last")
    heads = re.findall(r"^up: (.*)$", out, re.MULTILINE)
    told = "2-D 32→16 k4 s2 p1 bias fp32 weights channels_last (tf32 on tensor cores) on 2x32x16x16 channels_last"
    assert heads == [told]
    assert "channels_last 1" in out


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    ("layer", "options", "says"),
    [
        (DENSE, (), "tune measures on a GPU, and there is none here; --dry-run lists what it would try"),
        ("nn.Conv2d(32, 4, 2)", ("--dry-run",), "runs no transposed convolution: nothing to tune"),
        ("nn.ConvTranspose2d(5, 4, 2)", ("--dry-run",), "channels"),
    ],
)
def test_trouble_is_exit_2_with_one_line(
    layer: str, options: tuple[str, ...], says: str, model: Callable[[str], str]
) -> None:
    code, out, err = tconv(model(layer), *options)
    assert (code, out) == (2, "")
    assert err.startswith("tconv: ") and err.count("\n") == 1 and says in err


def test_nothing_to_try_is_wrong_usage(model: Callable[[str], str]) -> None:
    assert tconv(model(DENSE), "--first", "0")[0] == 2


# ---- as on a GPU: what is measured is made up

Findings = Callable[[Job], list[Any]]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Findings], None]:
    """Lets the command run as on an H200 on which every job has these findings."""
    gpu = replace(Gpu.h200(), arch="sm_90")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(loader, "gpu_of", lambda device: gpu)
    monkeypatch.setattr(toolchain, "check_driver", lambda: None)
    monkeypatch.setattr("tconv.evaluation.stopwatch.CudaClock", lambda: None)
    plan = tune._jobs
    monkeypatch.setattr(tune, "_jobs", lambda *given, device: plan(*given, device="cpu"))

    def prepare(findings: Findings) -> None:
        class Tuner:
            def __init__(self, gpu: Gpu, clock: object, pool: object, keep: Any, say: Any) -> None:
                self.keep, self.say = keep, say

            def run(self, jobs: list[Job]) -> Iterator[Any]:
                for job in jobs:
                    self.say(len(job.kernels), job.name)
                    found = findings(job)
                    answers = [one for one in found if isinstance(one, Answer) and one.tuned]
                    if answers:
                        self.keep({answer.question: answer.tuned for answer in answers})
                    yield from found

        monkeypatch.setattr(measure, "Tuner", Tuner)

    return prepare


def answered(job: Job, ours: float, pytorch: float) -> list[Any]:
    kernel, _ = job.candidates[0][1]
    found = Tuned(kernel.family, kernel.tile, ours, pytorch, 12)
    return [Answer(job, question, pytorch, 2 * ours, found) for question in job.questions]


def test_what_was_measured_is_shown_and_kept(
    on_gpu: Callable[[Findings], None], model: Callable[[str], str], cache: Path
) -> None:
    on_gpu(lambda job: answered(job, 0.25, 0.5))
    code, out, err = tconv(model(DENSE))
    assert (code, err) == (0, "")
    header, first, second, last = (line.rstrip() for line in out.splitlines())
    assert header.split("  ")[0] == "layer" and header.endswith("plan")
    assert re.fullmatch(r"up +2-D 32→16 .* \(tf32 on tensor cores\) on \S+ +0\.5 +0\.5 +0\.25 +2\.00x +\w+", first)
    assert re.fullmatch(r"up +2-D 32→16 k4 s2 p1 bias tf32 on \S+ +0\.5 +0\.5 +0\.25 +2\.00x +\w+", second)
    path = cache / "tuned" / "nvidia-h200.json"
    assert last == f"Kept in {path}" and path.exists()
    kept = tuned.answers("NVIDIA H200")
    assert {question.tensor_core_precision for question in kept} == {"tf32", None}
    assert all(isinstance(question, Question) and one.milliseconds == 0.25 for question, one in kept.items())


def test_where_pytorch_is_faster_the_table_says_so(
    on_gpu: Callable[[Findings], None], model: Callable[[str], str]
) -> None:
    on_gpu(lambda job: answered(job, 0.5, 0.25))
    code, out, _ = tconv(model(DENSE))
    assert code == 0 and out.count("PyTorch, which is faster than mma") + out.count("than direct") == 2


def test_a_wrong_kernel_is_reported_loudly(on_gpu: Callable[[Findings], None], model: Callable[[str], str]) -> None:
    def findings(job: Job) -> list[Any]:
        return [Discarded(job, job.kernels[0], "its results are WRONG by 1e+00 [so]"), *answered(job, 0.25, 0.5)]

    on_gpu(findings)
    code, out, err = tconv(model(DENSE))
    assert code == 1 and "Kept in" in out
    assert err.startswith("up: ") and "WRONG by 1e+00 [so]. Not used" in err and err.count("\n") == 1


def test_a_layer_without_a_kernel_is_pytorchs(
    on_gpu: Callable[[Findings], None], model: Callable[[str], str], cache: Path
) -> None:
    on_gpu(lambda job: [Answer(job, job.questions[0], 0.5, None, None)])
    code, out, _ = tconv(model(DENSE))
    assert code == 0 and "PyTorch: no kernel" in out and "Kept" not in out
    assert list((cache / "tuned").iterdir()) == []


def test_an_interrupt_shows_and_keeps_what_was_done(
    on_gpu: Callable[[Findings], None], model: Callable[[str], str], cache: Path
) -> None:
    def findings(job: Job) -> list[Any]:
        if job.name == "up.1":
            raise KeyboardInterrupt
        return answered(job, 0.25, 0.5)

    on_gpu(findings)
    two = f"nn.Sequential({DENSE}, nn.ConvTranspose2d(16, 8, 2, stride=2))"
    code, out, err = tconv(model(two))
    assert (code, err) == (130, "tconv: interrupted\n")
    assert "up.0" in out and "up.1" not in out
    assert (cache / "tuned" / "nvidia-h200.json").exists()


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(
    on_gpu: Callable[[Findings], None], model: Callable[[str], str], cache: Path
) -> None:
    cache.write_text("a file")
    on_gpu(lambda job: pytest.fail("it measured"))
    code, out, err = tconv(model(DENSE))
    assert (code, out) == (2, "") and err.count("\n") == 1 and "set TCONV_CACHE_DIR" in err


def test_a_missing_part_is_one_line(
    on_gpu: Callable[[Findings], None], model: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingToolchain("cuda.core cannot be imported; pip install 'tconv[cu13]'")

    on_gpu(lambda job: answered(job, 0.25, 0.5))
    monkeypatch.setattr(toolchain, "check_driver", missing)
    code, out, err = tconv(model(DENSE))
    assert (code, out) == (2, "") and "pip install" in err


def test_compilers_drop_what_waits() -> None:
    with pytest.raises(Trouble), compilers() as pool:
        waiting = [pool.submit(pow, 2, number) for number in range(50)]
        raise Trouble("so it is")
    assert all(future.done() for future in waiting)
