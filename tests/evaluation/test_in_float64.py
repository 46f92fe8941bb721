"""A model that names other types itself computes in float64 where that is asked for, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from strict import judge
from torch import nn
from torch.nn import functional

from tconv.evaluation.files.process.in_float64 import in_float64
from tconv.evaluation.files.process.module_copies import deep_copy
from tconv.sandbox.worker import Workshop

X = torch.randn(2, 3, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    "call",
    [
        lambda: X.float(),
        lambda: X.half() + 1,
        lambda: X.to(torch.bfloat16),
        lambda: X.to(dtype=torch.float32),
        lambda: functional.softmax(X, 1, dtype=torch.float32),
        lambda: torch.zeros(3, dtype=torch.float32),
        lambda: torch.linspace(0, 1, 5),
        lambda: torch.randn(3),
        lambda: torch.rand_like(X),
    ],
)
def test_nothing_is_narrower(call: Callable[[], torch.Tensor]) -> None:
    with in_float64():
        assert call().dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32 and torch.zeros(1).dtype == torch.float32


def test_random_numbers_are_those_of_float32() -> None:
    def drawn(x: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [torch.rand(50), torch.randn(50), torch.randn_like(x), torch.rand_like(x)]

    expected = drawn(X.float())
    with in_float64():
        found = drawn(X)
    assert all(torch.equal(one, other.double()) for one, other in zip(found, expected, strict=True))


def test_autocast_stays_off() -> None:
    layer = nn.Linear(4, 4).double()
    with in_float64(), torch.autocast("cpu", torch.bfloat16):
        assert layer(X).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(X.float()).dtype == torch.bfloat16


MODEL = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import weight_norm

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.ConvTranspose1d(8, 8, 4, 2, 1), nn.ConvTranspose1d(8, 8, 4, 2, 1)
        INIT

    def forward(self, x):
        return BODY

def get_inputs():
    return [torch.randn(2, 8, 12)]
"""
#: More of the constructor; the forward of Model and of the candidate; a check that has passed.
COMPARED = {
    "weight_norm": (
        "self.first, self.last = weight_norm(self.first), weight_norm(self.last)",
        "self.last(F.leaky_relu(self.first(x), 0.1))",
        "self.last(F.leaky_relu(self.first(x), 0.1))",
        "gradients",
    ),
    "casts": ("", "self.last(self.first(x).float()).float()", "self.last(self.first(x)).float()", "pooled error"),
    "autocast": (
        "self.mode = torch.autocast('cpu', torch.bfloat16)",
        "[self.mode.__enter__(), self.last(self.first(x)).float(), self.mode.__exit__(None, None, None)][1]",
        "[self.mode.__enter__(), self.last(self.first(x)).float(), self.mode.__exit__(None, None, None)][1]",
        "pooled error",
    ),
}


@pytest.mark.rotates(16)
@pytest.mark.parametrize("name", COMPARED)
def test_models_that_are_compared_with_float64(
    name: str, workshop: Workshop, write: Callable[[str, str], Path]
) -> None:
    init, model, candidate, check = COMPARED[name]

    def text(called: str, body: str) -> str:
        return MODEL.replace("NAME", called).replace("INIT", init or "pass").replace("BODY", body)

    report = judge(
        write("model.py", text("Model", model)), write("new.py", text("ModelNew", candidate)), workshop=workshop
    )
    assert report.equal, report.reasons
    assert report.verdict.check(check).passed
    assert not any("does not run in float64" in each.reason for each in report.verdict.checks)


KINKS = """
import torch
from torch import nn
from torch.nn import functional as F

def rounded(x):
    bits = x.detach().view(torch.int32) + 0x1000 & -0x2000
    return x + (bits.view(torch.float32) - x).detach()

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ConvTranspose1d(8, 8, 4, 2, 1) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = F.leaky_relu(F.conv_transpose1d(ROUND(x), ROUND(layer.weight), layer.bias, 2, 1), 0.1).abs() - 0.05
        return x WRONG

def get_inputs():
    return [torch.randn(2, 8, 24)]
"""


@pytest.mark.rotates(16)
@pytest.mark.parametrize("wrong", ["", "+ (x.detach() - x) * 0.05"])
def test_rounded_operands_move_gradients_over_kinks(
    wrong: str, workshop: Workshop, write: Callable[[str, str], Path]
) -> None:
    model = KINKS.replace("NAME", "Model").replace("ROUND", "").replace("WRONG", "")
    candidate = KINKS.replace("NAME", "ModelNew").replace("ROUND", "rounded").replace("WRONG", wrong)
    report = judge(write("model.py", model), write("new.py", candidate), workshop=workshop)
    assert report.equal == (not wrong), report.reasons


def test_copies_of_scripted_modules_keep_gradients() -> None:
    module = deep_copy(torch.jit.script(nn.Linear(4, 2))).double()
    module(X).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
