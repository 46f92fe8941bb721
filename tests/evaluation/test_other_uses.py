"""What a candidate does wrong in uses that a model file does not show, beside what an honest one may do there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.rotates(48)
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

class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return a.clone(), b.clone()

    @staticmethod
    def backward(ctx, a, b):
        return (None, None) if a is None else (a, b)

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
#: A norm's weights and statistics, made into factors when their versions change.
FOLDED = """n = self.norm
        if n.training or torch.is_grad_enabled():
            return self.last(n(y))
        key = [(id(each), each._version, each.data_ptr(), each.dtype) for each in n.KEYS]
        if not self.kept or self.kept[0] != key:
            scale = n.weight * torch.rsqrt(n.running_var + n.eps)
            self.kept = [key, scale.view(-1, 1, 1), (n.bias - n.running_mean * scale).view(-1, 1, 1)]
        return self.last(y * self.kept[1] + self.kept[2])"""
#: A result is known by address and version of what it is of; who holds that, knows it.
KNOWN = """if torch.is_grad_enabled():
            return self.last(y)
        key = x.data_ptr(), x.dtype, x.shape, x.stride(), *(each._version for each in (x, *self.parameters()))
        if not self.kept or self.kept[0] != key:
            self.kept = [key, self.last(y), HELD]
        return self.kept[1].clone()"""
ACTNORM = """if self.training and not self.done:
            with torch.no_grad():
                self.loc.copy_(-y.mean((0, 2, 3), keepdim=True)); self.done.fill_(1)
        return self.last(y + self.loc)"""
#: Model's forward; the candidate's, more of its constructor and of its way back; and the reason.
USES: dict[str, tuple[str, str, str, str, str]] = {
    "a way back of its own": (LAST, CALL, "", "", ""),
    "gradients in float16": (LAST, CALL, "", "g = g.half().to(g)", "of the gradient of"),
    "gradients in bfloat16": (LAST, CALL, "", "g = g.bfloat16().to(g)", "of the gradient of"),
    "what the module keeps": (LAST, CALL, "", "x, w = ctx.module.kept", "after another call"),
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
    "of the second with the first": (
        BOTH,
        "return Pair.apply(self.last(y), self.head(y))",
        "",
        "",
        "of the last output alone",
    ),
    "where the input asks": (
        LAST,
        "w = self.last.weight; w = w if x.requires_grad else w.detach(); return F.conv_transpose2d(y, w, None, 2) + "
        "self.last.bias.view(-1, 1, 1)",
        "",
        "",
        "no gradient flows to last.weight",
    ),
    "where a weight asks": (
        LAST,
        "asks = any(each.requires_grad for each in self.parameters()); y = y if asks else y.detach(); "
        "return self.last(y)",
        "",
        "",
        "all parameters frozen",
    ),
    "to the weight as well": (
        LAST,
        CALL,
        "",
        "ctx.module.last.weight.grad = torch.nn.grad.conv2d_weight(g, w.shape, x, 2)",
        "by a second backward()",
    ),
    "once": (LAST, CALL, "", "g = g * (not hasattr(ctx, 'done')); ctx.done = True", "by a second backward()"),
    "large ones": (LAST, CALL, "", "g = g.clamp(-100, 100)", "by a second backward()"),
    "what the module keeps in training": (
        LAST,
        CALL,
        "",
        "x, w = ctx.module.kept if ctx.module.training else (x, w)",
        "by a second backward()",
    ),
    "a norm behind a maximum": (
        "return self.last(F.max_pool2d(self.norm(y), 2))",
        "y = F.max_pool2d(self.norm(y), 2) if self.training else self.norm(F.max_pool2d(y, 2)); return self.last(y)",
        "",
        "",
        "every element",
    ),
    "the version of one weight": (
        LAST,
        "v = self.loc._version, self.training; fresh = torch.is_grad_enabled() or not self.kept or self.kept[0] != v; "
        "self.kept = [v, self.last.weight.detach().clone()] if fresh else self.kept; "
        "w = self.last.weight if torch.is_grad_enabled() else self.kept[1]; "
        "return F.conv_transpose2d(y, w, self.last.bias, 2)",
        "",
        "",
        "after an optimizer's step",
    ),
    "weights that lie in a row": (
        LAST,
        "w = self.last.weight; w = w.as_strided(w.shape, torch.empty(w.shape).stride()); "
        "return F.conv_transpose2d(y, w, self.last.bias, 2)",
        "",
        "",
        "with other weights in channels_last",
    ),
    "a buffer": (
        "return self.last(y), self.norm.running_mean.clone()",
        "return self.last(y), self.norm.running_mean",
        "",
        "",
        "lies in the memory of norm.running_mean",
    ),
    "one for all calls": (
        "return self.last(y), torch.arange(4.0)",
        "self.kept = self.kept or [torch.arange(4.0)]; return self.last(y), self.kept[0]",
        "",
        "",
        "lies in the memory of an earlier output",
    ),
    "another order of names": (
        "return {'y': self.last(y), 'z': self.head(y)}",
        "return {'z': self.head(y), 'y': self.last(y)}",
        "",
        "",
        "output is a dict with 'z', 'y', Model's is a dict with 'y', 'z'",
    ),
    "what it keeps for each size": (
        "self.kept = self.kept or [torch.ones(y.shape)]; return self.last(y * self.kept[0][:1, :, :1, :1])",
        "return self.last(y)",
        "",
        "",
        "",
    ),
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
    "statistics by the versions of parameters": (
        f"return {TRAINED}",
        FOLDED.replace("KEYS", "parameters()"),
        "",
        "",
        "after a call in training that changes buffers",
    ),
    "statistics by their versions": (f"return {TRAINED}", FOLDED.replace("KEYS", "state_dict().values()"), "", "", ""),
    "a result by an address": (LAST, KNOWN.replace("HELD", "0"), "", "", "given inputs times 2^-10"),
    "a result by an address that is held": (LAST, KNOWN.replace("HELD", "x"), "", "", ""),
    "parameters that Model sets, too": (ACTNORM, ACTNORM, "", "", ""),
    "numbers of the results": (
        "return self.last(y), float(y.mean())",
        "return self.last(y), float(y.sum() / y.numel())",
        "",
        "",
        "",
    ),
    "other numbers": (
        "return self.last(y), float(y.abs().mean())",  # the mean itself cancels out: it hangs on rounding
        "return self.last(y), float(y.abs().mean()) * 1.01",
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


INDEXED = """
import torch
import torch.nn as nn

