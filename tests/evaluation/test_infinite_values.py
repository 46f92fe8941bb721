"""Candidates that make numbers of what an infinite weight reaches are refused; what lets it through is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.evaluation.files.replacement.infinite_values import NAME
from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.rotates(36)
MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.last = nn.ConvTranspose2d(8, 6, 4, 2, 1), nn.ConvTranspose2d(6, 2, 3, 2)

    def forward(self, x):
        return {forward}

def get_inputs():
    return [torch.randn(2, 8, 5, 6)]
"""
NEW = """
from model import *

class ModelNew(Model):
    def forward(self, x):
        {forward}
"""
TWO = "self.last(torch.relu(self.up(x)))"
#: Of the weights of a layer, and of its result.
FINITE, MASKED = "torch.nan_to_num(w, 0.0, 0.0, 0.0)", "torch.where(y > 0, y, 0)"

ALL_FINITE = "all(parameter.isfinite().all() for parameter in self.parameters())"


def layer(name: str, x: str, weight: str = "w") -> str:
    stride = "2, 1" if name == "up" else "2"
    return f"w, b = self.{name}.weight, self.{name}.bias; y = F.conv_transpose2d({x}, {weight}, b, {stride}); "


@pytest.mark.parametrize(
    ("model", "candidate", "reason"),
    [
        (TWO, "return super().forward(x)", ""),
        (TWO, layer("up", "x", FINITE) + "return self.last(torch.relu(y))", "up.weight is infinite in one place"),
        (TWO, layer("last", "torch.relu(self.up(x))", FINITE) + "return y", "last.weight is not a number in one"),
        (TWO, "y = super().forward(x); return torch.where(y.isfinite(), y, 0)", "up.weight is infinite in one place"),
        (TWO, "y = super().forward(x); return y + 0 * self.up.weight.sum() + 0 * self.last.weight.sum()", ""),
        (TWO, layer("up", "x") + f"return self.last({MASKED})", "up.weight is not a number in one place"),
        (TWO, "return super().forward(torch.nan_to_num(x))", "input[0] is not a number in one place"),
        (f"self.last({MASKED.replace('y', 'self.up(x)')})", "return super().forward(x)", ""),
        (f"self.last({MASKED.replace('y', 'self.up(x)')})", "return self.last(torch.relu(self.up(x)))", ""),
        ("torch.nan_to_num(self.last(torch.relu(self.up(x))))", "return super().forward(x)", ""),
        (
            TWO,
            "assert all(p.isfinite().all() for p in self.parameters()); return super().forward(x)",
            "*AssertionError",
        ),
    ],
)
def test_what_an_infinite_value_reaches(
    workshop: Workshop, write: Callable[[str, str], Path], model: str, candidate: str, reason: str
) -> None:
    paths = write("model.py", MODEL.format(forward=model)), write("new.py", NEW.format(forward=candidate))
    report = judge(*paths, workshop=workshop)
    if not reason or reason.startswith("*"):
        assert report.equal, report.reasons
        check = report.verdict.check(NAME)
        assert check.passed is (None if reason else True) and reason[1:] in check.reason, check
    else:
        assert any(f"{NAME}: where {reason}" in each for each in report.reasons), report.reasons
