"""Candidate files beside model files: the corpus of right and wrong answers, whole models, what cannot be judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.errors import Trouble
from tconv.evaluation.report import Report
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.rotates(4)  # each takes seconds

Writer = Callable[[str, str], Path]
CORPUS = Path(__file__).parents[1] / "corpus"
HONEST = sorted(path.stem.removeprefix("honest_") for path in CORPUS.glob("honest_*.py"))
#: Those with an arithmetic of their own, which is to hold for other arguments, too; the others wrap one of these.
OWN_ARITHMETIC = {
    "compensated_sum",
    "gather",
    "gemm_fold",
    "gemm_index_add",
    "input_gradient",
    "phases",
    "pixel_shuffle",
    "scatter",
    "three_dimensions",
    "zero_insertion",
}
#: Those that are seen to call PyTorch's own operator. It is not seen inside a custom operator.
CALLS_PYTORCH = {
    "channel_chunks",
    "channels_last_inside",
    "functional",
    "fx_traced",
    "input_gradient",
    "sample_by_sample",
    "scripted",
    "sequential",
    "three_dimensions",
    "vmap",
}
#: Those that lack gradients, of the weight alone or all of them.
INFERENCE_ONLY = {"autograd_function", "custom_operator", "prepared_weight", "threads"}

#: For each wrong answer, a part of its first reason on a layer in which every parameter matters.
WRONG = {
    "no_divisibility": "own inputs: at [",
    "kernel_flipped": "own inputs: at [",
    "output_padding_in_index": "own inputs: at [",
    "output_size_without_dilation": "shape is (2, 6, 14, 19), PyTorch's is (2, 6, 16, 19)",
    "group_ignored": "own inputs: at [",
    "weight_shape": "conv_transpose2d.weight has shape (6, 2, 3, 2), in Model it has (4, 3, 3, 2)",
    "weights_drawn_otherwise": "weights drawn otherwise: after the same seed conv_transpose2d.weight differs",
    "parameters_in_other_order": "they are in the order conv_transpose2d.bias, conv_transpose2d.weight, in Model",
    "bias_ignored": "own inputs: at [",
    "groups_refused": "NotImplementedError: groups are not supported",
}
#: Wrong answers that are right where the argument they get wrong has its default, and the variation that shows them.
RIGHT_BY_DEFAULT = {
    "no_divisibility": "with stride=(2, 3): ",
    "output_padding_in_index": "with stride=(3, 2), output_padding=(1, 1): ",
    "output_size_without_dilation": "with dilation=(2, 3): shape, dtype, memory format: ",
    "group_ignored": "with groups=2: ",
    "bias_ignored": "with bias=True: ",
    "groups_refused": "with groups=2: runs: ",
}


def judged(shop: Workshop, model: str, candidate: str, vary: bool = False) -> Report:
    return judge(CORPUS / f"{model}.py", CORPUS / f"{candidate}.py", vary_arguments=vary, workshop=shop)


def test_the_corpus_is_what_these_tests_know() -> None:
    assert {f"wrong_{name}" for name in WRONG} == {path.stem for path in CORPUS.glob("wrong_*.py")}
    assert len(HONEST) >= 30 and {*OWN_ARITHMETIC, *CALLS_PYTORCH} <= set(HONEST)


@pytest.mark.rotates(64)
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_candidate_is_equal(workshop: Workshop, name: str) -> None:
    report = judged(workshop, "model", f"honest_{name}", vary=name in OWN_ARITHMETIC)
    assert report.equal, report.reasons
    assert report.verdict.inference_only == (name in INFERENCE_ONLY), report.verdict
    unchecked = [check.name for check in report.verdict.checks if not check.passed]
    assert unchecked == ["gradients"] * report.verdict.inference_only, report.verdict
    assert len(report.variations) >= 7 * (name in OWN_ARITHMETIC)
    assert report.not_checked == ()
    assert bool(report.verdict.operators) == (name in CALLS_PYTORCH), report.verdict.operators


@pytest.mark.rotates(32)
def test_a_compiled_candidate_is_equal(workshop: Workshop, write: Writer) -> None:
    candidate = write(
        "candidate.py", CANDIDATE.format(forward="return _up(x, self.conv_transpose2d.weight)") + COMPILED
    )
    report = judge(write("model.py", MODEL), candidate, workshop=workshop)
    assert report.equal, report.reasons


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_is_refused_with_its_reason(workshop: Workshop, name: str) -> None:
    report = judged(workshop, "model", f"wrong_{name}")
    assert not report.equal
    assert WRONG[name] in report.reasons[0]


@pytest.mark.rotates(48)
@pytest.mark.parametrize("name", RIGHT_BY_DEFAULT)
def test_what_is_right_by_default_is_refused_with_other_arguments(workshop: Workshop, name: str) -> None:
    report = judged(workshop, "plain", f"wrong_{name}", vary=True)
    assert report.verdict.equal, report.verdict.reasons
    assert not report.equal
    assert report.reasons[0].startswith(RIGHT_BY_DEFAULT[name])
    assert any(variation.verdict.equal for variation in report.variations)


def test_a_report_as_json(workshop: Workshop) -> None:
    told = json.loads(json.dumps(judged(workshop, "plain", "wrong_bias_ignored", vary=True).to_dict()))
    assert told["equal"] is False and told["verdict"]["equal"] is True and told["device"] == "cpu"
    (shown,) = (varied for varied in told["variations"] if varied["changes"] == {"bias": True})
    assert any(check["name"] == "pooled error" and check["passed"] is False for check in shown["verdict"]["checks"])


@pytest.mark.parametrize(("name", "tested"), [("functional", False), ("phases", True)])
def test_what_pytorch_computes_with_other_arguments_is_not_tested(workshop: Workshop, name: str, tested: bool) -> None:
    report = judged(workshop, "plain", f"honest_{name}", vary=True)
    assert report.equal and len(report.variations) > 5
    assert {variation.tested for variation in report.variations} == {tested}
    assert {each["tested"] for each in report.to_dict()["variations"]} == {tested}


MODEL = (CORPUS / "plain.py").read_text().replace("from model import Model  # noqa: F401", "") + (
    CORPUS / "model.py"
).read_text().split("def get_inputs")[0]

CANDIDATE = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x):
        {forward}
"""


