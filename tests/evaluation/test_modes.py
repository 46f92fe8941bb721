"""State that is not as built, in evaluation and in training: what hides behind ones and zeros is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from strict import judge

from tconv.evaluation.files.results.state import randomised
from tconv.evaluation.report import Report
from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.rotates(36)

Writer = Callable[[str, str], Path]
MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(4, 6, 3, 2), nn.BatchNorm2d(6)
        self.gain, self.side = nn.Parameter(torch.zeros(1)), nn.ConvTranspose2d(4, 6, 3, 2)
        self.drop = nn.Dropout(0.25)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        MODE

    def forward(self, x):
        FORWARD

def get_inputs():
    return [torch.rand(3, 4, 7, 6)]
"""
FORWARD = "return self.drop(torch.relu(self.norm(self.up(x)))) + self.gain * self.side(x)"
#: What is wrong, and where it shows.
WRONG = {
    "no statistics in evaluation": (
        "y = self.up(x); y = self.norm(y) if self.training else F.batch_norm(y, None, None, self.norm.weight, "
        "self.norm.bias, True); return self.drop(torch.relu(y)) + self.gain * self.side(x)",
        "in evaluation",
    ),
    "no weight of the norm": (
        "y = F.batch_norm(self.up(x), self.norm.running_mean, self.norm.running_var, None, None, self.training); "
        "self.norm.num_batches_tracked += self.training; "
        "return self.drop(torch.relu(y)) + self.gain * self.side(x)",
        "in evaluation",
    ),
    "no branch that starts at zero": ("return self.drop(torch.relu(self.norm(self.up(x))))", "in evaluation"),
    "no bias before the norm": (
        "y = F.conv_transpose2d(x, self.up.weight, self.up.bias if self.training else None, 2); "
        "return self.drop(torch.relu(self.norm(y))) + self.gain * self.side(x)",
        "in evaluation",
    ),
    "dropout in evaluation": (
        "return F.dropout(torch.relu(self.norm(self.up(x))), 0.25) + self.gain * self.side(x)",
        "in evaluation",
    ),
    "statistics that are not kept": (
        "y = F.batch_norm(self.up(x), self.norm.running_mean.clone(), self.norm.running_var.clone(), self.norm.weight, "
        "self.norm.bias, self.training); self.norm.num_batches_tracked += self.training; "
        "return self.drop(torch.relu(y)) + self.gain * self.side(x)",
        "of norm.running_mean, in training",
    ),
    "calls that are not counted": (
        "y = F.batch_norm(self.up(x), self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias, "
        "self.training); return self.drop(torch.relu(y)) + self.gain * self.side(x)",
        "of norm.num_batches_tracked, in training",
    ),
    "nothing in evaluation": (f"{FORWARD} if self.training else torch.zeros(3, 6, 15, 13)", "in evaluation"),
}
HONEST = {
    "the same": FORWARD,
    "the norm as a scale and a shift": (
        "y, n = self.up(x), self.norm; "
        "s = n.weight * torch.rsqrt(n.running_var + n.eps); "
        "y = n(y) if self.training else y * s.view(1, -1, 1, 1) + (n.bias - n.running_mean * s).view(1, -1, 1, 1); "
        "return self.drop(torch.relu(y)) + self.gain * self.side(x)"
    ),
    "the branch first": "z = self.gain * self.side(x); return z + self.drop(torch.relu(self.norm(self.up(x))))",
}


@pytest.fixture
def judged(workshop: Workshop, write: Writer) -> Callable[..., Report]:
    def on(candidate: str, forward: str = FORWARD, mode: str = "") -> Report:
        def text(name: str, forward: str) -> str:
            lines = forward.replace("; ", "\n        ")
            return MODEL.replace("NAME", name).replace("FORWARD", lines).replace("MODE", mode or "self.training = True")

        paths = write("model.py", text("Model", forward)), write("candidate.py", text("ModelNew", candidate))
        return judge(*paths, workshop=workshop)

    return on


@pytest.mark.parametrize("mode", ["", "self.eval()"])
@pytest.mark.parametrize("name", WRONG)
def test_what_hides_in_the_model_as_built(judged: Callable[..., Report], name: str, mode: str) -> None:
    report = judged(WRONG[name][0], mode=mode)
    assert not report.equal
    if not mode:
        assert any(WRONG[name][1] in reason for reason in report.reasons), report.reasons


