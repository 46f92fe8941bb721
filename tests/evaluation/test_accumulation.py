"""Convolutions in 16 bits on a CPU sum up in float32, whatever the CPU has instructions for; and so verdicts are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from strict import judge

from tconv.evaluation.accumulation import Float32Accumulation, in_float32
from tconv.sandbox.worker import Workshop

NARROW = [torch.float16, torch.bfloat16]
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(24, 3, 4, 2, 1){cast}
    def forward(self, x):
        {body}

def get_inputs():
    return [torch.randn(2, 24, 9, 11){cast}]
"""
CHUNKS = """
        parts = [
            nn.functional.conv_transpose2d(x[:, i:i + {size}], self.up.weight[i:i + {size}], None, 2, 1)
            for i in range(0, 24, {size})
        ]
        return sum(parts) + self.up.bias[:, None, None]
"""


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("transposed", [True, False])
def test_a_convolution_and_its_gradients_are_those_of_float32_rounded_once(
    dtype: torch.dtype, transposed: bool
) -> None:
    x, weight, bias = torch.randn(2, 24, 9, 11), torch.randn(24, 24, 3, 3), torch.randn(24)
    narrow = [tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias)]
    wide = [tensor.detach().float().requires_grad_() for tensor in narrow]
    function = F.conv_transpose2d if transposed else F.conv2d
    with Float32Accumulation():
        y = function(*narrow, stride=2, padding=1)
        weights = torch.randn(y.shape).to(dtype)
        (y * weights).sum().backward()
    expected = function(*wide, stride=2, padding=1)
    assert y.dtype == dtype and torch.equal(y, expected.to(dtype))
    (expected * weights).sum().backward()
    for one, other in zip(narrow, wide, strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad.to(dtype))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_gradients_and_under_autocast_too(mode: Callable[[], torch.no_grad]) -> None:
    x, weight = torch.randn(2, 24, 9, 11), torch.randn(24, 3, 4, 4)
    expected = F.conv_transpose2d(x.bfloat16().float(), weight.bfloat16().float()).bfloat16()
    with Float32Accumulation(), mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(F.conv_transpose2d(x, weight), expected)


def test_other_types_stay_as_they_are() -> None:
    x, weight = torch.randn(2, 24, 9, 11), torch.randn(24, 3, 4, 4)
    for dtype in (torch.float32, torch.float64, torch.complex64):
        with Float32Accumulation():
            got = F.conv_transpose2d(x.to(dtype), weight.to(dtype))
        assert torch.equal(got, F.conv_transpose2d(x.to(dtype), weight.to(dtype)))
    half = in_float32(F.conv_transpose2d, x.half(), weight.half(), stride=2)
    assert half.dtype == torch.float16
    assert in_float32(torch.sum, x.double()).dtype == torch.float64


@pytest.mark.rotates(6)
@pytest.mark.parametrize("cast", [".half()", ".bfloat16()"])
@pytest.mark.parametrize("size", [24, 12, 3])
def test_sums_in_16_bits_are_refused_however_the_channels_are_split(
    workshop: Workshop, write: Callable[[str, str], Path], cast: str, size: int
) -> None:
    """Of a model of the same layer in the same type, a copy is equal; parts that are added in 16 bits are not."""
    model = write("model.py", MODEL.format(cast=cast, body="return self.up(x)"))
    body = "return self.up(x)" if size == 24 else CHUNKS.format(size=size).strip()
    text = MODEL.format(cast=cast, body=body).replace("class Model(", "class ModelNew(")
    report = judge(model, write("candidate.py", text), workshop=workshop)
    assert report.equal is (size == 24), report.reasons
    assert size == 24 or any("every element" in reason or "own inputs" in reason for reason in report.reasons)


def test_a_model_under_autocast_is_judged_in_float32_sums(
    workshop: Workshop, write: Callable[[str, str], Path]
) -> None:
    """No tensor of the model's says that its layer runs in 16 bits."""
    body = """
        with torch.autocast("cpu", torch.bfloat16):
            {} = self.up(x)
        return y
    """.strip()
    model = write("model.py", MODEL.format(cast="", body=body.format("y")))
    copy = MODEL.format(cast="", body=body.format("y")).replace("class Model(", "class ModelNew(")
    assert judge(model, write("copy.py", copy), workshop=workshop).equal
    chunked = CHUNKS.format(size=3).strip().replace("return", "y =").replace("\n", "\n    ")
    text = MODEL.format(cast="", body=body.format("y").replace("y = self.up(x)", chunked))
    report = judge(model, write("candidate.py", text.replace("class Model(", "class ModelNew(")), workshop=workshop)
    assert not report.equal and "y" in text