COMPILED = """
@torch.compile
def _up(x, weight):
    return 1 * nn.functional.conv_transpose2d(x, weight)
"""


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("raise ValueError('not yet')", "runs: candidate.py line 11: ValueError: not yet (in forward)"),
        ("import os; os._exit(0)", "runs: candidate.py: forward ended with exit code 0 in the middle"),
        ("import os; os.abort()", "runs: candidate.py: forward was ended by SIGABRT"),
        ("return [self.conv_transpose2d(x)]", "got list, PyTorch returns a tensor"),
        ("return None", "forward in candidate.py returns NoneType, no tensor"),
        ("y = self.conv_transpose2d(x); x.zero_(); return y", "inputs unchanged: the call changed input[0]"),
        ("return self.conv_transpose2d(x).transpose(2, 3).contiguous().transpose(2, 3)", "memory format"),
        ("return self.conv_transpose2d(x) + 1e-5 * torch.rand(1)", "same bits twice"),
        ("return self.conv_transpose2d(x.half().float())", "power-of-two scaling"),
        ("return torch.empty(2, 6, 9, 7)", "every element written: the element at [0, 0, 0, 0] was not written"),
    ],
)
def test_a_candidate_that_misbehaves(workshop: Workshop, write: Writer, forward: str, reason: str) -> None:
    candidate = write("candidate.py", CANDIDATE.format(forward=forward.replace("; ", "\n        ")))
    report = judge(write("model.py", MODEL), candidate, workshop=workshop)
    assert not report.equal
    assert any(reason in line for line in report.reasons), report.reasons


def test_an_endless_loop_is_the_candidates_fault(workshop: Workshop, write: Writer) -> None:
    candidate = write("candidate.py", CANDIDATE.format(forward="while True: ..."))
    report = judge(write("model.py", MODEL), candidate, workshop=workshop, timeout_s=2)
    assert report.reasons == ("runs: candidate.py: forward took longer than 2 s",)


def test_another_state_dict(workshop: Workshop, write: Writer) -> None:
    candidate = write(
        "candidate.py", CANDIDATE.format(forward="return self.up(x)").replace("self.conv_transpose2d =", "self.up =")
    )
    (reason,) = judge(write("model.py", MODEL), candidate, workshop=workshop).reasons
    assert "ModelNew lacks conv_transpose2d.weight; Model lacks up.weight" in reason


def test_tf32_is_allowed_where_pytorch_runs_it_and_the_model_file_does_not_forbid_it(
    workshop: Workshop, write: Writer
) -> None:
    rounding = "def r(t):\n    if t.dtype != torch.float32:\n        return t\n"
    rounding += "    return ((t.view(torch.int32) + 4096) & -8192).view(torch.float32)\n"
    forward = "return nn.functional.conv_transpose2d(r(x), r(self.conv_transpose2d.weight))"
    candidate = write("candidate.py", CANDIDATE.format(forward=forward) + "\n" + rounding)
    model = write("model.py", MODEL)
    assert judge(model, candidate, workshop=workshop).equal
    assert judge(model, candidate, workshop=workshop, precision="tf32").equal
    strict = judge(model, candidate, workshop=workshop, precision="fp32")
    assert any(reason.startswith("pooled error") for reason in strict.reasons)
    forbids = write("forbids.py", MODEL + "\ntorch.backends.cudnn.allow_tf32 = False\n")
    assert not judge(forbids, candidate, workshop=workshop).equal


