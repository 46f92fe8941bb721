"""What a replacement must still do beside its result: wrong candidates are refused, honest ones like them are equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.evaluation.report import Report
from tconv.sandbox.worker import Workshop

Writer = Callable[[str, str], Path]
pytestmark = pytest.mark.rotates(48)

FILE = """
import random, threading
import torch
import torch.nn as nn
import torch.nn.functional as F

class NAME(nn.Module):
    kept = None

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, 2)
        self.side = nn.Parameter(torch.ones(1))
        self.drop = nn.Dropout(0.5)
        INIT

    def forward(self, x):
        FORWARD

def get_inputs():
    return [torch.rand(3, 4, 7, 6)]
"""
SIDE = "        self.side = nn.Parameter(torch.ones(1))\n"
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
    "another list of parameters": (
        "type(self).parameters = lambda self, recurse=True: iter([self.up.weight])",
        "parameters() gives others than named_parameters()",
    ),
    "a buffer beside it": ("self.register_buffer('prepared', torch.ones(1), persistent=False)", ""),
}
TIED = "self.more = nn.ConvTranspose2d(4, 6, 3, 2); self.more.weight = self.up.weight"
#: Model's constructor, the candidate's, and the reason.
TIES = {
    "tied in both": (TIED, TIED, ""),
    "tied in Model": (
        TIED,
        "self.more = nn.ConvTranspose2d(4, 6, 3, 2); self.more.weight = nn.Parameter(self.up.weight.detach().clone())",
        "more.weight is one of its own, in Model it is the same as up.weight: tie parameters as Model does",
    ),
    "tied in ModelNew": (
        "self.more = nn.ConvTranspose2d(4, 6, 3, 2); self.more.weight = nn.Parameter(self.up.weight.detach().clone())",
        TIED,
        "more.weight is the same as up.weight, in Model it is one of its own",
    ),
}
#: Model's forward, the candidate's, and the reason.
LEFT_AGAIN = {
    "the same memory each time": (
        FORWARD,
        "y = self.up(x); self.kept = y if self.kept is None or self.kept.shape != y.shape else self.kept.copy_(y); "
        "return self.kept",
        "keeps its results: a call writes over what an earlier one returned",
    ),
    "the same memory every fourth time": (
        FORWARD,
        "y = self.up(x); self.kept = self.kept or {}; ring = self.kept.setdefault(y.shape, []); "
        "ring.append(ring.pop(0).copy_(y) if len(ring) == 4 else y); return ring[-1]",
        "keeps its results: a call writes over what an earlier one returned",
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
    "random numbers that the next call has again": (
        "y = self.up(x); return y + 0.1 * torch.randn_like(y)",
        "y = self.up(x); s = torch.get_rng_state(); y = y + 0.1 * torch.randn_like(y); "
        "torch.set_rng_state(s); return y",
        "draws random numbers",
    ),
    "small numbers as zeros": (
        FORWARD,
        "torch.set_flush_denormal(True); return self.up(x)",
        "torch.set_flush_denormal()",
    ),
    "what is saved for gradients": (
        FORWARD,
        "torch.autograd.graph.save_on_cpu().__enter__(); return self.up(x)",
        "the hooks on saved tensors",
    ),
    "a result that asks for gradients": (
        FORWARD,
        "y = self.up(x); return y if y.requires_grad else y.requires_grad_()",
        "plain results: without gradients, Model's are plain: return what no_grad() computes; output asks for",
    ),
    "a parameter in Model, too": ("return self.up(x), self.up.bias", "return self.up(x) * 1, self.up.bias", ""),
    "an inference tensor": (
        FORWARD,
        "with torch.inference_mode(not torch.is_grad_enabled()):; \treturn self.up(x)",
        "output is an inference tensor",
    ),
    "no gradient that was there": (
        FORWARD,
        "torch.is_grad_enabled() or self.zero_grad(); return self.up(x)",
        "inputs unchanged: the call changed up.bias.grad",
    ),
    "a gradient of zeros": (
        FORWARD,
        "torch.is_grad_enabled() or self.zero_grad(set_to_none=False); return self.up(x)",
        "inputs unchanged: the call changed up.bias.grad",
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

    def on(
        candidate: str = FORWARD,
        model: str = FORWARD,
        *,
        init: str = "",
        models_init: str = "",
        side: bool = False,
        more: str = "",
        **options: bool,
    ) -> Report:
        def text(name: str, forward: str, init: str) -> str:
            lines = (each.replace("; ", "\n        ").replace("\t", "    ") for each in (init, forward))
            text = FILE if side else FILE.replace(SIDE, "")
            return text.replace("NAME", name).replace("INIT", next(lines)).replace("FORWARD", next(lines)) + more

        paths = write("model.py", text("Model", model, models_init)), write("new.py", text("ModelNew", candidate, init))
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


@pytest.mark.parametrize("name", TIES)
def test_tied_parameters(judged: Callable[..., Report], name: str) -> None:
    models, candidates, reason = TIES[name]
    forward = "return self.up(x) + self.more(x)"
    expect(judged(forward, forward, init=candidates, models_init=models), reason)


@pytest.mark.parametrize("name", LEFT_AGAIN)
def test_what_a_call_leaves_behind(judged: Callable[..., Report], name: str) -> None:
    model, candidate, reason = LEFT_AGAIN[name]
    expect(judged(candidate, model), reason)


FUNCTION = """
KEPT = {}

class Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.conv_transpose2d(x, weight, bias, 2)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        to_x, to_weight = F.conv2d(grad, weight, None, 2), torch.nn.grad.conv2d_weight(grad, weight.shape, x, 2)
        return GRADIENTS
"""
CALL = "return Up.apply(x, self.up.weight, self.up.bias)"
#: What the function gives back, and the reason, or with a star what is said of gradients that are missing.
BACKWARD = {
    "its own": ("to_x, to_weight, grad.sum((0, 2, 3))", ""),
    "half of the input's": ("to_x / 2, to_weight, grad.sum((0, 2, 3))", "every element of the gradient of input[0]"),
    "a flipped weight's": ("to_x, to_weight.flip(2), grad.sum((0, 2, 3))", "the gradient of up.weight"),
    "a mean of the bias": ("to_x, to_weight, grad.mean((0, 2, 3))", "the gradient of up.bias"),
    "in bfloat16": (
        "to_x.bfloat16().float(), to_weight, grad.sum((0, 2, 3))",
        "every element of the gradient of input[0]",
    ),
    "zeros": ("0 * to_x, 0 * to_weight, grad.sum((0, 2, 3))", "the gradient of input[0]"),
    "none of the weight's": ("to_x, None, grad.sum((0, 2, 3))", "*no gradient flows to up.weight"),
    "none of the weight's, and a wrong one": ("to_x * 2, None, grad.sum((0, 2, 3))", "the gradient of input[0]"),
    "none": ("None, None, None", "*no gradient flows"),
    "in memory of its own": ("to_x.clone(), to_weight.clone(), grad.sum((0, 2, 3))", ""),
    "in the same memory each time": (
        "KEPT.setdefault(x.shape, torch.empty_like(x)).copy_(to_x), to_weight, grad.sum((0, 2, 3))",
        "keeps its results: a call writes over what an earlier one returned: "
        "return memory of its own each time; changed a gradient",
    ),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_gradients(judged: Callable[..., Report], name: str) -> None:
    given, reason = BACKWARD[name]
    report = judged(CALL, more=FUNCTION.replace("GRADIENTS", given))
    if not reason.startswith("*"):
        expect(report, reason)
        return
    assert report.equal and report.verdict.inference_only, report.reasons
    assert report.verdict.check("gradients").reason == f"inference only: {reason[1:]}"
    expect(
        judged(CALL, more=FUNCTION.replace("GRADIENTS", given), training=True), f"inference only: {reason[1:]}; --tr"
    )


#: With gradients enabled: Model's forward, the candidate's, the reason; with a star what is said.
ENABLED = {
    "another result": (
        FORWARD,
        "y = self.up(x); return y * 1.01 if y.requires_grad else y",
        "every element, with gradients enabled: at [",
    ),
    "another function with the same result": (
        FORWARD,
        "return (torch.func.functional_call(self.up, dict(self.up.named_parameters()), (x,)) "
        "if torch.is_grad_enabled() else self.up(x))",
        "",
    ),
    "an error": (FORWARD, "return torch.from_numpy(self.up(x).numpy())", "*with gradients enabled, new.py line"),
    "no gradient": (FORWARD, "with torch.no_grad():; \treturn self.up(x)", "*no gradient flows"),
    "no way back": (FORWARD, "return Up.apply(x, self.up.weight, self.up.bias)", "*no gradient flows; new.py"),
    "less than Model detaches": (
        "return self.up(x) + self.up(x).detach()",
        "return 2 * self.up(x)",
        "the gradient of up.weight",
    ),
    "one that Model does not have": (
        "y = self.up(x); return y.detach() + self.side",
        "return self.up(x) + self.side",
        "a gradient of input[0] flows where none does in Model: detach what Model detaches",
    ),
    "Model has none": ("with torch.no_grad():; \treturn self.up(x)", "return self.up(x).detach()", ""),
    "a branch around a kernel without": (
        "return self.up(torch.relu(x * self.side)) + x.mean() * self.side",
        "return self.up(torch.relu(x * self.side)).detach() + x.mean() * self.side",
        "*no gradient flows to up.weight, up.bias",
    ),
    "a branch that is wrong besides": (
        "return self.up(torch.relu(x * self.side)) + x.mean() * self.side",
        "y = x.mean() * self.side; return self.up(torch.relu(x * self.side)).detach() + 2 * y - y.detach()",
        "the gradient of side",
    ),
    "a bias before a norm": (
        "y = self.up(x); return F.batch_norm(y, None, None, training=True)",
        "y = self.up(x); v, m = torch.var_mean(y, (0, 2, 3), correction=0, keepdim=True); "
        "return (y - m) * torch.rsqrt(v + 1e-5)",
        "",
    ),
    "an input that Model changes": ("return self.up(x.mul_(1))", "return self.up(x)", ""),
}


@pytest.mark.parametrize("name", ENABLED)
def test_with_gradients_enabled(judged: Callable[..., Report], name: str) -> None:
    model, candidate, reason = ENABLED[name]
    more = FUNCTION[: FUNCTION.index("    @staticmethod\n    def backward")]
    report = judged(candidate, model, side=True, more=more)
    if not reason.startswith("*"):
        expect(report, reason)
        assert not report.equal or report.verdict.check("gradients").passed
        return
    assert report.equal and report.verdict.inference_only, report.reasons
    assert report.verdict.check("gradients").reason.startswith(f"inference only: {reason[1:]}")


def test_gradients_for_which_memory_is_lacking_are_not_checked(judged: Callable[..., Report]) -> None:
    lack = "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"
    report = judged(f"if x.requires_grad: {lack}; return self.up(x)", training=True)
    assert report.equal and not report.verdict.inference_only
    check = report.verdict.check("gradients")
    assert check.passed is None and "Tried to allocate 2.00 GiB" in check.reason


CONVOLVE = "F.conv_transpose2d(x, self.kept, self.up.bias, 2)"
PREPARE = f"self.kept = self.up.weight * 1 if self.kept is None else self.kept; return {CONVOLVE}"
#: How a candidate comes by its weights: more of its constructor, its forward, the reason; with a star what is said.
PREPARED = {
    "when a state is loaded": (
        "self.register_load_state_dict_post_hook(lambda *_: setattr(self, 'kept', None))",
        PREPARE,
        "after an optimizer's step the result is not that of the weights it has",
    ),
    "when the mode changes": (
        "train = self.train; self.train = lambda mode=True: (setattr(self, 'kept', None), train(mode))[1]; "
        "self.register_load_state_dict_post_hook(lambda *_: setattr(self, 'kept', None))",
        PREPARE,
        "after an optimizer's step",
    ),
    "by version and address": (
        "",
        "w = self.up.weight; key = w.data_ptr(), w._version, w.dtype; "
        "self.kept = (key, w * 1) if self.kept is None or self.kept[0] != key else self.kept; "
        "return F.conv_transpose2d(x, self.kept[1], self.up.bias, 2)",
        "",
    ),
    "by the module that was loaded last": (
        "self.register_load_state_dict_post_hook(lambda module, _: setattr(type(module), 'kept', module.up.weight))",
        f"return {CONVOLVE}",
        "after other weights in a deep copy the result is not that of the weights it has",
    ),
    "a state as it was built": (
        "saved = {name: each.clone() for name, each in self.state_dict().items()}; "
        "self.state_dict = lambda *_, **__: saved",
        FORWARD,
        "after torch.save and load_state_dict of a new module",
    ),
    "a closure over the module": ("self.run = lambda x: self.up(x)", "return self.run(x)", "after copy.deepcopy, with"),
    "no deep copy": (
        "self.lock = threading.Lock()",
        FORWARD,
        "*not checked: new.py: TypeError: cannot pickle",
    ),
    "float32 alone": (
        "",
        "assert x.dtype == torch.float32; return self.up(x)",
        "*not checked: after a cast to another type",
    ),
    "float32 inside": (
        "",
        "return F.conv_transpose2d(x.float(), self.up.weight.float(), self.up.bias.float(), 2).to(x)",
        "",
    ),
    "bits of another type": (
        "",
        "w = self.up.weight; w = w if w.dtype == torch.float32 else w.view(torch.int16).to(w); "
        "return F.conv_transpose2d(x, w, self.up.bias, 2)",
        "after a cast to another type",
    ),
    "half of what bfloat16 holds": (
        "",
        "w = self.up.weight; w = w / 2 if w.dtype == torch.bfloat16 else w; "
        "return F.conv_transpose2d(x, w, self.up.bias, 2)",
        "after a cast to another type, torch.bfloat16 the result is not that of the weights it has",
    ),
    "bfloat16 inside float64": (
        "",
        "w = self.up.weight; w = w.bfloat16().to(w) if w.dtype == torch.float64 else w; "
        "return F.conv_transpose2d(x, w, self.up.bias, 2)",
        "after a cast to another type, torch.float64 the result",
    ),
    "float32 inside float64": (
        "",
        "w = self.up.weight; w = w.float().to(w) if w.dtype == torch.float64 else w; "
        "return F.conv_transpose2d(x, w, self.up.bias, 2)",
        "",
    ),
    "no bfloat16": (
        "",
        "assert x.dtype != torch.bfloat16; return self.up(x)",
        "*not checked: after a cast to another type, torch.bfloat16",
    ),
    "a copy of the weight that is no parameter": (
        "self.kept = self.up.weight.detach().clone(); "
        "self.register_load_state_dict_post_hook(lambda *_: (self.kept.copy_(self.up.weight.detach()), None)[1])",
        f"return {CONVOLVE}",
        "after an optimizer's step",
    ),
}


@pytest.mark.parametrize("name", PREPARED)
def test_weights_that_change(judged: Callable[..., Report], name: str) -> None:
    init, forward, reason = PREPARED[name]
    report = judged(forward, init=init)
    if not reason.startswith("*"):
        expect(report, reason)
        return
    assert report.equal, report.reasons
    check = report.verdict.check("weights that change")
    assert check.passed is None and check.reason.startswith(reason[1:]), check
