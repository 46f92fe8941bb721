"""Large tensors are judged a slice at a time, to the same verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peak import Peak  # type: ignore[import-not-found]
from strict import judge
from test_equality import DENSE, failed, honest  # type: ignore[import-not-found]
from torch import Tensor

from tconv.evaluation import bits, equality, reference
from tconv.evaluation.equality import check_layer
from tconv.evaluation.files import judge as judging
from tconv.evaluation.files.results import output_rules
from tconv.evaluation.files.results.output_rules import OutputComparison, Results
from tconv.evaluation.files.sides.file_process import Outcome, Traced
from tconv.evaluation.files.sides.inputs import IN_EVALUATION, SEED, Case
from tconv.evaluation.files.sides.model_and_candidate import Reference
from tconv.evaluation.reference import conv_transpose
from tconv.problem import Layer, Problem
from tconv.sandbox import digest
from tconv.sandbox.model_file import MODEL as INTERFACE
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.worker import Workshop

CASE = Case(((), {}), lambda seed: [], Traced((), 0, 9, None), Traced((), 0, 9, None))


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "_SLICE_BYTES", 1)
    monkeypatch.setattr(reference, "_K_TILE_ELEMENTS", 1)
    monkeypatch.setattr(output_rules, "_PIECE", 30)


def wrong_at_the_end(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = honest(x, weight, bias)
    y[-1, -1, -1, -1] += 1
    return y


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_layer(memory_format: torch.memory_format) -> None:
    def pytorch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return honest(x, weight, bias).contiguous(memory_format=memory_format)

    verdict = check_layer(pytorch, DENSE, "fp32", baseline=pytorch)
    assert verdict.equal, verdict.reasons
    assert "every element" in failed(check_layer(wrong_at_the_end, DENSE, "fp32"))
    if memory_format == torch.channels_last:
        assert failed(check_layer(honest, DENSE, "fp32", baseline=pytorch)) == {"shape, dtype, memory format"}


def test_other_bits_in_the_same_memory_are_seen() -> None:
    memory: list[Tensor] = []

    def reusing(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = honest(x, weight, bias)
        if memory and memory[0].shape == y.shape:
            y = memory[0].copy_(y * (1 + 1e-7))
        memory[:] = [y]
        return y

    verdict = check_layer(reusing, DENSE, "fp32", awkward=False)
    assert failed(verdict) == {"same bits twice"}
    assert "a third gives the second's bits" in verdict.reasons[0]


@pytest.mark.parametrize("in_float64", [True, False])
def test_outputs_of_models(in_float64: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(7, 5, 3, generator=generator, dtype=torch.float64)
    pytorch = (exact + 1e-6 * torch.randn(exact.shape, generator=generator)).float()
    rounded = (exact + 1e-4 * torch.randn(exact.shape, generator=generator)).float()
    got = exact.float()
    got[5, 4, 2] += 0.5
    results = Results(got, pytorch, exact if in_float64 else None, rounded)

    def compared(piece: int) -> OutputComparison:
        monkeypatch.setattr(output_rules, "_PIECE", piece)
        comparison = OutputComparison(torch.float32)
        comparison.add(results)
        return comparison

    at_once = compared(10**6).checks("", 9, in_float64)
    for piece in (1, 15, 40):
        checks = compared(piece).checks("", 9, in_float64)
        assert [(check.name, check.passed) for check in checks] == [(check.name, check.passed) for check in at_once]
        assert all("[5, 4, 2]" in check.reason for check in checks if check.name == "close to PyTorch")
    refused = {check.name for check in at_once if check.passed is False}
    assert ("every element" if in_float64 else "close to PyTorch") in refused
    one = OutputComparison(torch.float32)
    one.add(Results(torch.tensor(1.0), torch.tensor(1.0), None, None))
    assert all(check.passed is not False for check in one.checks("", 9, False))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, count in (
        (equality, "_SLICE_BYTES", 2**16),
        (equality, "_FURTHER_BYTES", 2**15),
        (reference, "_K_TILE_ELEMENTS", 2**12),
        (bits, "_PIECE", 2**10),
        (digest, "_ROW", 2**8),
        (output_rules, "_PIECE", 2**12),
    ):
        monkeypatch.setattr(module, name, count)


@pytest.mark.rotates(12)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("batch", "length", "times"), [(64, 64, 2), (1, 256, 6.5)])
def test_a_layer_takes_its_input_and_its_output(batch: int, length: int, times: float) -> None:
    """The second is one sample, of which the awkward inputs are changed copies."""
    problem = Problem(Layer(2, 8, 8, (1, 3, 3), padding=(0, 1, 1)), batch, (1, length, length))
    size = 4 * batch * 8 * length**2
    with Peak() as peak:
        verdict = check_layer(lambda x, w, b: conv_transpose(x, w, b, problem), problem, "fp32", draw_count=2)
    assert verdict.equal, verdict.reasons
    assert times * size <= peak.bytes < (times + 0.1) * size


@pytest.mark.usefixtures("small_pieces")
def test_outputs_of_models_take_pieces_in_float64() -> None:
    results = Results(*(torch.randn(256, 4096) for _ in range(4)))
    comparison = OutputComparison(torch.float32)
    with Peak() as peak:
        comparison.add(results)
    assert 0 < peak.bytes < 0.17 * results.got.nbytes


class Side:
    """A model that gives another result a few samples at a time."""

    def __init__(self, few: float, runs_in_float64: bool = True) -> None:
        self.few, self.runs_in_float64 = few, runs_in_float64
        self.asked: list[tuple[str, bool]] = []
        self.samples_apart, self.large = False, True

    def forward(self, inputs: Any, state: Any, *, mode: str, by_samples: bool, **options: Any) -> Outcome:
        self.asked.append((mode, by_samples))
        if mode == "float64" and not self.runs_in_float64:
            raise ModelFileError("no")
        by_samples = by_samples and self.large
        value = self.few if by_samples else 1.0
        return Outcome(torch.full((3, 2), value, dtype=torch.float64), (), (), (), by_samples)


def beside(model: Side) -> Reference:
    return Reference(CASE, model, "match", torch.device("cpu"), "strict")  # type: ignore[arg-type]


@pytest.mark.parametrize(("few", "asked_again"), [(1.0001, False), (1.5, True), (float("nan"), True)])
def test_samples_that_turn_out_to_depend_on_each_other_are_run_at_once(few: float, asked_again: bool) -> None:
    model, plain = Side(few), Outcome(torch.ones(3, 2), (), (), ())
    exact, rounded = beside(model).finer(plain, [], {}, 0)
    assert float(exact[0, 0]) == float(rounded[0, 0]) == (1.0 if asked_again else few)
    again = [("float64", False), ("rounded", False)] if asked_again else [("rounded", True)]
    assert model.asked == [("float64", True), *again]
    assert model.samples_apart is not asked_again
    model.large = False  # as later draws are: they say nothing of that
    beside(model).finer(plain, [], {}, 1)
    assert model.samples_apart is not asked_again


MODEL = """
import torch
import torch.nn as nn

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2)

    def forward(self, x):
        y = self.up(x)
        {more}
        return y

