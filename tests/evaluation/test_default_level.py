"""What honest candidates get wrong: each is refused at the default level, and its right twin is equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tconv.evaluation.files.judge import judge
from tconv.sandbox.worker import Workshop

Writer = Callable[[str, str], Path]
pytestmark = pytest.mark.rotates(24)

FILE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, (3, 2), (2, 1))
        self.norm = nn.BatchNorm2d(6)
        self.act = nn.PReLU()
        self.drop = nn.Dropout(0.25)
        self.kept = {}
        INIT

    def upsampled(self, x, weight=None):
        return F.conv_transpose2d(x, self.up.weight if weight is None else weight, self.up.bias, self.up.stride)

    def behind(self, y):
        return self.drop(self.act(self.norm(y)))

    def forward(self, x):
        FORWARD

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, weight):
        ctx.save_for_backward(y, weight)
        return 2 * y * weight.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx, gradient):
        y, weight = ctx.saved_tensors
        return 2 * gradient * weight.view(1, -1, 1, 1), PART * (gradient * y).sum(AXES)

def get_inputs():
    return [torch.rand(4, 4, 8, 6)]
"""
FORWARD = "return self.behind(self.upsampled(x))"

#: Of the constructor alone: wrong, right, and the reason.
BUILT = {
    "a buffer that is left out": (
        "del self.norm.num_batches_tracked; self.norm.num_batches_tracked = None",
        "",
        "ModelNew lacks norm.num_batches_tracked",
    ),
    "a weight that is a buffer": (
        "w = self.up.weight.detach(); del self.up.weight; self.up.register_buffer('weight', w)",
        "self.up.weight = nn.Parameter(self.up.weight.detach().clone())",
        "up.weight is no parameter",
    ),
    "a weight that is drawn anew": (
        "nn.init.normal_(self.up.weight)",
        "self.up.weight.data = self.up.weight.data.clone()",
        "weights drawn otherwise",
    ),
    "parameters in another order": (
        "w = self.up.weight; del self.up.weight; self.up.weight = w",
        "w = self.up.weight; self.up.weight = w",
        "register them in Model's order",
    ),
    "a default type that is left changed": (
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.float32)",
        "flags and random state",
    ),
}
BATCH_NORM = (
    "n = self.norm; y = self.upsampled(x)\n"
    "if not self.training: m, v = n.running_mean, n.running_var\n"
    "else:\n"
    "    m, v = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)\n"
    "    k = y.numel() / y.shape[1]; s = n.momentum\n"
    "    with torch.no_grad():\n"
    "        n.running_mean += s * (m - n.running_mean); n.running_var += s * (v * k / (k - 1) - n.running_var)\n"
    "        n.num_batches_tracked += 1\n"
    "m, r, w, b = (t.view(1, -1, 1, 1) for t in (m, (v + n.eps).rsqrt(), n.weight, n.bias))\n"
    "return self.drop(self.act((y - m) * r * w + b))"
)
FOLDED = (
    "if self.training: return self.behind(self.upsampled(x))\n"
    "n = self.norm\n"
    "if KEY not in self.kept:\n"
    "    f = n.weight / (n.running_var + n.eps).sqrt()\n"
    "    b = (self.up.bias - n.running_mean) * f + n.bias\n"
    "    self.kept.clear(); self.kept[KEY] = self.up.weight * f.view(1, -1, 1, 1), b\n"
    "w, b = self.kept[KEY]\n"
    "return self.act(F.conv_transpose2d(x, w, b, self.up.stride))"
)
KEY = "tuple((t.data_ptr(), t._version) for t in (*self.parameters(), *self.buffers()))"
PREPARED = (
    "k = KEY\n"
    "if k not in self.kept: self.kept.clear(); self.kept[k] = self.up.weight.to(x.dtype, copy=True)\n"
    "return self.behind(self.upsampled(x, self.kept[k]))"
)
DENSE = "x = torch.as_strided(x, x.shape, torch.empty(x.shape).stride())"
SAMPLES = "return torch.cat([self.behind(self.upsampled(part)) for part in PARTS])"
#: Of `forward`: Model's, that of a wrong candidate, what is changed in it for a right one, and the reason.
CALLED = {
    # Of a state that is not as built, in evaluation and in training.
    "a norm's mean that is zero as built": (
        FORWARD,
        BATCH_NORM.replace("m, v = n.running_mean,", "m, v = 0 * n.running_mean,"),
        ("0 * n.running", "n.running"),
        "in evaluation",
    ),
    "a norm's bias that is zero as built": (FORWARD, BATCH_NORM.replace("* w + b", "* w"), ("* w", "* w + b"), "in "),
    "a slope that is a quarter as built": (
        FORWARD,
        "return self.drop(F.leaky_relu(self.norm(self.upsampled(x)), 0.25))",
        ("F.leaky_relu(self.norm(self.upsampled(x)), 0.25)", "self.act(self.norm(self.upsampled(x)))"),
        "in evaluation",
    ),
    "statistics of the batch in evaluation": (
        FORWARD,
        "y = self.upsampled(x); n = self.norm\n"
        "return self.drop(self.act(F.batch_norm(y, n.running_mean, n.running_var, n.weight, n.bias, True)))"
        " if not self.training else self.behind(y)",
        ("n.bias, True)", "n.bias, False)"),
        "in evaluation",
    ),
    "dropout in evaluation": (
        FORWARD,
        "return F.dropout(self.act(self.norm(self.upsampled(x))), 0.25)",
        ("0.25)", "0.25, self.training)"),
        "in evaluation",
    ),
    "a variance that is divided by the wrong count": (
        FORWARD,
        BATCH_NORM.replace("v * k / (k - 1)", "v"),
        ("v - n.running_var", "v * k / (k - 1) - n.running_var"),
        "running_var",
    ),
    "a momentum the other way round": (
        FORWARD,
        BATCH_NORM.replace("s = n.momentum", "s = 1 - n.momentum"),
        ("1 - n.momentum", "n.momentum"),
        "running_mean",
    ),
    "batches that are not counted": (
        FORWARD,
        BATCH_NORM.replace("n.num_batches_tracked += 1", "pass"),
        ("        pass", "        n.num_batches_tracked += 1"),
        "num_batches_tracked",
    ),
    # Of weights that are loaded, or that a step changes.
    "a weight that is prepared once": (FORWARD, PREPARED.replace("KEY", "0"), ("k = 0", f"k = {KEY}"), ""),
    "a weight that is known by its address": (
        FORWARD,
        PREPARED.replace("KEY", "self.up.weight.data_ptr()"),
        ("k = self.up.weight.data_ptr()", f"k = {KEY}"),
        "",
    ),
    "a norm that is folded once": (
        FORWARD,
        FOLDED.replace("KEY", "0"),
        ("kept[0]", f"kept[{KEY}]", "if 0", f"if {KEY}"),
        "",
    ),
    "a weight that is prepared when a state is loaded": (
        FORWARD,
        "if not hasattr(self, 'hook'):\n"
        "    self.hook = self.register_load_state_dict_post_hook(lambda *_: self.kept.clear())\n"
        + PREPARED.replace("KEY", "0"),
        ("k = 0", f"k = {KEY}"),
        "after an optimizer's step",
    ),
    # Of layouts.
    "inputs that lie without gaps": (
        FORWARD,
        f"{DENSE}\n{FORWARD}",
        ("x = torch", "x = x.contiguous(); x = torch"),
        "given",
    ),
    "inputs that begin with their memory": (
        FORWARD,
        f"x = torch.as_strided(x, x.shape, x.stride(), 0); {FORWARD}",
        ("x.stride(), 0)", "x.stride(), x.storage_offset())"),
        "given inputs at an offset",
    ),
    "channels_last that is read in the order of memory": (
        FORWARD,
        f"x = torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) if x.stride(1) == 1 else x; {FORWARD}",
        ("torch.as_strided(x, x.shape, torch.empty(x.shape).stride())", "x.contiguous()"),
        "given",
    ),
    "samples that lie one behind the other": (
        FORWARD,
        # Zeros stand for whatever lies behind the only one.
        f"x = x if x.stride(0) else torch.cat([x[:1], torch.zeros_like(x[1:])]); {FORWARD}",
        ("torch.cat([x[:1], torch.zeros_like(x[1:])])", "x.contiguous()"),
        "given expanded inputs",
    ),
    # Of sizes.
    "rows in pairs": (
        FORWARD,
        "h = x.shape[2] // 2 * 2; y = self.upsampled(x); y[:, :, 2 * h + 1:] = 0; return self.behind(y)",
        ("x.shape[2] // 2 * 2", "x.shape[2]"),
        "given inputs of another size",
    ),
    "columns up to a tile": (
        FORWARD,
        "y = self.upsampled(x); y = torch.cat([y[..., :7], 0 * y[..., 7:]], 3) if y.shape[3] != 7 else y\n"
        "y = y * (y.shape[3] > 6); return self.behind(y)",
        ("(y.shape[3] > 6)", "1"),
        "given",
    ),
    "batches of two or more": (
        FORWARD,
        SAMPLES.replace("PARTS", "(x[: len(x) // 2], x[len(x) // 2 :])") + "\n",
        ("return torch.cat", "return self.behind(self.upsampled(x)) if self.training or len(x) < 2 else torch.cat"),
        "",
    ),
    "a mean over the batch that one sample hides": (
        "y = self.upsampled(x); return y - y.mean((1, 2, 3), keepdim=True)",
        "y = self.upsampled(x); return y - (y.mean((1, 2, 3), keepdim=True) if len(y) > 1 else y.mean() / 2)",
        ("y.mean() / 2", "y.mean()"),
        "given a batch of one",
    ),
    # Of what is no number.
    "a maximum that leaves NaN out": (
        "return F.relu(self.upsampled(x))",
        "y = self.upsampled(x); return torch.fmax(y, torch.zeros_like(y))",
        ("torch.fmax", "torch.maximum"),
        "is not a number",
    ),
    "a comparison that NaN fails": (
        "return F.relu(self.upsampled(x))",
        "y = self.upsampled(x); return torch.where(y > 0, y, torch.zeros_like(y))",
        ("torch.where(y > 0, y, torch.zeros_like(y))", "torch.where(y <= 0, torch.zeros_like(y), y)"),
        "is not a number",
    ),
    "the largest number for infinity": (
        "return self.upsampled(x)",
        "y = self.upsampled(x); return y.clamp(-3e38, 3e38)",
        (".clamp(-3e38, 3e38)", ".clamp(-torch.inf, torch.inf)"),
        "is infinite",
    ),
    # Of scales.
    "float16 inside": (
        FORWARD,
        "return self.behind(self.upsampled(x.half().float()))",
        (".half().float()", ""),
        "",
    ),
    "weights in float16": (
        "return self.upsampled(x, 1e-7 * self.up.weight)",
        "return self.upsampled(x, (1e-7 * self.up.weight).half().float())",
        (".half().float()", ""),
        "",
    ),
    "an exponential that overflows": (
        "return F.softplus(self.upsampled(x))",
        "return torch.log1p(torch.exp(self.upsampled(x)))",
        ("torch.log1p(torch.exp(self.upsampled(x)))", "F.softplus(self.upsampled(x))"),
        "given inputs times 2^",
    ),
    "a constant beside small numbers": (
        "return F.normalize(F.conv_transpose2d(x, self.up.weight), dim=1, eps=1e-12)",
        "return F.normalize(F.conv_transpose2d(x, self.up.weight), dim=1, eps=1e-5)",
        ("1e-5", "1e-12"),
        "given inputs times 2^-",
    ),
    "a division by zero": (
        "y = F.conv_transpose2d(x, self.up.weight); return y / y.abs().amax((1, 2, 3), True).clamp(min=1e-20)",
        "y = F.conv_transpose2d(x, self.up.weight); return y / y.abs().amax((1, 2, 3), True)",
        ("True)", "True).clamp(min=1e-20)"),
        "given a sample of zeros",
    ),
    # Of types.
    "bits that are read as another type": (
        "return self.upsampled(x)",
        "return self.upsampled(x if x.dtype == torch.float32 else x.view(torch.bfloat16).to(x.dtype))",
        (".view(torch.bfloat16).to(x.dtype)", ""),
        "torch.float16",
    ),
    # Of gradients.
    "a gradient that is taken of one sample": (
        "y = self.upsampled(x); return 2 * y * self.norm.weight.view(1, -1, 1, 1)",
        "return Doubled.apply(self.upsampled(x), self.norm.weight)#1",
        ("#1", "#2"),
        "of the gradient of norm.weight",
    ),
    "statistics without gradients": (
        FORWARD,
        BATCH_NORM.replace("y.var((0, 2, 3), correction=0)", "y.var((0, 2, 3), correction=0).detach()"),
        (".detach()", ""),
        "gradient",
    ),
    # Of every call.
    "one buffer for all results": (
        "return self.upsampled(x)",
        "y = self.upsampled(x)\n"
        "if torch.is_grad_enabled(): return y\n"
        "b = self.kept.setdefault((y.shape, y.dtype), torch.empty_like(y)); return b.copy_(y)",
        ("b.copy_(y)", "b.copy_(y).clone()"),
        "keeps its results",
    ),
    "an input that is written to": (
        "return self.upsampled(2 * x)",
        "return self.upsampled(2 * x if torch.is_grad_enabled() else x.mul_(2))",
        ("x.mul_(2)", "x.mul(2)"),
        "inputs unchanged",
    ),
    "random numbers that nobody asked for": (
        "return self.upsampled(x)",
        "torch.rand(1); return self.upsampled(x)",
        ("torch.rand(1); ", ""),
        "flags and random state",
    ),
    "a flag that is left changed": (
        "return self.upsampled(x)",
        "torch.use_deterministic_algorithms(True, warn_only=True); return self.upsampled(x)",
        ("torch.use_deterministic_algorithms(True, warn_only=True); ", ""),
        "flags and random state",
    ),
}


