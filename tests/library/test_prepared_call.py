"""A prepared call gives what the layer gives, and refuses whatever it was not prepared for. Without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tconv
from tconv import routes

X = torch.randn(2, 32, 8, 8)


def layer_of(**options: Any) -> tconv.ConvTranspose2d:
    torch.manual_seed(1)
    return tconv.ConvTranspose2d(32, 16, 4, stride=2, padding=1, **options)


def near(got: torch.Tensor, layer: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
    torch.testing.assert_close(got, layer(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_it_gives_what_the_layer_gives(as_cuda: Any, bias: bool, dtype: torch.dtype) -> None:
    layer, x = layer_of(bias=bias, dtype=dtype), X.to(dtype)
    call = tconv.prepare(layer, x)
    for each in (x, x + 1):
        near(call(each), layer, each)
    out = torch.empty(2, 16, 16, 16, dtype=dtype)
    assert call(x, out=out) is out
    near(out, layer, x)
    layer.weight.mul_(2)
    near(call(x), layer, x)


@torch.no_grad()
def test_channels_last(as_cuda: Any) -> None:
    torch.manual_seed(1)
    layer = tconv.ConvTranspose2d(64, 64, 4, stride=2, padding=1, dtype=torch.float16)
    x = torch.randn(4, 64, 32, 32).half().to(memory_format=torch.channels_last)
    call = tconv.prepare(layer, x)
    result = call(x)
    near(result, layer, x)
    assert result.stride() == layer(x).stride()
    with pytest.raises(ValueError, match="does not lie in"):
        call(x.contiguous())


@torch.no_grad()
def test_frozen_weights_are_prepared_once_and_follow_what_is_seen(
    as_cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = routes.decide
    monkeypatch.setattr(routes, "decide", lambda *args, **options: decide(*args, family="mma", **options))
    layer = tconv.optimize(nn.ConvTranspose2d(32, 16, 4, 2, 1), freeze=True)
    call = tconv.prepare(layer, X)
    for _ in range(2):
        near(call(X), layer, X)
    assert len(as_cuda.prepared) == 1
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})
    near(call(X), layer, X)
    assert len(as_cuda.prepared) == 2


def test_it_checks_where_torch_has_no_guards(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    with torch.no_grad():
        call = tconv.prepare(layer_of(), X)
        for _ in range(2):
            near(call(X), layer_of(), X)
        with pytest.raises(ValueError, match="prepared for"):
            call(X[:1])


def test_a_mode_that_was_not_on_before(as_cuda: Any) -> None:
    layer = layer_of()
    call = tconv.prepare(layer, X)
    for mode in (torch.inference_mode, torch.no_grad) * 2:
        with mode():
            assert call(X).is_inference() == (mode is torch.inference_mode)
            near(call(X), layer, X)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[:1], "prepared for"),
        (X.half(), "prepared for"),
        (X.to("meta"), "prepared for"),
        (X[..., :4], "prepared for"),
        (X.transpose(2, 3), "does not lie in"),
        (torch._neg_view(X), "not plain"),
        (X.as_subclass(Subclass), "not plain"),
    ],
)
def test_other_inputs_are_refused(as_cuda: Any, x: torch.Tensor, words: str) -> None:
    with torch.no_grad():
        call = tconv.prepare(layer_of(), X)
        call(X)
        launched = len(as_cuda)
        with pytest.raises(ValueError, match=words):
            call(x)
    assert len(as_cuda) == launched


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (torch.empty(2, 16, 16, 15), "it takes"),
        (torch.empty(2, 16, 16, 16).half(), "it takes"),
        (torch.empty(2, 16, 16, 16).to(memory_format=torch.channels_last), "it takes"),
        (torch.empty(2 * 16 * 16 * 16 + 1)[1:].view(2, 16, 16, 16), "multiples of 16 bytes"),
    ],
)
def test_other_outputs_are_refused(as_cuda: Any, out: torch.Tensor, words: str) -> None:
    with torch.no_grad():
        call = tconv.prepare(layer_of(), X)
        call(X, out=torch.empty(2, 16, 16, 16))
        with pytest.raises(ValueError, match=words):
            call(X, out=out)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.half(),
        lambda layer: layer.to(memory_format=torch.channels_last),
        lambda layer: setattr(layer, "bias", None),
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(32, 8, 4, 4))),
        lambda layer: setattr(layer.weight, "data", torch.randn(32, 16, 5, 5)),
    ],
)
def test_other_weights_are_refused(as_cuda: Any, change: Callable[[Any], Any]) -> None:
    layer = layer_of()
    with torch.no_grad():
        call = tconv.prepare(layer, X)
        call(X)
        change(layer)
        with pytest.raises(ValueError, match="prepare another one"):
            call(X)


def test_gradients_are_refused(as_cuda: Any) -> None:
    call = tconv.prepare(layer_of(), X)
    with torch.no_grad():
        call(X)
    with pytest.raises(RuntimeError, match="no_grad"):
        call(X)
    call = tconv.prepare(layer_of().requires_grad_(False), X)
    assert call(X).shape == (2, 16, 16, 16)
    with pytest.raises(RuntimeError, match="no_grad"):
        call(X.clone().requires_grad_())


def test_what_no_kernel_runs_is_refused(as_cuda: Any) -> None:
    with pytest.raises(TypeError, match="layer of tconv"):
        tconv.prepare(nn.ConvTranspose2d(32, 16, 4), X)  # type: ignore[arg-type]
    with pytest.raises(tconv.Unsupported, match="a batch first"):
        tconv.prepare(layer_of(), X[0])
    with pytest.raises(tconv.Unsupported, match="no kernel of tconv runs this call"):
        tconv.prepare(layer_of(), X[:0])
    with pytest.raises(tconv.Unsupported, match="contiguous"):
        tconv.prepare(layer_of(), X.transpose(2, 3))


def test_on_a_cpu_it_says_so() -> None:
    with pytest.raises(tconv.Unsupported, match="CUDA"):
        tconv.prepare(layer_of(), X)