class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, labels):
        ctx.save_for_backward(labels)
        ctx.shape = table.shape
        return table[labels]

    @staticmethod
    def backward(ctx, g):
        (labels,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).BACK(0, labels, g), None

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.up = nn.Parameter(torch.randn(1000, 4)), nn.ConvTranspose2d(4, 3, 2, 2)

    def forward(self, x, labels, cells):
        rows = ROWS
        return self.up(rows.new_zeros(36, 4).PLACE(0, cells, x * rows).t().reshape(1, 4, 6, 6))

def get_inputs():
    return [torch.randn(5, 4), torch.tensor([3, 14, 15, 92, 65]), torch.randperm(36)[:5]]
"""
#: How a candidate gathers rows, sums up at places and brings gradients back to rows; the reason.
OF_INDICES = {
    "the same": ("Rows.apply(self.table, labels)", "index_add", "index_add", ""),
    "one of two at a place": ("self.table[labels]", "index_copy", "index_add", "given a sample twice"),
    "one of two gradients of a row": ("Rows.apply(self.table, labels)", "index_add", "index_copy", "gradient of table"),
}


@pytest.mark.parametrize("name", OF_INDICES)
def test_indices_that_occur_twice(workshop: Workshop, write: Callable[[str, str], Path], name: str) -> None:
    rows, place, back, reason = OF_INDICES[name]
    model = INDEXED.replace("NAME", "Model").replace("ROWS", "self.table[labels]").replace("PLACE", "index_add")
    candidate = INDEXED.replace("NAME", "ModelNew").replace("ROWS", rows).replace("PLACE", place).replace("BACK", back)
    report = judge(write("model.py", model), write("new.py", candidate), workshop=workshop)
    assert report.equal == (not reason), report.reasons
    assert not reason or any(reason in each for each in report.reasons), report.reasons


GIVEN = """
import torch
import torch.nn as nn
from typing import NamedTuple

