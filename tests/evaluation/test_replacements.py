"""What a replacement must still do beside its result: wrong candidates are refused, honest ones like them are equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tconv.evaluation.files.judge import judge
from tconv.evaluation.report import Report
from tconv.sandbox.worker import Workshop

Writer = Callable[[str, str], Path]
pytestmark = pytest.mark.rotates(2)

FILE = """
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

class NAME(nn.Module):
    kept = None

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, 2)
        self.drop = nn.Dropout(0.5)
        INIT

    def forward(self, x):
        FORWARD

def get_inputs():
    return [torch.rand(3, 4, 7, 6)]
"""
FORWARD = "return self.up(x)"
#: Further lines of the constructor, and the reason; none where that is as good as Model's.
PARAMETERS = {
    "the same": ("", ""),
    "a frozen weight": (
        "self.up.weight.requires_grad_(False)",
        "up.weight has requires_grad=False, in Model it is True",
    ),
    "a weight as a buffer": (
        "w = self.up.weight.detach(); del self.up.weight; self.up.register_buffer('weight', w)",
        "up.weight is no parameter, in Model it is: register it as an nn.Parameter",
    ),
    "another order": (
        "w = self.up.weight; del self.up.weight; self.up.weight = w",
        "they are in the order up.bias, up.weight, in Model up.weight, up.bias",
    ),
    "a parameter made anew": ("self.up.weight = nn.Parameter(self.up.weight.detach().clone())", ""),
    "a buffer beside it": ("self.register_buffer('prepared', torch.ones(1), persistent=False)", ""),
}
#: Model's forward, the candidate's, and the reason.
LEFT_BEHIND = {
    "the same memory each time": (
        FORWARD,
        "y = self.up(x); self.kept = y if self.kept is None or self.kept.shape != y.shape else self.kept.copy_(y); "
        "return self.kept",
        "keeps its results: the next call writes over the result of the one before",
    ),
    "results that are kept": (
        FORWARD,
        "y = self.up(x); self.kept = (self.kept or []) + [y]; return self.kept[-1]",
        "",
    ),
    "a view of the input": ("return self.up(x), x", "return self.up(x), x[:]", ""),
    "random numbers": (
        FORWARD,
        "torch.rand(1); return self.up(x)",
        "flags and random state: a call leaves changed what Model's does not: set it back, and draw no random numbers; "
        "changed torch's random state",
    ),
    "Python's random numbers": (FORWARD, "random.random(); return self.up(x)", "changed Python's random state"),
    "random numbers of its own": (
        FORWARD,
        "torch.rand(1, generator=torch.Generator()); random.Random(0).random(); return self.up(x)",
        "",
    ),
    "random numbers in Model, too": (
        "return self.drop(self.up(x))",
        "return F.dropout(self.up(x), 0.5, self.training)",
        "",
    ),
    "a flag": (FORWARD, "torch.backends.cudnn.benchmark = True; return self.up(x)", "torch.backends.cudnn.benchmark"),
    "a flag in Model, too": (
        "torch.backends.cudnn.benchmark ^= True; return torch.relu(self.up(x))",
        "torch.backends.cudnn.benchmark ^= True; return self.up(x).clamp_min(0)",
        "",
    ),
    "a flag that is set back": (
        FORWARD,
        "with torch.backends.cudnn.flags(benchmark=True):; \treturn self.up(x)",
        "",
    ),
    "fewer threads": (FORWARD, "torch.set_num_threads(7); return self.up(x)", "torch.get_num_threads()"),
}


@pytest.fixture
def judged(workshop: Workshop, write: Writer) -> Callable[..., Report]:
    """Judges a candidate of that constructor and `forward` beside a model of another; lines end with a semicolon."""

    def on(candidate: str = FORWARD, model: str = FORWARD, *, init: str = "", **options: bool) -> Report:
        def text(name: str, forward: str, init: str) -> str:
            lines = (each.replace("; ", "\n        ").replace("\t", "    ") for each in (init, forward))
            return FILE.replace("NAME", name).replace("INIT", next(lines)).replace("FORWARD", next(lines))

        paths = write("model.py", text("Model", model, "")), write("new.py", text("ModelNew", candidate, init))
        return judge(*paths, workshop=workshop, **options)  # type: ignore[arg-type]

    return on


def expect(report: Report, reason: str) -> None:
    """Refused for that reason; equal where there is none."""
    assert report.equal == (not reason), report.reasons
    assert not reason or any(reason in line for line in report.reasons), report.reasons


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(judged: Callable[..., Report], name: str) -> None:
    init, reason = PARAMETERS[name]
    expect(judged(init=init), reason)


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_what_a_call_leaves_behind(judged: Callable[..., Report], name: str) -> None:
    model, candidate, reason = LEFT_BEHIND[name]
    expect(judged(candidate, model), reason)
