"""What a candidate does wrong in uses that a model file does not show, beside what an honest one may do there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tconv.evaluation.files.judge import judge
from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.rotates(9)
FILE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, module):
        ctx.save_for_backward(x, w)
        ctx.module, module.kept = module, [x, w]
        return F.conv_transpose2d(x, w, b, 2)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        BACKWARD
        return F.conv2d(g, w, None, 2), torch.nn.grad.conv2d_weight(g, w.shape, x, 2), g.sum((0, 2, 3)), None

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.ConvTranspose2d(4, 6, 3, 2), nn.BatchNorm2d(6, momentum=None)
        self.head, self.last = nn.ConvTranspose2d(6, 2, 1), nn.ConvTranspose2d(6, 3, 2, 2)
        self.loc, self.kept = nn.Parameter(torch.zeros(1, 6, 1, 1)), []
        self.register_buffer("done", torch.tensor(0))
        INIT

    def forward(self, x, places):
        y = torch.tanh(self.first(x))
        BODY

def get_inputs():
    return [torch.randn(3, 4, 6, 6), torch.tensor([[0, 3, 1], [2, 0, 1]])]
"""
LAST = "return self.last(y)"
CALL = "return Once.apply(y, self.last.weight, self.last.bias, self)"
TRAINED = "self.last(self.norm(y))"
BOTH = "return self.last(y), self.head(y)"
ACTNORM = """if self.training and not self.done:
            with torch.no_grad():
                self.loc.copy_(-y.mean((0, 2, 3), keepdim=True)); self.done.fill_(1)
        return self.last(y + self.loc)"""
#: Model's forward; the candidate's, more of its constructor and of its way back; and the reason.
USES: dict[str, tuple[str, str, str, str, str]] = {
    "a way back of its own": (LAST, CALL, "", "", ""),
    "gradients in float16": (LAST, CALL, "", "g = g.half().to(g)", "of the gradient of"),
    "gradients in bfloat16": (LAST, CALL, "", "g = g.bfloat16().to(g)", "of the gradient of"),
    "what the module keeps": (LAST, CALL, "", "x, w = ctx.module.kept", "after another call, the first weight frozen"),
    "none where the weight has none": (
        LAST,
        CALL,
        "",
        "if not ctx.needs_input_grad[1]:; \treturn None, None, None, None",
        "frozen",
    ),
    "gradients that lie in a row": (
        LAST,
        CALL,
        "",
        "g = g.as_strided(g.shape, torch.empty(g.shape).stride())",
        "frozen",
    ),
    "gradients that are written to": (LAST, CALL, "", "g.mul_(1)", ""),
    "gradients that are changed": (LAST, CALL, "", "g.mul_(2); g = g / 2", "changed what goes back from an output"),
    "of one output alone": (BOTH, BOTH, "", "", ""),
    "a batch of 3 in training": (
        f"return {TRAINED}",
        f"y = y * (1 if len(y) == 3 or not self.training else 1.1) - (0 if len(y) == 3 else 0.1); return {TRAINED}",
        "",
        "",
        "a second call in training",
    ),
    "statistics of one call": (
        f"return {TRAINED}",
        "n = self.norm; n.num_batches_tracked += self.training; return self.last(F.batch_norm("
        "y, n.running_mean, n.running_var, n.weight, n.bias, self.training, 1.0))",
        "",
        "",
        "a second call in training",
    ),
    "parameters that Model sets, too": (ACTNORM, ACTNORM, "", "", ""),
    "numbers of the results": (
        "return self.last(y), float(y.mean())",
        "return self.last(y), float(y.sum() / y.numel())",
        "",
        "",
        "",
    ),
    "other numbers": (
        "return self.last(y), float(y.mean())",
        "return self.last(y), float(y.mean()) * 1.01",
        "",
        "",
        "output[1] is",
    ),
    "the input itself": ("return self.last(y), x.clone()", "return self.last(y), x", "", "", "memory of its own"),
    "one for two": ("y = self.last(y); return y, y * 1", "y = self.last(y); return y, y", "", "", "memory of its own"),
    "in Model, too": ("return self.last(y), x[:1]", "return self.last(y), x[:1]", "", "", ""),
    "gradients off": (LAST, LAST, "torch.set_grad_enabled(False)", "", "torch.is_grad_enabled() in the constructor"),
    "places by their shape": (
        "return self.last(y) * places.float().mean(1)[0] + places[0, 0]",
        "self.kept = self.kept or [places.clone()]; places = self.kept[0]; "
        "return self.last(y) * places.float().mean(1)[0] + places[0, 0]",
        "",
        "",
        "given other numbers",
    ),
    "as wide as high": (
        LAST,
        "y = y + 0.1 * (y.shape[2] != y.shape[3]); return self.last(y)",
        "",
        "",
        "given inputs of another size",
    ),
    "from the start of the memory": (
        LAST,
        "x = x.as_strided(x.shape, x.stride(), 0); y = torch.tanh(self.first(x)); return self.last(y)",
        "",
        "",
        "given a batch of one",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_other_uses(workshop: Workshop, write: Callable[[str, str], Path], name: str) -> None:
    model, candidate, init, back, reason = USES[name]

    def text(called: str, body: str, init: str, back: str) -> str:
        parts = {"NAME": called, "INIT": init, "BODY": body, "BACKWARD": back}
        written = FILE
        for word, part in parts.items():
            written = written.replace(word, part.replace("; ", "\n        ").replace("\t", "    ") or "pass")
        return written

    paths = write("model.py", text("Model", model, "", "")), write("new.py", text("ModelNew", candidate, init, back))
    report = judge(*paths, workshop=workshop)
    if not reason:
        assert report.equal, report.reasons
    else:
        assert any(reason in each for each in report.reasons), report.reasons