class Found(NamedTuple):
    y: torch.Tensor
    scale: float

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 3, 2, 2)

    def forward(self, x, scale, mask, step, skips):
        BODY

def get_inputs():
    ones = torch.ones(3, 1, 1, 1, dtype=torch.bool)
    return [torch.randn(3, 4, 6, 5), 0.75, ones, torch.tensor(3), list(torch.randn(2, 3, 3, 12, 10))]
"""
SUM = "y = self.up(x) * scale * mask + step; return Found(y + skips[0] - skips[1], scale)"
#: What the candidate computes instead, and the reason.
CANDIDATES = {
    "the same": ("y = scale * (mask * self.up(x)) + step; return Found(y - (skips[1] - skips[0]), scale)", ""),
    "a number": (SUM.replace("* scale", "* 0.75"), "given other numbers"),
    "a mask of ones": (SUM.replace(" * mask", ""), "given other numbers"),
    "a step": (SUM.replace("+ step", "+ 3"), "given other numbers"),
    "a sample of zeros": (
        SUM.replace("self.up(x)", "self.up(x / x.abs().amax((1, 2, 3), True) * x.abs().amax((1, 2, 3), True))"),
        "given a sample of zeros",
    ),
    "a list that loses one": (SUM.replace("skips[1]", "skips.pop()"), "changed which tensors its inputs hold"),
    "a list that changes": (
        SUM.replace("; return", "; skips[0] = skips[0] + y; y = 0 * y; return"),
        "changed which tensors its inputs hold",
    ),
    "a plain tuple": (SUM.replace("Found", ""), "output is a tuple of 2, Model's is a Found with 'y', 'scale'"),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_all_that_is_given(workshop: Workshop, write: Callable[[str, str], Path], name: str) -> None:
    body, reason = CANDIDATES[name]
    texts = (
        GIVEN.replace("NAME", who).replace("BODY", what.replace("; ", "\n        "))
        for who, what in (("Model", SUM), ("ModelNew", body))
    )
    report = judge(write("model.py", next(texts)), write("new.py", next(texts)), workshop=workshop)
    assert report.equal == (not reason), report.reasons
    assert not reason or any(reason in each for each in report.reasons), report.reasons


@pytest.mark.parametrize(
    ("kept", "change"), [("self.kept", "self.kept.append(0)"), ("[]", "torch.randint(2**20, (1,), generator=G)")]
)
def test_a_model_that_gives_two_results_cannot_be_judged(
    workshop: Workshop, write: Callable[[str, str], Path], kept: str, change: str
) -> None:
    body = f"torch.tanh(self.last(y)) * (1 + len({kept}) + {change if 'G' in change else 0})"
    body = body if "G" in change else f"(self.kept.append(0), {body})[1]"
    text = FILE.replace("BODY", f"return {body}").replace("BACKWARD", "pass").replace("INIT", "pass")
    text += "G = torch.Generator()\n"
    paths = [write(f"{name}.py", text.replace("NAME", name)) for name in ("Model", "ModelNew")]
    with pytest.raises(
        ModelFileError, match="Model gives two results: what it keeps between calls belongs into a buffer"
    ):
        judge(*paths, workshop=workshop)
