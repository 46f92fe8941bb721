"""What `Model` does not keep to beside its own class is asked of nobody; what it does keep to, of everybody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.evaluation.files.control import excused, excuses, require_results
from tconv.evaluation.files.sides.file_process import CannotJudge
from tconv.evaluation.verdict import Check
from tconv.sandbox.worker import Workshop

Write = Callable[[str, str], Path]
HEAD = """
import copy
import types
import torch
from torch import nn

{more}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(4, 3, 4, 2)
        {made}
    def forward(self, x):
        {body}

def get_inputs():
    return [torch.randn(2, 4, 7)]
"""
LORA = """
class Merged(nn.ConvTranspose1d):
    def __init__(self, *args):
        super().__init__(*args)
        self.a, self.b = nn.Parameter(torch.randn(4, 1)), nn.Parameter(torch.randn(1, 12))
        self.merged = False
    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (self.a @ self.b).view_as(self.weight) * (-1 if mode else 1)
            self.merged = not mode
        return self
    def forward(self, x):
        y = super().forward(x)
        if not self.merged:
            y = y + nn.functional.conv_transpose1d(x, (self.a @ self.b).view_as(self.weight), None, 2)
        return y
"""
ACTNORM = """
class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc, self.scale = nn.Parameter(torch.zeros(3, 1)), nn.Parameter(torch.ones(3, 1))
        self.register_buffer("initialized", torch.tensor(0))
    def forward(self, x):
        if self.initialized.item() == 0:
            with torch.no_grad():
                flat = x.transpose(0, 1).flatten(1)
                self.loc.copy_(-flat.mean(1, keepdim=True))
                self.scale.copy_(1 / flat.std(1, keepdim=True))
                self.initialized.fill_(1)
        return self.scale * (x + self.loc)
"""
COUNTER = ('self.register_buffer("calls", torch.tensor(0))', "self.calls += 1\n        return self.up(x) / self.calls")
CLOSURE = (
    "old = self.up.forward\n        self.up.forward = lambda x: old(x) * 0.5",
    "return torch.relu(self.up(x))",
)
#: What a model builds beside its layer, what forward does, and what stands above.
MODELS: dict[str, tuple[str, str, str]] = {
    "a counter in a buffer": (*COUNTER, ""),
    "an overlap in a buffer": (
        'self.register_buffer("partial", torch.zeros(1, 3, 2))',
        "y = self.up(x)\n        y[..., :2] += self.partial\n"
        "        self.partial = y[..., -2:].mean(0, keepdim=True).detach()\n        return y[..., :-2]",
        "",
    ),
    "what the first call initializes": ("self.norm = ActNorm()", "return torch.relu(self.norm(self.up(x)))", ACTNORM),
    "weights that eval() merges": ("self.up = Merged(4, 3, 4, 2)", "return torch.tanh(self.up(x))", LORA),
    "a forward by a closure": (*CLOSURE, ""),
    "a lambda that holds the model": ("self.act = lambda x: self.up(x) * 2", "return self.act(x)", ""),
    "a bound method of another's": (
        "self.up.forward = types.MethodType(lambda up, x: nn.ConvTranspose1d.forward(up, x) + 1, self.up)",
        "return self.up(x)",
        "",
    ),
    "a mode that cannot be": (
        "self.eval()",
        "if self.training:\n            raise RuntimeError('for inference alone')\n        return self.up(x)",
        "",
    ),
}
#: Of these nothing can be compared, and the reason.
UNJUDGED: dict[str, tuple[str, str, str, str]] = {
    "a counter of its own": (
        "self.calls = 0",
        "self.calls += 1\n        return self.up(x) / self.calls",
        "",
        "called twice on the same inputs, .* Model gives two results",
    ),
    "a layer of the first call": (
        "self.last = None",
        "self.last = self.last or nn.ConvTranspose1d(3, 2, 2)\n        return self.last(self.up(x))",
        "",
        "load_state_dict",
    ),
    "a state that is no tensor": (
        "self.last = Extra()",
        "return self.last(self.up(x))",
        "class Extra(nn.Identity):\n    def get_extra_state(self):\n        return {'version': 2}\n"
        "    def set_extra_state(self, state):\n        pass",
        "last._extra_state is no tensor",
    ),
}


def text(made: str, body: str, more: str = "") -> str:
    return HEAD.format(made=made, body=body, more=more)


def as_candidate(model: str) -> str:
    return model.replace("class Model(", "class ModelNew(")


@pytest.mark.rotates(12)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_beside_its_own_class_is_equal(workshop: Workshop, write: Write, name: str) -> None:
    model = text(*MODELS[name])
    report = judge(write("model.py", model), write("candidate.py", as_candidate(model)), workshop=workshop)
    assert report.equal, report.reasons


@pytest.mark.parametrize("name", UNJUDGED)
def test_what_cannot_be_compared_is_said_with_the_reason(workshop: Workshop, write: Write, name: str) -> None:
    *parts, reason = UNJUDGED[name]
    model = text(*parts)
    with pytest.raises(CannotJudge, match=reason):
        judge(write("model.py", model), write("candidate.py", as_candidate(model)), workshop=workshop)


@pytest.mark.parametrize(
    ("parts", "right", "wrong", "reason"),
    [
        (COUNTER, "/ self.calls", "/ self.calls * 1.001", "every element"),
        (CLOSURE, "old(x) * 0.5", "old(x) * 0.501", "close to PyTorch"),
        (
            CLOSURE,
            "old = self.up.forward",
            "kept = {}\n        old = lambda x: nn.functional.conv_transpose1d("
            "x, kept.setdefault(0, self.up.weight.detach().clone()), self.up.bias, 2)",
            "close to PyTorch",
        ),
    ],
)
def test_what_such_a_model_does_keep_to_is_still_asked(
    workshop: Workshop, write: Write, parts: tuple[str, str], right: str, wrong: str, reason: str
) -> None:
    model = text(*parts)
    assert model.count(right) == 1
    candidate = as_candidate(model.replace(right, wrong))
    report = judge(write("model.py", model), write("candidate.py", candidate), workshop=workshop)
    assert not report.equal and any(reason in each for each in report.reasons), report.reasons


def test_checks_that_the_control_fails_are_excused_by_themselves_or_together() -> None:
    checks = [Check("a", False, reason="1", about="x"), Check("a", False, about="y"), Check("b", True)]
    control = [Check("a", False, reason="2", about="x"), Check("b", False)]
    by_themselves = excused(checks, control)
    assert [check.passed for check in by_themselves] == [None, False, True]
    assert by_themselves[0].reason == "not checked: Model beside its own class fails it: 2"
    assert [check.passed for check in excused(checks, control, each=False)] == [None, None, True]
    assert excused(checks, [Check("a", True), Check("a", None, about="x")]) == checks
    assert excuses(by_themselves) == ("what Model beside its own class fails: a (x)",)
    assert excuses(checks) == ()


def test_something_must_have_been_compared() -> None:
    excuse = excused([Check("runs", False)], [Check("runs", False, reason="no state")])
    for checks in ([Check("every element", True), *excuse], [Check("close to PyTorch", True), *excuse], []):
        require_results(checks)
    with pytest.raises(CannotJudge, match="Model beside its own class fails it: no state"):
        require_results([Check("parameters and buffers", True), *excuse])