@pytest.mark.parametrize("mode", ["", "self.eval()"])
@pytest.mark.parametrize("name", HONEST)
def test_who_does_the_same_otherwise_is_equal(judged: Callable[..., Report], name: str, mode: str) -> None:
    report = judged(HONEST[name], mode=mode)
    assert report.equal, report.reasons
    assert report.verdict.check("in evaluation").passed and report.verdict.check("in training").passed


def test_one_layer_and_dropout_that_evaluation_hides(judged: Callable[..., Report]) -> None:
    forward = "return self.drop(self.up(x))"
    assert judged(forward, forward, "self.eval()").equal
    report = judged("return self.up(x)", forward, "self.eval()")
    said = [reason for reason in report.reasons if not reason.startswith("draws random numbers")]
    assert not report.equal and all("in training" in reason for reason in said), report.reasons


def test_a_model_that_does_not_train_is_not_checked_there(judged: Callable[..., Report]) -> None:
    forward = "return self.norm(self.up(x)[:1, :, :1, :1])"
    report = judged(forward, forward, "self.eval()")
    assert report.equal and report.verdict.check("in evaluation").passed
    check = report.verdict.check("in training")
    assert check.passed is None and "more than 1 value" in check.reason


def test_no_number_stays_as_it_was_built() -> None:
    state = {
        "ones": torch.ones(40),
        "zeros": torch.zeros(40),
        "normal": torch.randn(40),
        "mask": torch.tensor([0.0, -torch.inf, torch.inf, 3.0]),
        "half": torch.ones(40, dtype=torch.float16),
        "count": torch.arange(3),
        "nothing": torch.ones(0),
    }
    found = randomised(state, 5)
    for name in ("ones", "zeros", "normal", "half"):
        assert found[name].dtype == state[name].dtype and (found[name] != state[name]).all()
    assert (found["ones"] > 0.4).all() and (found["ones"] < 1.6).all() and found["zeros"].abs().max() < 0.3
    assert torch.equal(found["mask"].isinf(), state["mask"].isinf()) and torch.equal(found["count"], state["count"])
    assert all(torch.equal(found[name], other) for name, other in randomised(state, 5).items())
    assert not torch.equal(found["normal"], randomised(state, 6)["normal"])


MASKED = """
import torch
import torch.nn as nn

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(3, 4, 3, 2)

    def forward(self, x, mask):
        y = self.up(x)
        y = y.masked_fill(mask, -torch.inf)
        return FORWARD

def get_inputs():
    return [torch.rand(2, 3, 8), torch.rand(2, 1, 17) > 0.5]
"""


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ("y + 0", ""),
        ("torch.where(mask, -torch.inf, self.up(x))", ""),
        ("-y", "PyTorch's is -inf"),
        ("y.nan_to_num(neginf=-1e30)", "PyTorch's is -inf"),
        ("torch.where(mask, torch.nan, y)", "is nan, PyTorch's is -inf"),
        ("y.masked_fill(mask.roll(1, -1), -torch.inf)", "is -inf, PyTorch's is"),
        ("torch.where(mask, y, y + 0.01)", "every element"),
    ],
)
def test_infinities_are_the_same_infinities(workshop: Workshop, write: Writer, candidate: str, reason: str) -> None:
    model = write("model.py", MASKED.replace("NAME", "Model").replace("FORWARD", "y"))
    report = judge(
        model, write("new.py", MASKED.replace("NAME", "ModelNew").replace("FORWARD", candidate)), workshop=workshop
    )
    assert report.equal == (not reason), report.reasons
    assert not reason or any(reason in line for line in report.reasons), report.reasons


def test_nan_is_the_same_as_nan(workshop: Workshop, write: Writer) -> None:
    def judged(candidate: str) -> Report:
        model = write("model.py", MASKED.replace("NAME", "Model").replace("FORWARD", "torch.softmax(y, 0)"))
        other = MASKED.replace("NAME", "ModelNew").replace("FORWARD", candidate)
        return judge(model, write("new.py", other), workshop=workshop)

    assert judged("torch.softmax(y, 0)").equal
    assert judged("(e := (y - y.amax(0)).exp()) / e.sum(0)").equal
    reasons = judged("y.exp() / y.exp().sum(0)").reasons
    assert any("times 2^10: every element finite" in reason for reason in reasons), reasons
    report = judged("torch.softmax(y, 0).nan_to_num()")
    assert not report.equal and any("PyTorch's is nan" in line for line in report.reasons)