UNET = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.middle = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.head = nn.Conv2d(2 * channels, 1, 1)

    def upsample(self, x):
        return self.up(x)

    def forward(self, x, scale):
        a = self.down(x)
        b = self.upsample(F.relu(self.middle(a)))
        return {"y": self.head(torch.cat([a, b], 1)) * scale, "more": [a.mean(), (b > 0).sum(), 3]}

def get_inputs():
    return [torch.rand(2, 3, 8, 12), 0.5]
"""
UNET_NEW = """
from unet import *

class ModelNew(Model):
    {method}
"""


@pytest.mark.rotates(6)
@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("def nothing(self): ...", None),
        ("def upsample(self, x): return torch.cat([self.up(s[None]) for s in x])", None),
        ("def upsample(self, x): return self.up(x).roll(1, 2)", "every element of output['y']"),
        ("def upsample(self, x): return self.up(x) * (1 + 2**-8)", "pooled error of output['y']"),
        ("def upsample(self, x): return self.up(x) / 0", "every element finite of output['y']"),
        (
            "def forward(self, x, scale): return super().forward(x, scale)['y']",
            "output is a Tensor, Model's is a dict with 'y', 'more'",
        ),
        (
            "def forward(self, x, scale): return {**super().forward(x, scale), 'more': [1, 2]}",
            "output['more'] is a list of 2, Model's is a list of 3",
        ),
        (
            "def forward(self, x, scale): return {**(d := super().forward(x, scale)), 'more': [*d['more'][:2], 4]}",
            "output['more'][2] is 4, Model's is 3",
        ),
        (
            "def forward(self, x, scale): return {**(d := super().forward(x, scale)), 'y': d['y'].double()}",
            "output['y']: dtype is torch.float64",
        ),
        (
            "def upsample(self, x):\n        self.up.bias.data.add_(1)\n        return self.up(x)",
            "the call changed up.bias",
        ),
    ],
)
def test_a_model_of_many_layers(workshop: Workshop, write: Writer, method: str, reason: str | None) -> None:
    report = judge(write("unet.py", UNET), write("new.py", UNET_NEW.format(method=method)), workshop=workshop)
    assert report.equal == (reason is None), report.reasons
    if reason is not None:
        assert any(reason in line for line in report.reasons), report.reasons
    else:
        assert all(check.passed for check in report.verdict.checks)


def test_tf32_in_a_model_of_many_layers_is_allowed_and_less_is_not(workshop: Workshop, write: Writer) -> None:
    method = """def upsample(self, x):
        keep = {bits}
        cut = lambda t: ((t.view(torch.int32) + (1 << keep >> 1)) & -(1 << keep)).view(torch.float32)
        return F.conv_transpose2d(cut(x), cut(self.up.weight), self.up.bias, stride=2)"""
    model = write("unet.py", UNET)
    tf32 = judge(model, write("new.py", UNET_NEW.format(method=method.format(bits=13))), workshop=workshop)
    assert tf32.equal, tf32.reasons
    assert tf32.verdict.check("close to PyTorch of output['y']").passed is None
    bf16 = judge(model, write("new.py", UNET_NEW.format(method=method.format(bits=16))), workshop=workshop)
    assert any("pooled error of output['y']" in reason for reason in bf16.reasons)
    assert not judge(
        model, write("new.py", UNET_NEW.format(method=method.format(bits=13))), workshop=workshop, precision="fp32"
    ).equal


def test_a_model_that_does_not_run_in_float64_is_compared_with_pytorch_alone(workshop: Workshop, write: Writer) -> None:
    text = UNET.replace("return self.up(x)", "return self.up(torch.from_numpy(x.numpy().astype('float32')))")
    text = text.replace("nn.BatchNorm2d(channels), ", "")
    model = write("unet.py", text)
    fine = judge(model, write("new.py", UNET_NEW.format(method="def nothing(self): ...")), workshop=workshop)
    assert fine.equal and fine.verdict.check("pooled error of output['y']").passed is None
    off = judge(
        model,
        write("new.py", UNET_NEW.format(method="def upsample(self, x): return self.up(x) + 0.01")),
        workshop=workshop,
    )
    assert any("close to PyTorch of output['y']" in reason for reason in off.reasons)


def test_sizes_that_would_take_a_cpu_hours_are_cut_down_and_it_is_said(
    workshop: Workshop, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tconv.evaluation.files.judge._CPU_WORK", 50_000)
    model = write("model.py", MODEL.replace("torch.rand(2, 4, 7, 6)", "torch.rand(16, 4, 36, 24)"))
    candidate = write("candidate.py", CANDIDATE.format(forward="return self.conv_transpose2d(x)"))
    report = judge(model, candidate, workshop=workshop)
    assert report.equal
    assert report.not_checked == ("the full size: judged at 2×4×9×6 instead of 16×4×36×24, for want of a GPU",)


@pytest.mark.parametrize(
    "text",
    [
        "import triton\nimport triton.language as tl\n",
        "from cupy import RawKernel\n",
        "from torch.utils.cpp_extension import load_inline\nm = load_inline('m', '', cuda_sources='...')\n",
        "from builder import nvcc\nSOURCE = '''extern \"C\" __global__ void k() {}'''\nk = nvcc(SOURCE)\n",
        "from torch.utils.cpp_extension import load\nm = load('m', ['kernel.cu'])\n",
    ],
)
def test_candidates_that_build_cuda_need_a_gpu(workshop: Workshop, write: Writer, text: str) -> None:
    with pytest.raises(Trouble, match=r"^candidate builds CUDA: needs a GPU$"):
        judge(write("model.py", MODEL), write("candidate.py", text), device="cpu", workshop=workshop)


@pytest.mark.parametrize("words", ["", '"""Instead of a __global__ kernel with cuda_sources."""\n# as in kernel.cu\n'])
def test_a_candidate_in_cpp_alone_is_judged_on_the_cpu(workshop: Workshop, write: Writer, words: str) -> None:
    text = words + "from torch.utils.cpp_extension import load_inline\n"
    candidate = write("candidate.py", text + CANDIDATE.format(forward="return self.conv_transpose2d(x)"))
    assert judge(write("model.py", MODEL), candidate, device="cpu", workshop=workshop).equal


def test_a_branch_for_cuda_is_not_checked_without_a_gpu(workshop: Workshop, write: Writer) -> None:
    branch = "return 0 * x if x.is_cuda else self.conv_transpose2d(x)"
    text = CANDIDATE.format(forward=branch)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "is_cuda" in each)
    report = judge(write("model.py", MODEL), write("candidate.py", text), device="cpu", workshop=workshop)
    assert report.equal
    asked = f"what the candidate does on a GPU alone: it asks for one in line {line} (x.is_cuda)"
    assert report.not_checked == (asked,)
    more = text + "\n".join("torch.cuda.is_available() and 'x' * 99" for _ in range(9))
    report = judge(write("model.py", MODEL), write("candidate.py", more), device="cpu", workshop=workshop)
    assert report.not_checked[0].startswith(asked) and report.not_checked[0].endswith(
        "(torch.cuda.is_available()), and others"
    )


def test_what_is_wrong_with_the_model_file_is_not_the_candidates_fault(workshop: Workshop, write: Writer) -> None:
    candidate = write("candidate.py", CANDIDATE.format(forward="return self.conv_transpose2d(x)"))
    with pytest.raises(ModelFileError, match="Given transposed=1"):
        judge(write("model.py", MODEL.replace("rand(2, 4", "rand(2, 3")), candidate, workshop=workshop)
    with pytest.raises(Trouble, match=r"cannot read .*missing\.py: No such file"):
        judge(write("model.py", MODEL), candidate.with_name("missing.py"), workshop=workshop)


def test_timing_and_cuda_need_a_gpu(workshop: Workshop) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(Trouble, match="timing needs a GPU"):
        judge(CORPUS / "model.py", CORPUS / "honest_scatter.py", bench=True, workshop=workshop)
    with pytest.raises(Trouble, match="PyTorch finds no GPU"):
        judge(CORPUS / "model.py", CORPUS / "honest_scatter.py", device="cuda", workshop=workshop)


def test_bits_may_change_where_the_models_own_do(workshop: Workshop, write: Writer) -> None:
    counter = "_run = iter(range(10**6))\n"
    wavers = "return self.up(x) * (1 + 2.0**-22 * (next(_run) % 2))"
    model = write("unet.py", counter + UNET.replace("return self.up(x)", wavers))
    report = judge(model, write("new.py", UNET_NEW.format(method="def nothing(self): ...")), workshop=workshop)
    again = report.verdict.check("same bits twice")
    assert again.passed is None and again.reason == "not required: PyTorch's own runs differ, too"
