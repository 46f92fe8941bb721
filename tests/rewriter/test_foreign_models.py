"""Model files as others write them: names for names, odd texts, what cannot be replaced and must say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tconv.rewriter.outcome import Outcome, Request
from tconv.rewriter.run import optimize
from tconv.sandbox.model_file import ModelFileError

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="these say what happens without a GPU"),
    pytest.mark.usefixtures("one_workshop"),
    pytest.mark.rotates(36),
]

#: A model whose forward is BODY, under the imports IMPORTS.
MODEL = """\
import torch
from torch import nn
import torch.nn.functional as F
IMPORTS

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 2, 2))
        self.up = nn.ConvTranspose2d(4, 2, 3)

    def forward(self, x):
        BODY

def get_inputs():
    return [torch.rand(2, 3, 4, 4)]
"""
Write = Callable[..., Path]


def model(imports: str, body: str) -> str:
    return MODEL.replace("IMPORTS", imports).replace("BODY", body)


def optimized(path: Path) -> Outcome:
    return optimize(Request(path, path.with_name("out.py")))


def left(outcome: Outcome) -> dict[str, str]:
    return {check.layer.name: check.layer.reason for check in outcome.layers if check.layer.left}


@pytest.mark.parametrize(
    ("imports", "body", "call"),
    [
        ("FF = nn.functional", "return self.up(FF.conv_transpose2d(x, self.weight))", "cuda_conv_transpose2d(x"),
        ("grow = F.conv_transpose2d", "return self.up(grow(x, self.weight))", "cuda_conv_transpose2d(x"),
        ("", "f = torch.nn.functional\n        return self.up(f.conv_transpose2d(x, self.weight))",
         "cuda_conv_transpose2d(x"),
    ],
)  # fmt: skip
def test_names_for_names_are_followed(model_file: Write, imports: str, body: str, call: str) -> None:
    outcome = optimized(model_file(model(imports, body)))
    assert outcome.equal and outcome.written and not left(outcome)
    text = outcome.request.output.read_text(encoding="utf-8")
    assert call in text.partition("# The model file")[2]


def test_calls_that_the_text_does_not_show_are_left_and_named(model_file: Write) -> None:
    body = "return self.up(getattr(F, f'conv_transpose{x.dim() - 2}d')(x, self.weight))"
    outcome = optimized(model_file(model("", body)))
    assert outcome.equal and outcome.written
    [(name, reason)] = left(outcome).items()
    assert name.startswith("line ") and reason.startswith("called in a way that is not seen in the text")


def test_a_line_whose_calls_are_seen_in_part_stays(model_file: Write) -> None:
    body = "return self.up(torch.ops.aten.convolution(x, self.weight, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1)"
    body += " + F.conv_transpose2d(x, self.weight))"
    outcome = optimized(model_file(model("", body)))
    assert outcome.equal and outcome.written
    assert [name.startswith("line ") for name in left(outcome)] == [True]


def test_nothing_but_unseen_calls_is_no_success(model_file: Write) -> None:
    body = "return getattr(F, 'conv_transpose2d')(x, self.weight)"
    path = model_file(model("", body))
    with pytest.raises(ModelFileError, match=r"nothing can be replaced: line \d+ is called in a way that is not seen"):
        optimized(path)
    assert not path.with_name("out.py").exists()


@pytest.mark.parametrize("part", ["whole", "part"])
def test_inference_mode_hides_nothing(model_file: Write, part: str) -> None:
    within = "with torch.inference_mode():\n            y = F.conv_transpose2d(x, self.weight)"
    body = {
        "whole": "with torch.inference_mode():\n            return self.up(F.conv_transpose2d(x, self.weight))",
        "part": f"{within}\n        return self.up(y.clone())",
    }[part]
    outcome = optimized(model_file(model("", body)))
    assert outcome.equal and outcome.written and not left(outcome)
    assert len(outcome.layers) == 2


def test_scripted_functions_stay_torchs(model_file: Write) -> None:
    function = "@torch.jit.script\ndef grow(x, w):\n    return torch.conv_transpose2d(x, w)"
    outcome = optimized(model_file(model(function, "return self.up(grow(x, self.weight))")))
    assert outcome.equal and outcome.written
    assert len(left(outcome)) == 1


def test_modules_that_are_scripted_stay_torchs(model_file: Write) -> None:
    text = model("", "return self.up(self.scripted(x))").replace(
        "self.up =",
        "self.scripted = torch.jit.script(nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.ReLU()))\n        self.up =",
    )
    outcome = optimized(model_file(text))
    assert outcome.equal and outcome.written
    assert [check.layer.left for check in outcome.layers] == [True, False]


def test_classes_of_which_some_modules_are_scripted(model_file: Write) -> None:
    up = """
