"""Layers of copies with other attributes: all that change in one call, which is taken apart where it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tconv.evaluation.files.judge import judge
from tconv.evaluation.files.levels import COPIED
from tconv.evaluation.files.process.weight_changes import ATTRIBUTES, WEIGHT_CHANGES
from tconv.evaluation.report import Report
from tconv.sandbox.worker import Workshop

Writer = Callable[[str, str], Path]

FILE = """
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

class Up(nn.ConvTranspose2d):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.built_with = (self.padding, self.bias is not None)

    def forward(self, x):
        padding, has_bias = self.built_with
        return F.conv_transpose2d(x, self.weight, BIAS, self.stride, PADDING)

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = Up(4, 6, 3, 2)
        self.act = nn.ReLU()

    def forward(self, x):
        y = self.up(x)
        return self.act(y)BEHIND

def get_inputs():
    return [torch.rand(3, 4, 8, 6)]
"""
RIGHT = {"PADDING": "self.padding", "BIAS": "self.bias"}
PADDING = {**RIGHT, "PADDING": "padding"}
#: None, once it is taken away, is taken for zeros of nothing.
BIAS = {**RIGHT, "BIAS": "torch.ones(6) if has_bias and self.bias is None else self.bias"}


def judged(candidate: dict[str, str], behind: str, workshop: Workshop, write: Writer) -> Report:
    def text(name: str, parts: dict[str, str]) -> str:
        found = FILE.replace("NAME", name).replace("BEHIND", behind)
        for part, value in parts.items():
            found = found.replace(part, value)
        return found

    files = write("model.py", text("Model", RIGHT)), write("candidate.py", text("ModelNew", candidate))
    return judge(*files, device="cpu", workshop=workshop, further=(COPIED,))


#: What stands behind takes one size of a layer's output alone.
@pytest.mark.rotates(8)
@pytest.mark.parametrize("behind", ["", " + torch.ones(17, 13)"])
@pytest.mark.parametrize(
    ("candidate", "names"),
    [
        (RIGHT, ()),
        (PADDING, ("padding",)),
        (BIAS, ("bias",)),
        ({**PADDING, **BIAS, "PADDING": "padding"}, ("padding", "bias")),
    ],
)
def test_what_does_not_follow_is_named(
    candidate: dict[str, str], names: tuple[str, ...], behind: str, workshop: Workshop, write: Writer
) -> None:
    expected = tuple(name for name in names if name != "padding" or not behind)
    report = judged(candidate, behind, workshop, write)
    assert report.equal is not bool(expected), report.reasons
    told = " ".join(report.reasons)
    assert {name: f"after {WEIGHT_CHANGES[name]} the" in told for name in ATTRIBUTES} == {
        name: name in expected for name in ATTRIBUTES
    }