def _file(name: str, init: str, forward: str) -> str:
    text = FILE.replace("NAME", name, 1)
    for place, lines in (("INIT", init or "pass"), ("FORWARD", forward)):
        text = text.replace(place, lines.replace("\n", "\n        "), 1)
    one_sample = "#1" in forward
    return text.replace("PART", "1" if one_sample else "2").replace("AXES", "(0, 2, 3)")


@pytest.fixture
def judged(workshop: Workshop, write: Writer) -> Callable[..., tuple[bool, tuple[str, ...]]]:
    def run(model: str, candidate: str) -> tuple[bool, tuple[str, ...]]:
        paths = write("model.py", model), write("candidate.py", candidate)
        report = judge(*paths, training=True, workshop=workshop)
        return report.equal, report.reasons

    return run


@pytest.mark.parametrize("name", BUILT)
def test_what_is_built(judged: Callable[..., tuple[bool, tuple[str, ...]]], name: str) -> None:
    wrong, right, reason = BUILT[name]
    model = _file("Model", "", FORWARD)
    equal, reasons = judged(model, _file("ModelNew", wrong, FORWARD))
    assert not equal and any(reason in each for each in reasons), reasons
    assert judged(model, _file("ModelNew", right, FORWARD)) == (True, ())


@pytest.mark.parametrize("name", CALLED)
def test_what_is_called(judged: Callable[..., tuple[bool, tuple[str, ...]]], name: str) -> None:
    of_model, wrong, changes, reason = CALLED[name]
    right = wrong
    for before, after in zip(changes[::2], changes[1::2], strict=True):
        assert before in right
        right = right.replace(before, after)
    model = _file("Model", "", of_model)
    equal, reasons = judged(model, _file("ModelNew", "", wrong))
    assert not equal and any(reason in each for each in reasons), reasons
    assert judged(model, _file("ModelNew", "", right)) == (True, ())