class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.up, self.weight = nn.ConvTranspose2d(i, o, 2, stride=2), nn.Parameter(torch.randn(o, 1, 2, 2))

    def forward(self, x):
        return F.conv_transpose2d(torch.relu(self.up(x)), self.weight)
"""
    text = model(up, "return torch.tanh(self.scripted(self.up(x)))").replace(
        "nn.ConvTranspose2d(4, 2, 3)", "Up(3, 4)\n        self.scripted = torch.jit.script(Up(1, 4))"
    )
    outcome = optimized(model_file(text))
    assert outcome.equal and outcome.written and not outcome.mistakes
    assert "compiled by TorchScript" in left(outcome)["scripted"]
    assert [check.layer.name for check in outcome.replaced] == ["up.up"]
    assert outcome.apart == ("line 11: forward is compiled by TorchScript, too",) * 2


def test_nothing_but_scripted_modules_is_no_success(model_file: Write) -> None:
    text = model("", "return self.up(torch.relu(x))").replace("(4, 2, 3)", "(3, 2, 3))")
    path = model_file(text.replace("nn.ConvTranspose2d", "torch.jit.script(nn.ConvTranspose2d"))
    with pytest.raises(ModelFileError, match=r"nothing can be replaced: up is compiled by TorchScript"):
        optimized(path)


DATACLASSES = """\
from dataclasses import dataclass, field
import torch
from torch import nn

@dataclass
class Config:
    channels: int
    names: list = field(default_factory=list)

@dataclass
class Output:
    image: torch.Tensor
    size: tuple = ()

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.ConvTranspose1d(3, config.channels, 2, 2)

    def forward(self, x):
        y = self.up(x)
        return Output(y * 2, tuple(y.shape))

def get_inputs():
    return [torch.rand(2, 3, 8)]

def get_init_inputs():
    return [Config(5, ["a"])]
"""


def test_dataclasses_are_arguments_and_outputs(model_file: Write) -> None:
    outcome = optimized(model_file(DATACLASSES))
    assert outcome.equal and outcome.written and outcome.layers[0].layer.plan.problem.layer.out_channels == 5


#: A model whose argument is ARGUMENT.
CONFIGURED = """\
from argparse import Namespace
from enum import Enum
from functools import partial
from types import SimpleNamespace
import torch
from torch import nn