STRUCTURED = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Result:
    image: torch.Tensor
    mean: torch.Tensor

@dataclass
class Other:
    image: torch.Tensor
    mean: torch.Tensor

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(3, 4, 3, 2)

    def forward(self, x):
        y = self.up(x)
        return FORWARD

def get_inputs():
    return [torch.rand(2, 3, 8)]
"""


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ("Result(y + 0, y.mean())", ""),
        ("Other(y, y.mean())", "output is a Other with 'image', 'mean', Model's is a Result"),
        ("{'image': y, 'mean': y.mean()}", "output is a dict with"),
        ("Result(y, y.mean() + 0.01)", "of output['mean']"),
        ("Result(y, None)", "output['mean']"),
    ],
)
def test_a_dataclass_is_compared_field_by_field(workshop: Workshop, write: Writer, candidate: str, reason: str) -> None:
    model = STRUCTURED.replace("NAME", "Model").replace("FORWARD", "Result(y, y.mean())")
    other = STRUCTURED.replace("NAME", "ModelNew").replace("FORWARD", candidate)
    report = judge(write("model.py", model), write("new.py", other), workshop=workshop)
    assert report.equal == (not reason), report.reasons
    assert not reason or any(reason in line for line in report.reasons), report.reasons


@pytest.mark.parametrize(
    ("model", "candidate", "reason"),
    [
        ("SimpleNamespace(image=y, mean=1)", "SimpleNamespace(image=y + 0, mean=1)", ""),
        ("SimpleNamespace(image=y, mean=1)", "Space(image=y, mean=1)", "output is a Space with"),
        ("SimpleNamespace(image=y, mean=1)", "SimpleNamespace(image=y, mean=2)", "output['mean'] is 2"),
        ("OrderedDict(image=y, mean=1)", "{'image': y, 'mean': 1}", ""),
        ("Found(image=y, mean=1)", "Found(image=y, mean=1)", ""),
        ("Found(image=y, mean=1)", "{'mean': 1, 'image': y}", "output is a dict with 'mean', 'image'"),
        ("Found(image=y, mean=1)", "Found(image=y, mean=2)", "output['mean'] is 2"),
    ],
)
def test_namespaces_and_subclasses_of_dict_as_outputs(
    workshop: Workshop, write: Writer, model: str, candidate: str, reason: str
) -> None:
    classes = """
from collections import OrderedDict
from types import SimpleNamespace

class Space(SimpleNamespace):
    pass

class Found(dict):
    def __init__(self, **values):
        super().__init__(values)
        self.__dict__ = self
"""
    texts = (
        classes + STRUCTURED.replace("NAME", name).replace("FORWARD", forward)
        for name, forward in (("Model", model), ("ModelNew", candidate))
    )
    paths = [write(f"{number}.py", text) for number, text in enumerate(texts)]
    report = judge(*paths, workshop=workshop)
    assert report.equal == (not reason), report.reasons
    assert not reason or any(reason in line for line in report.reasons), report.reasons


def test_a_candidate_without_the_class_of_an_argument(workshop: Workshop, write: Writer) -> None:
    text = """
import torch
from torch import nn

class Config(dict):
    __getattr__ = dict.__getitem__

class NAME(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.ConvTranspose1d(3, config.out, 3, 2)

    def forward(self, x):
        return self.up(x)

def get_inputs():
    return [torch.rand(2, 3, 8)]

def get_init_inputs():
    return [Config(out=4)]
"""
    model, candidate = write("model.py", text.replace("NAME", "Model")), text.replace("NAME", "ModelNew")
    assert judge(model, write("new.py", candidate), workshop=workshop).equal
    lacking = candidate.replace("class Config", "class Other").replace("Config(out", "Other(out")
    (reason,) = judge(model, write("new.py", lacking), workshop=workshop).reasons
    assert "new.py has no subclass of dict called Config, which the model file passes to its model: define" in reason
