"""Small channels and samples, and what stands beside an outlier, are judged by their own size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from strict import judge

from tconv.evaluation.files.results.output_parts import further_out
from tconv.evaluation.files.results.output_rules import OutputComparison, Results
from tconv.sandbox.worker import Workshop

Writer = Callable[[str, str], Path]
#: One channel is far smaller than the others, and so is one sample; `{scale}` an element is far larger.
MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.up = nn.Conv2d(4, 16, 3, padding=1), nn.ConvTranspose2d(16, 6, 4, 2, 1)
        self.register_buffer("sizes", torch.tensor([1, 1, 1e-4, 1, 1, 1]).view(1, 6, 1, 1), persistent=False)

    def forward(self, x):
        y = self.up(torch.relu(self.first(x))) * self.sizes
        return {result}

def get_inputs():
    x = torch.randn(3, 4, 10, 10)
    x[1] *= 1e-5
    return [x]
"""
NEW = """
from model import *

class ModelNew(Model):
    def forward(self, x):
        y = super().forward(x)
        {change}
        return y
"""


@pytest.mark.rotates(12)
@pytest.mark.parametrize(
    ("result", "change", "reason"),
    [
        ("y", "pass", ""),
        ("y", "y = torch.cat([y.flip(0).flip(0)[:1], y[1:]])", ""),
        ("y", "y[:, 2] = 0", "channel 2: error"),
        ("y", "y[:, 2] *= 1.01", "channel 2: error"),
        ("y - self.up.bias.view(-1, 1, 1) * self.sizes", "y[1] = y[1].flip(1)", "sample 1: error"),
        ("y.index_fill(2, torch.tensor(5), 1e6)", "pass", ""),
        ("y.index_fill(2, torch.tensor(5), 1e6)", "y = torch.where(y > 1e5, y, 0.9 * y)", "parts"),
        ("torch.relu(y).round()", "y += 0.0", ""),
    ],
)
def test_a_part_that_is_wrong(workshop: Workshop, write: Writer, result: str, change: str, reason: str) -> None:
    model, new = write("model.py", MODEL.replace("{result}", result)), write("new.py", NEW.format(change=change))
    report = judge(model, new, workshop=workshop)
    assert report.equal == (not reason), report.reasons
    assert any(reason in line for line in report.reasons) or not reason, report.reasons


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 3.0, 20.0])
def test_a_part_may_be_some_times_as_far_out_as_pytorchs(dtype: torch.dtype, factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(2, 8, 16, 16, generator=generator, dtype=torch.float64)
    exact[:, 3] *= 2.0**-10 if dtype is torch.bfloat16 else 1
    unit = torch.finfo(dtype).eps

    def with_errors(times: float) -> torch.Tensor:
        error = times * unit * exact * torch.randn(exact.shape, generator=generator)
        return (exact + error).to(dtype)

    pytorch, got = with_errors(1), with_errors(1)
    got[:, 3] = with_errors(factor)[:, 3]
    comparison = OutputComparison(dtype)
    comparison.add(Results(got, pytorch, exact, None))
    check = next(each for each in comparison.checks("", 1, True) if each.name == "parts")
    assert check.passed == (factor < 20), check


@pytest.mark.parametrize(("elements", "most"), [(4, 7.39), (64, 1.65), (4096, 1.25)])
def test_of_few_elements_chance_makes_more(elements: int, most: float) -> None:
    exact = torch.full((elements,), 1 + 2.0**-30, dtype=torch.float64)

    def with_errors(times: float) -> torch.Tensor:
        return (exact * (1 + times * 2e-5)).float()

    for factor in (0.98 * most, 1.02 * most):
        comparison = OutputComparison(torch.float32)
        comparison.add(Results(with_errors(factor), with_errors(1), exact, None))
        check = next(each for each in comparison.checks("", 1, True) if each.name == "pooled error")
        assert check.passed == (factor < most), check


def test_few_may_be_on_the_other_side_of_a_threshold() -> None:
    exact = torch.cat([torch.zeros(1, 1, 100), torch.ones(1, 1, 100)], 1).double()
    got, rounding = exact.clone(), torch.zeros_like(exact)
    got[0, 1, :9] = 0
    assert further_out(got, exact, (exact,), rounding, 0) == []
    got[0, 1, 9:12] = 0
    assert {part.name for part in further_out(got, exact, (exact,), rounding, 0)} == {
        "channel 1",
        "elements from 1 to 2.6e+02",
    }


@pytest.mark.parametrize("shape", [(), (3,), (64,), (100,), (2, 70), (0, 3, 80), (70, 2, 1)])
def test_shapes_of_all_kinds(shape: tuple[int, ...]) -> None:
    exact = 0.1 * torch.randn(shape).double() + 4
    rounding = torch.zeros_like(exact)
    assert further_out(exact, exact, (exact, exact), rounding, 0) == []
    wrong = further_out(exact + 1, exact, (exact, exact), rounding, 5)
    assert bool(wrong) == (exact.numel() >= 64)
    assert {part.name for part in wrong if part.name.startswith("sample")} == (
        {"sample 5", "sample 6"} if shape == (2, 70) else set()
    )


@pytest.mark.parametrize(("change", "equal"), [("pass", True), ("y = torch.complex(y.real, y.imag * 1.01)", False)])
def test_complex_numbers_are_pairs(workshop: Workshop, write: Writer, change: str, equal: bool) -> None:
    model = MODEL.replace("{result}", "torch.fft.rfft(y)")
    report = judge(write("model.py", model), write("new.py", NEW.format(change=change)), workshop=workshop)
    assert report.equal == equal, report.reasons