class AttrDict(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self

class Cfg(SimpleNamespace):
    def get(self, name):
        return getattr(self, name)

class Norms(Enum):
    BATCH = "batch"

class Plain:
    def __init__(self, **values):
        vars(self).update(values, kind=Norms.BATCH)

    def norm(self, channels):
        return nn.BatchNorm1d(channels, 1e-3) if self.kind is Norms.BATCH else nn.Identity()

def norm(channels):
    return nn.BatchNorm1d(channels)

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.ConvTranspose1d(3, config.channels, 2, 2)
        self.norm = config.norm(config.channels)

    def forward(self, x):
        return self.norm(self.up(x))

def get_inputs():
    return [torch.rand(2, 3, 8)]

def get_init_inputs():
    return [ARGUMENT]
"""


NORM = "norm=partial(nn.BatchNorm1d, eps=1e-3)"


@pytest.mark.parametrize(
    "config", [*(f"{kind}({NORM}, " for kind in ("AttrDict", "SimpleNamespace", "Cfg", "Namespace")), "Plain("]
)
def test_configs_are_arguments(model_file: Write, config: str) -> None:
    argument = f"{config}channels=5, act=nn.functional.relu)"
    outcome = optimized(model_file(CONFIGURED.replace("ARGUMENT", argument)))
    assert outcome.equal and outcome.written and outcome.layers[0].layer.plan.problem.layer.out_channels == 5


@pytest.mark.parametrize(
    ("argument", "inputs", "words"),
    [
        ("AttrDict(channels=5, norm=norm)", "", r"get_init_inputs\(\) in .*\.py has the function norm: use .* name or"),
        ("Cfg(channels=5, norm=lambda n: nn.ReLU())", "", "the function .*<lambda>: use .* namespaces"),
        ("(lambda c: [setattr(c, 'me', c), c][1])(Cfg(channels=5, norm=nn.ReLU))", "", "a value that holds itself"),
        ("type('Inner', (Cfg,), {})(channels=5, norm=nn.ReLU)", "", "no class with fields called Inner"),
        ("AttrDict(channels=5, norm=nn.ReLU)", "[torch.rand(2, 3, 8), norm]", r"get_inputs\(\) .* the function norm"),
    ],
)
def test_what_cannot_travel_is_said_before_planning(model_file: Write, argument: str, inputs: str, words: str) -> None:
    text = CONFIGURED.replace("ARGUMENT", argument).replace("forward(self, x)", "forward(self, x, *more)")
    path = model_file(text.replace("[torch.rand(2, 3, 8)]", inputs) if inputs else text)
    steps: list[str] = []
    with pytest.raises(ModelFileError, match=words) as caught:
        optimize(Request(path, path.with_name("out.py")), steps.append)
    assert len(steps) == 1 and "\n" not in str(caught.value)


def test_lazy_layers(model_file: Write) -> None:
    text = model("", "return self.last(self.norm(self.lazy(x)))").replace(
        "self.up =",
        "self.lazy, self.last = nn.LazyConvTranspose2d(4, 2), nn.LazyConvTranspose2d(2, 2, 2)\n"
        "        self.norm = nn.BatchNorm2d(4)\n        self.up =",
    )
    outcome = optimized(model_file(text))
    assert outcome.equal and outcome.written and len(outcome.replaced) == 2, outcome.reasons


def test_autocast_of_the_device_at_hand(model_file: Write) -> None:
    """Without a GPU the CPU's stands for CUDA's: layers run, and are planned, in its type. What stands behind stays."""
    body = """with torch.autocast(x.device.type, torch.bfloat16):
            y = self.up(torch.relu(F.conv_transpose2d(x, self.weight)))
            return torch.tanh(y)"""
    outcome = optimized(model_file(model("", body)))
    assert outcome.equal and outcome.written and not left(outcome)
    assert {check.layer.plan.problem.layer.dtype for check in outcome.layers} == {"bfloat16"}
    assert not [each for each in outcome.not_checked if "autocast" in each]


def test_cudas_autocast_is_off_and_that_is_said(model_file: Write) -> None:
    body = "with torch.autocast('cuda', torch.float16):\n            return self.up(F.conv_transpose2d(x, self.weight))"
    outcome = optimized(model_file(model("", body)))
    line = model("", body).partition("with torch")[0].count("\n") + 1
    assert outcome.equal
    assert f"types that CUDA's autocast takes, which is off without a GPU: line {line}" in outcome.not_checked


def test_a_file_with_a_byte_order_mark(model_file: Write) -> None:
    path = model_file(model("", "return self.up(F.conv_transpose2d(x, self.weight))"))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert optimized(path).written


def test_a_file_in_latin_1(model_file: Write) -> None:
    path = model_file("")
    body = "assert len('\u00e9') == 1\n        return self.up(F.conv_transpose2d(x, self.weight))"
    path.write_bytes(f"# coding: latin-1\n{model('', body)}".encode("latin-1"))
    outcome = optimized(path)
    assert outcome.written and "len('\u00e9')" in outcome.request.output.read_text(encoding="utf-8")


def test_model_as_another_name_of_a_class(model_file: Write) -> None:
    text = model("", "return self.up(F.conv_transpose2d(x, self.weight))").replace("class Model", "class Generator")
    outcome = optimized(model_file(f"{text}\nModel = Generator\n"))
    assert outcome.equal and outcome.written


def test_a_class_that_is_indented_by_tabs(model_file: Write) -> None:
    head, class_text = model("", "return self.up(F.conv_transpose2d(x, self.weight))").split("class Model")
    class_text, epilogue = class_text.split("def get_inputs")
    lines = ["class Model" + class_text.splitlines()[0], *class_text.splitlines()[1:]]
    tabbed = "\n".join("\t" + line.replace("    ", "\t") for line in lines)
    path = model_file("")
    path.write_text(f"{head}if True:\n{tabbed}\ndef get_inputs{epilogue}", encoding="utf-8")
    assert optimized(path).written


@pytest.mark.parametrize(
    ("imports", "body", "words"),
    [
        ("max = 16", "return self.up(F.conv_transpose2d(x, self.weight))", "binds max, which the generated file needs"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(model_file: Write, imports: str, body: str, words: str) -> None:
    with pytest.raises(ModelFileError, match=words) as caught:
        optimized(model_file(model(imports, body)))
    assert "\n" not in str(caught.value)


def test_what_pytorch_must_run_is_left_to_it_and_the_rest_is_written(model_file: Write) -> None:
    """Under transforms, of complex numbers, without a result; a layer that meets an empty batch is replaced."""
    text = """\
        import torch
        from torch import nn
        from torch.func import functional_call, grad, vmap

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.member = nn.ConvTranspose2d(4, 4, 2, 2), nn.ConvTranspose2d(4, 2, 3)
                self.weights = nn.Parameter(torch.randn(3, 4, 2, 3, 3) / 9)
                self.wave = nn.ConvTranspose1d(2, 2, 4, 2, dtype=torch.complex64)
                self.crop, self.mask = nn.ConvTranspose2d(4, 2, 3, 1, (8, 0), groups=2), nn.ConvTranspose2d(4, 1, 2, 2)

            def member_of(self, weight, x):
                return torch.relu(functional_call(self.member, {"weight": weight}, (x,)))

            def forward(self, x, z, rois):
                x = torch.tanh(self.up(x))
                slope = grad(lambda y: nn.functional.conv_transpose2d(y, self.weights[0]).square().mean())(x)
                members = vmap(self.member_of, (0, None))(self.weights, x)
                masks = torch.relu(self.mask(rois))
                return members.mean(0), slope, self.wave(z).abs(), self.crop(x), masks

        def get_inputs():
            return [torch.randn(1, 4, 7, 7), torch.randn(2, 2, 5, dtype=torch.complex64), torch.randn(0, 4, 3, 3)]
        """
    outcome = optimized(model_file(text))
    assert outcome.written, outcome.reasons
    assert {check.layer.name for check in outcome.replaced} == {"up", "mask"}
    assert all(check.layer.kernel_epilogues for check in outcome.replaced)
    transform = "a functorch transform (vmap, grad, jvp) is active"
    assert {name.partition(", line")[0]: reason for name, reason in outcome.left.items()} == {
        "line 18": transform,
        "member": transform,
        "wave": "its numbers are complex",
        "crop": "its result has no elements",
    }
    assert outcome.not_checked[0] == "mask in the model: get_inputs() gives an empty batch"


def test_a_layer_that_forward_makes_has_no_state_to_compare(model_file: Write) -> None:
    text = """\
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = None

    def forward(self, x):
        if self.up is None:
            self.up = nn.ConvTranspose2d(x.shape[1], 4, 2)
        return self.up(x)

def get_inputs():
    return [torch.rand(2, 3, 4, 4)]
"""
    outcome = optimized(model_file(text))
    assert outcome.written and outcome.report is None
    assert "Model beside its own class fails it" in outcome.unjudged
    assert "Missing key(s) in state_dict" in outcome.unjudged


def test_weights_drawn_by_numpy(model_file: Write) -> None:
    text = model("import numpy", "return self.up(F.conv_transpose2d(x, self.weight))")
    text = text.replace("torch.randn(3, 4, 2, 2)", "torch.tensor(numpy.random.randn(3, 4, 2, 2)).float()")
    assert optimized(model_file(text)).written


@pytest.mark.rotates(8)
def test_a_model_that_makes_float32_of_its_own_may_round_to_tf32(model_file: Write) -> None:
    text = model("", "return self.up(100 * F.conv_transpose2d(x.float(), self.weight))")
    text = text.replace("randn(3, 4, 2, 2)", "randn(64, 4, 2, 2)").replace("rand(2, 3, 4, 4)", "rand(2, 64, 8, 8)")
    outcome = optimized(model_file(text))
    assert outcome.report is not None and outcome.equal and outcome.written
    assert outcome.report.verdict.check("pooled error").passed, "it is compared with float64"