def get_inputs():
    return [torch.rand(3, 4, 7, 6)]
"""


@pytest.mark.parametrize("wrong", ["own inputs", "large", "small", ""])
def test_large_inputs_of_a_file_are_the_first_draw(
    wrong: str, workshop: Workshop, write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equality, "_FURTHER_BYTES", 1)
    # Those are not negative; draws have one sample then.
    where = {"own inputs": "x.min() >= 0", "large": "len(x) == 3", "small": "len(x) < 3", "": "False"}[wrong]
    report = judge(
        write("model.py", MODEL.format(name="Model", more="pass")),
        write("candidate.py", MODEL.format(name="ModelNew", more=f"y[-1, 5, 2, 1] += float({where})")),
        device="cpu",
        workshop=workshop,
    )
    names = [check.name for check in report.verdict.checks]
    assert "every element" in names and "own inputs" not in names
    assert report.equal is not bool(wrong), report.reasons
    assert "every element" in failed(report.verdict) or not wrong


def test_a_model_without_float64_goes_on_without() -> None:
    model, plain = Side(1.0, runs_in_float64=False), Outcome(torch.ones(3, 2), (), (), ())
    exact, _ = beside(model).finer(plain, [], {}, 0)
    assert exact is None and not model.samples_apart


def test_results_count_where_inputs_are_cut_down(
    workshop: Workshop, write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of draws in other states, on a GPU: here of 2 kB, whose results have 14."""
    monkeypatch.setattr(judging, "_SMALL_BYTES", 12_000)
    path = write("model.py", MODEL.format(name="Model", more="pass"))
    court = judging._Court(workshop, (path, INTERFACE), torch.device("cpu"), "match", 60, 0, "strict", ())
    with court.model:
        court.device = torch.device("cuda")  # it is asked nothing
        court.model.begin_example(SEED)
        case, _ = court.own_case
        assert case.inputs(SEED)[0].shape == (3, 4, 7, 6)
        assert case.inputs(IN_EVALUATION)[0].shape == (2, 4, 7, 6)
