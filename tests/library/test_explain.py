"""What explain says: for a described GPU, for the CPU, and for everything that tconv leaves to PyTorch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tconv
from tconv.dispatch import decide
from tconv.planner import WGMMA, Gpu
from tconv.settings import settings

H200 = Gpu.h200()
TURING, VOLTA = Gpu("T4", "sm_75", 40, 64 * 1024), Gpu("V100", "sm_70", 80, 96 * 1024)


def test_a_module_on_a_described_gpu() -> None:
    layer = tconv.ConvTranspose2d(32, 64, 3, stride=5, padding=1, dilation=2)
    explanation = tconv.explain(layer, torch.empty(16, 32, 64, 128, device="meta"), gpu=H200)
    assert explanation.runs == "tconv"
    assert explanation.problem is not None and explanation.plan is not None
    assert explanation.problem.output_shape == (16, 64, 318, 638)
    assert explanation.plan == WGMMA.plan(explanation.plan.problem, H200)
    assert explanation.conversions == ()
    # 848 MB at 4.25 TB/s
    assert explanation.floor_seconds == pytest.approx(200e-6, rel=0.01)
    text = str(explanation)
    for part in (
        "2-D 32→64 k3 s5 p1 d2 bias tf32_rna, 16x32x64x128 -> 16x64x318x638",
        "wgmma, on NVIDIA H200",
        f"{explanation.plan.grid} blocks of {explanation.plan.kernel.threads} threads",
        f"{explanation.plan.shared_bytes} bytes",
        explanation.plan.reasons[0],
        "199.5 µs",
    ):
        assert part in text


def test_the_function_and_the_module_are_explained_alike() -> None:
    layer = torch.nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1, output_padding=1, groups=4)
    x = torch.randn(3, 8, 10)
    called = tconv.explain(
        x, layer.weight, layer.bias, stride=2, padding=1, output_padding=1, groups=4, dilation=1, gpu=H200
    )
    assert tconv.explain(layer, x, gpu=H200) == called
    assert tconv.explain(x, layer.weight, layer.bias, 2, 1, 1, 4, gpu=H200) == called


def test_output_size() -> None:
    layer = tconv.ConvTranspose1d(8, 4, 4, stride=2, padding=1)
    explanation = tconv.explain(layer, torch.empty(1, 8, 10), output_size=[21], gpu=H200)
    assert explanation.problem is not None
    assert explanation.problem.output_padding == (0, 0, 1)
    assert explanation.problem.output_shape == (1, 4, 21)


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float32, "fp32"), (torch.float16, "fp16"), (torch.bfloat16, "bf16"), (torch.float64, "fp64")],
)
def test_precision_follows_the_dtype(dtype: torch.dtype, precision: str) -> None:
    decision = decide(torch.empty(1, 2, 4, dtype=dtype), torch.empty(2, 2, 4, dtype=dtype), gpu=TURING)
    assert decision.plan is not None and decision.plan.problem.layer.precision == precision


def test_conversions_are_named() -> None:
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(3, 4, 2, 2).transpose(0, 1), torch.randn(6)[::2]
    explanation = tconv.explain(x, weight, bias, gpu=H200, family="direct")
    assert explanation.conversions == (
        "input is copied to contiguous",
        "weight is copied to contiguous",
        "bias is copied to contiguous",
        "the result is copied to channels_last, the format of PyTorch's result",
    )
    for conversion in explanation.conversions:
        assert conversion in str(explanation)


def test_cpu_tensors() -> None:
    layer = tconv.ConvTranspose2d(4, 6, 3)
    explanation = tconv.explain(layer, torch.randn(1, 4, 5, 5))
    assert (explanation.runs, explanation.plan) == ("pytorch", None)
    assert str(explanation) == "PyTorch's own operator runs: input is on cpu; the kernels are for CUDA GPUs"
    with pytest.raises(tconv.Unsupported, match="the direct family cannot run this call: input is on cpu"):
        tconv.explain(layer, torch.randn(1, 4, 5, 5), family="direct")


class _Scaled(torch.nn.ConvTranspose2d):
    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        return 2 * super().forward(input, output_size)


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(64, 64, 4, 2, 1)
        self.normed = torch.nn.utils.parametrizations.spectral_norm(torch.nn.ConvTranspose2d(64, 32, 2, 2), dim=1)
        self.scaled = _Scaled(32, 4, 1)
        self.idle = torch.nn.ConvTranspose1d(2, 2, 2)

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        x = self.up(x, output_size=[2 * x.shape[2] + 1, 2 * x.shape[3]])
        return self.scaled(self.normed(self.up(x) if twice else x))


def test_a_model_is_explained_layer_by_layer() -> None:
    model, x = _Model(), torch.randn(2, 64, 8, 8)
    before = tconv.explain(model, x, gpu=H200)
    assert [(name, found.runs) for name, found in before.calls] == [
        (name, "pytorch") for name in ("up", "normed", "scaled")
    ]
    assert before.calls[0][1].reason == "it is torch's layer; tconv.optimize(model) takes it"
    tconv.optimize(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found = tconv.explain(model, x, twice=True, gpu=H200)
    assert [name for name, _ in found.calls] == ["up", "up", "normed", "scaled"] and found.not_called == ("idle",)
    shapes = [call.problem.output_shape for _, call in found.calls if call.problem is not None]
    assert shapes == [(2, 64, 17, 16), (2, 64, 34, 32), (2, 32, 68, 64), (2, 4, 68, 64)]
    assert [call.runs for _, call in found.calls] == ["tconv", "tconv", "tconv", "pytorch"]
    lines = str(found).splitlines()
    columns = zip(lines[:4], ("runs", "tconv:", "tconv:", "tconv:"), strict=True)
    assert len({line.index(column) for line, column in columns}) == 1
    assert lines[4].endswith("its class _Scaled has a forward of its own") and "idle" in lines[5]
    assert not any(module._forward_pre_hooks for module in model.modules())
    # Its one forward pass was a call of spectral norm in training; to explain it was none.
    twin = _Model()
    tconv.optimize(twin).load_state_dict(state)
    with torch.no_grad():
        twin(x, twice=True)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_a_model_without_transposed_convolutions() -> None:
    found = tconv.explain(torch.nn.Linear(2, 2), torch.randn(2))
    assert str(found) == "the model has no transposed convolution that is a module"


def test_hooks_go_when_the_model_raises() -> None:
    model = _Model()
    with pytest.raises(RuntimeError):
        tconv.explain(model, torch.randn(2, 3, 8, 8))
    assert not any(module._forward_pre_hooks for module in model.modules())


class _Subclass(torch.Tensor):
    pass


_X, _W = torch.randn(2, 4, 5), torch.randn(4, 6, 3)
#: What is changed of an ordinary call on a GPU, and what the refusal says.
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"input": _X.to_sparse()}, r"input is not a dense tensor \(torch.sparse_coo\)"),
    ({"weight": "weight"}, "weight is a str, not a tensor"),
    ({"input": torch._neg_view(_X)}, "input is a lazily negated view"),
    ({"input": _X.to(torch.complex64)}, "input is complex64; the kernels take float32, float16, bfloat16, float64"),
    ({"input": _X.int()}, "input is int32; the kernels take"),
    ({"input": torch.quantize_per_tensor(_X, 0.1, 0, torch.quint8)}, "input is quint8"),
    ({"weight": _W.half()}, "weight is float16 and input float32"),
    ({"bias": torch.randn(6).double()}, "bias is float64 and input float32"),
    ({"bias": torch.randn(5)}, r"bias has shape \(5,\), not \(6,\)"),
    ({"weight": _W[:3]}, "input has 4 channels and weight 3"),
    ({"weight": _W[0]}, "input has 3 and weight 2 axes, which no 1-D layer takes"),
    ({"input": _X[0, 0]}, "input has 1 and weight 3 axes, which no 1-D layer takes"),
    ({"stride": [1, 2]}, r"stride=\[1, 2\] is neither an integer nor a list of 1 integers"),
    ({"padding": "same"}, "padding='same' is neither an integer nor"),
    ({"dilation": 1.5}, r"dilation=1\.5 is neither an integer nor"),
    ({"output_padding": True}, "output_padding=True is neither an integer nor"),
    ({"groups": 2.0}, r"groups=2\.0 is not an integer"),
    ({"groups": 3, "weight": torch.randn(4, 2, 3)}, "in_channels=4 with groups=3"),
    ({"stride": 0}, r"got stride=\(1, 1, 0\)"),
    ({"padding": -1}, r"got padding=\(0, 0, -1\)"),
    ({"padding": 7}, "the output would be"),
    ({"output_padding": 1}, "must be smaller than stride or dilation"),
    ({"input": _X[:0]}, "the batch is empty"),
    ({"input": _X[:, :, :0]}, "each must be at least 1"),
    ({"gpu": VOLTA}, "V100 is sm_70; the kernels need sm_75 or newer"),
    (
        {"input": torch.empty(1, 4, 2**31, device="meta")},
        "longer than the direct family's",
    ),
]


@pytest.mark.parametrize(("change", "reason"), REFUSALS, ids=[reason[:40] for _, reason in REFUSALS])
def test_every_refusal_is_explained(change: dict[str, Any], reason: str) -> None:
    call = {"input": _X, "weight": _W, "gpu": H200, "spatial_dims": 1} | change
    decision = decide(**call)
    assert decision.plan is None
    with pytest.raises(tconv.Unsupported) as caught:
        decide(**call, family="direct")
    assert str(caught.value).removeprefix("the direct family cannot run this call: ") in decision.reason
    assert re.search(reason, decision.reason), decision.reason
    explanation = tconv.explain(call.pop("input"), call.pop("weight"), **call)
    assert explanation.runs == "pytorch"
    assert str(explanation).startswith(f"PyTorch's own operator runs: {decision.reason}")


def test_the_ordinary_call_is_not_refused() -> None:
    assert decide(_X, _W, gpu=H200, spatial_dims=1).plan is not None
    assert decide(_X, _W, gpu=H200, family="direct").plan is not None


def test_subclasses_are_torchs() -> None:
    decision = decide(_X.as_subclass(_Subclass), _W)
    assert decision.reason == "input is a _Subclass: subclasses of Tensor are PyTorch's"
    nested = torch.nested.nested_tensor([_X[0], _X[0]], layout=torch.jagged)
    assert "PyTorch's" in decide(nested, _W).reason


def test_meta_tensors_are_torchs() -> None:
    assert decide(_X.to("meta"), _W.to("meta")).reason == "input is on meta; the kernels are for CUDA GPUs"


@pytest.fixture
def disabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TCONV_DISABLE", "1")
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_disabled(disabled: None) -> None:
    assert decide(_X, _W, gpu=H200).reason == "TCONV_DISABLE is set"


def test_modes_are_explained() -> None:
    with torch.autograd.forward_ad.dual_level():
        assert "forward-mode" in tconv.explain(_X, _W).reason
        with pytest.raises(tconv.Unsupported, match="forward-mode"):
            tconv.explain(_X, _W, family="direct")
        assert tconv.explain(_X, _W, gpu=H200).runs == "tconv"


def test_reasons_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "tconv"):
        tconv.conv_transpose1d(_X, _W)
    assert caplog.messages == ["PyTorch runs: input is on cpu; the kernels are for CUDA GPUs"]
