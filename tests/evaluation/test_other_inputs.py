"""Inputs that a model file does not give: what is wrong for them is refused, and what is not taken is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.evaluation.files.replacement.other_inputs import NAME
from tconv.evaluation.report import Report
from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.rotates(36)
Writer = Callable[[str, str], Path]
#: Two layers, or one.
MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(8, 6, 4, 2, 1), nn.BatchNorm2d(6)

    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.randn(3, 8, 10, 12)]
"""
MANY, ALONE = "return torch.relu(self.norm(self.up(x)))", "return self.up(x)"
NEW = """
import torch
from model import *

class ModelNew(Model):
    def forward(self, x):
        {change}
        return super().forward(x)
"""
DENSE = "torch.empty(x.shape).stride()"


def judged(workshop: Workshop, write: Writer, forward: str, change: str) -> Report:
    model = MODEL.replace("{forward}", forward)
    if forward == ALONE:
        model = model.replace(", self.norm =", " =").replace(", nn.BatchNorm2d(6)", "")
    return judge(write("model.py", model), write("new.py", NEW.format(change=change)), workshop=workshop)


@pytest.mark.parametrize("forward", [MANY, ALONE])
@pytest.mark.parametrize("change", ["pass", "x = x.contiguous()", "x = x.to(memory_format=torch.channels_last)"])
def test_what_is_right_for_all(workshop: Workshop, write: Writer, forward: str, change: str) -> None:
    if "channels_last" in change:  # the memory format of the result is Model's
        change += "; y = super().forward(x).contiguous(); return y"
    report = judged(workshop, write, forward, change)
    assert report.equal, report.reasons
    assert report.verdict.check(NAME).passed


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (f"x = x.as_strided(x.shape, {DENSE}) if x.shape[2] == 10 else x", "axes lie in memory in reverse order"),
        ("x = x if x.shape[2] == 10 else x.flip(3)", "another size"),
        ("x = x if len(x) > 1 else x * 1.1", "a batch of one"),
        ("x = x if x.stride(0) else x.roll(1, 1)", "expanded inputs"),
        ("x = x.clamp(-100, 100)", "times 2^10"),
        ("x = x + 1e-5 * (x.abs().max() < 0.1)", "times 2^-10"),
        ("x = x if x.is_contiguous() or x.stride(1) != 1 else x.contiguous().roll(1, 1)", "channels_last inputs"),
    ],
)
def test_what_is_wrong_for_some(workshop: Workshop, write: Writer, change: str, given: str) -> None:
    report = judged(workshop, write, MANY, change)
    assert not report.equal
    assert any(f"{NAME}: given" in reason and given in reason for reason in report.reasons), report.reasons


def test_what_is_refused_is_said(workshop: Workshop, write: Writer) -> None:
    change = "if x.shape[2:] != (10, 12): raise ValueError('made for 10 by 12')"
    report = judged(workshop, write, MANY, change)
    assert report.equal, report.reasons
    check = report.verdict.check(NAME)
    assert check.passed is None and "not taken: inputs of another size" in check.reason
    assert "made for 10 by 12" in check.reason


def test_what_model_itself_does_not_take_is_not_asked(workshop: Workshop, write: Writer) -> None:
    only = "assert tuple(x.shape) == (3, 8, 10, 12)\n        return torch.relu(self.norm(self.up(x)))"
    report = judged(workshop, write, only, "x = x if x.shape == (3, 8, 10, 12) else x * 0")
    assert report.equal, report.reasons
    assert report.verdict.check(NAME).passed
