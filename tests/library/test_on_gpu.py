"""The library on a GPU: results against float64, PyTorch's conventions, graphs, streams, threads, compilers."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from torch.nn import functional

import tconv
from tconv import routes

pytestmark = pytest.mark.gpu

NATIVE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
OURS = {1: tconv.conv_transpose1d, 2: tconv.conv_transpose2d, 3: tconv.conv_transpose3d}
#: input shape, weight shape, keyword arguments
LAYERS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 80, 37), (80, 40, 16), {"stride": 8, "padding": 4}),
    ((1, 7, 100), (7, 5, 3), {}),
    ((3, 12, 50), (12, 1, 4), {"stride": 2, "padding": 1, "groups": 12}),
    ((1, 2, 9), (2, 1, 300), {"stride": 75}),
    ((2, 16, 13, 17), (16, 8, 2, 2), {"stride": 2}),
    ((2, 16, 13, 17), (16, 24, 4, 4), {"stride": 2, "padding": 1}),
    ((2, 8, 9, 11), (8, 12, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 6, 9, 11), (6, 4, 3, 3), {"stride": 5, "padding": 1, "dilation": 2}),
    ((1, 6, 9, 11), (6, 2, 3, 5), {"stride": (1, 3), "padding": (2, 0), "dilation": (3, 2), "groups": 3}),
    ((2, 4, 3, 40), (4, 3, 2, 2), {"stride": (3, 40), "output_padding": (2, 5)}),
    ((1, 8, 4, 5, 6), (8, 6, 2, 2, 2), {"stride": 2}),
    ((2, 4, 3, 5, 4), (4, 4, 3, 3, 3), {"stride": (1, 2, 2), "padding": 1, "output_padding": (0, 1, 1), "groups": 2}),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def _tensors(layer: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    shape, weight_shape, arguments = layer
    shapes = (shape, weight_shape, (weight_shape[1] * arguments.get("groups", 1),))
    return tuple(torch.randn(size, device="cuda").to(dtype) for size in shapes)


def _assert_right(got: torch.Tensor, tensors: tuple[torch.Tensor | None, ...], arguments: dict[str, Any]) -> None:
    """Every element within 8 rounding errors of the sum of the products' magnitudes, and half an ulp of its own.

    Where PyTorch may round the factors to TF32, they may be rounded.
    """
    native = NATIVE[tensors[1].dim() - 2]
    exact = [None if tensor is None else tensor.double() for tensor in tensors]
    expected = native(*exact, **arguments)
    size = native(*(None if tensor is None else tensor.abs() for tensor in exact), **arguments)
    rounding = 2**-52 if got.dtype == torch.float64 else 2**-24  # in float64 the reference rounds as well
    of_factors = 2**-10 if got.dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else 0
    of_result = expected.abs() * torch.finfo(got.dtype).eps / 2 if got.dtype.itemsize == 2 else 0
    assert got.shape == expected.shape
    allowed = (8 * rounding + of_factors) * size + of_result + torch.finfo(got.dtype).tiny
    assert ((got.double() - expected).abs() <= allowed).all()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Its `messages` are what was said of every new kind of call."""
    monkeypatch.setattr(routes, "_routes", {})
    caplog.set_level(logging.DEBUG, "tconv")
    return caplog


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("allow_tf32", [False, True])
def test_layers(
    layer: tuple[Any, ...],
    dtype: torch.dtype,
    allow_tf32: bool,
    said: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allow_tf32)
    x, weight, bias = _tensors(layer, dtype)
    dims, arguments = weight.dim() - 2, layer[2]
    got = OURS[dims](x, weight, bias, **arguments)
    assert any(message.startswith("tconv runs") for message in said.messages)
    native = NATIVE[dims](x, weight, bias, **arguments)
    assert (got.dtype, got.stride(), got.device) == (native.dtype, native.stride(), native.device)
    _assert_right(got, (x, weight, bias), arguments)
    assert torch.equal(got, OURS[dims](x, weight, bias, **arguments))
    _assert_right(OURS[dims](x, weight, **arguments), (x, weight, None), arguments)
    unbatched = OURS[dims](x[0], weight, bias, **arguments)
    _assert_right(unbatched, (x[0], weight, bias), arguments)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[5], LAYERS[11]], ids=str)
def test_tensors_that_are_not_contiguous(layer: tuple[Any, ...]) -> None:
    tensors = _tensors(layer)
    arguments, ours = layer[2], OURS[tensors[1].dim() - 2]
    strided = tuple(torch.stack([tensor, -tensor], -1)[..., 0] for tensor in tensors)
    assert not any(tensor.is_contiguous() for tensor in strided)
    _assert_right(ours(*strided, **arguments), tensors, arguments)
    shifted = tuple(torch.cat([tensor.new_zeros(3), tensor.flatten()])[3:].view(tensor.shape) for tensor in tensors)
    assert all(tensor.storage_offset() == 3 for tensor in shifted)
    _assert_right(ours(*shifted, **arguments), tensors, arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", [LAYERS[4], LAYERS[8], LAYERS[10]], ids=str)
@pytest.mark.parametrize("which", ["input", "weight", "both"])
def test_channels_last(layer: tuple[Any, ...], dtype: torch.dtype, which: str) -> None:
    x, weight, bias = _tensors(layer, dtype)
    dims, arguments = weight.dim() - 2, layer[2]
    memory_format = torch.channels_last if dims == 2 else torch.channels_last_3d
    x = x if which == "weight" else x.to(memory_format=memory_format)
    weight = weight if which == "input" else weight.to(memory_format=memory_format)
    got = OURS[dims](x, weight, bias, **arguments)
    assert got.stride() == NATIVE[dims](x, weight, bias, **arguments).stride()
    _assert_right(got, (x, weight, bias), arguments)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[7], LAYERS[11]], ids=str)
def test_gradients(layer: tuple[Any, ...], said: pytest.LogCaptureFixture) -> None:
    tensors = [tensor.double().requires_grad_() for tensor in _tensors(layer)]
    dims, arguments = tensors[1].dim() - 2, layer[2]
    got = torch.autograd.grad(OURS[dims](*tensors, **arguments).square().sum(), tensors)
    expected = torch.autograd.grad(NATIVE[dims](*tensors, **arguments).square().sum(), tensors)
    assert any(message.startswith("tconv runs") for message in said.messages)
    torch.testing.assert_close(got, expected)
    tensors[0].requires_grad_(False)
    (only,) = torch.autograd.grad(OURS[dims](*tensors, **arguments).square().sum(), tensors[1])
    torch.testing.assert_close(only, expected[1])


def test_gradients_of_gradients() -> None:
    tensors = [tensor.double().requires_grad_() for tensor in _tensors(((1, 2, 3, 2), (2, 3, 2, 2), {}))]

    def call(*given: torch.Tensor) -> torch.Tensor:
        return tconv.conv_transpose2d(*given, stride=(2, 1), padding=1)

    assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


def test_autocast() -> None:
    layer = tconv.ConvTranspose2d(16, 8, 4, stride=2, padding=1).cuda()
    x = torch.randn(2, 16, 9, 9, device="cuda", requires_grad=True)
    with torch.no_grad():
        for casts in (False, False, True, False):  # a call that was recognised before, too
            with torch.autocast("cuda", torch.bfloat16, enabled=casts):
                assert layer(x).dtype == (torch.bfloat16 if casts else torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        got, expected = layer(x), torch.nn.ConvTranspose2d.forward(layer, x)
        double = tconv.conv_transpose2d(x.double(), layer.weight.double())
    assert got.dtype == expected.dtype == torch.bfloat16
    assert double.dtype == torch.float64
    _assert_right(got, tuple(t.detach().bfloat16() for t in (x, layer.weight, layer.bias)), {"stride": 2, "padding": 1})
    got.float().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_a_captured_graph_replays() -> None:
    layer = tconv.ConvTranspose2d(8, 8, 4, stride=2, padding=1).cuda().eval()
    x = torch.randn(2, 8, 9, 9, device="cuda")
    with torch.no_grad():
        layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        for _ in range(2):
            x.normal_()
            graph.replay()
            torch.cuda.synchronize()
            _assert_right(y, (x, layer.weight, layer.bias), {"stride": 2, "padding": 1})


def test_a_new_size_of_a_loaded_kernel_can_be_captured() -> None:
    weight = torch.randn(8, 1, 4, device="cuda")
    x = torch.randn(64, 8, 1000, device="cuda")
    tconv.conv_transpose1d(x, weight, stride=2, groups=8)
    shorter = torch.randn(64, 8, 999, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = tconv.conv_transpose1d(shorter, weight, stride=2, groups=8)
    graph.replay()
    torch.cuda.synchronize()
    _assert_right(y, (shorter, weight, None), {"stride": 2, "groups": 8})


def test_a_kernel_that_is_not_loaded_cannot_be_captured() -> None:
    x, weight = torch.randn(1, 5, 6, 7, device="cuda"), torch.randn(5, 3, 7, 5, device="cuda")
    torch.cuda.synchronize()
    with (
        pytest.raises(tconv.NotWarmedUp, match="before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        tconv.conv_transpose2d(x, weight, stride=(3, 4))
    torch.cuda.synchronize()
    _assert_right(tconv.conv_transpose2d(x, weight, stride=(3, 4)), (x, weight, None), {"stride": (3, 4)})


def test_the_current_stream_is_used() -> None:
    weight = torch.randn(32, 32, 4, 4, device="cuda")
    x = torch.zeros(4, 32, 128, 128, device="cuda")
    tconv.conv_transpose2d(x, weight, stride=2)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.normal_()  # seen only by what is enqueued behind it, on this stream
        y = tconv.conv_transpose2d(x, weight, stride=2)
    stream.synchronize()
    _assert_right(y, (x, weight, None), {"stride": 2})


def test_threads() -> None:
    weight = torch.randn(8, 8, 4, device="cuda")
    inputs = [torch.randn(2, 8, 50 + n, device="cuda") for n in range(6)]
    results: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        results[n] = tconv.conv_transpose1d(inputs[n], weight, stride=2, dilation=3)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for n, x in enumerate(inputs):
        _assert_right(results[n], (x, weight, None), {"stride": 2, "dilation": 3})


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode: str) -> None:
    torch.compiler.reset()  # what the other mode compiled of the same lines would count as compiled again
    layer = tconv.ConvTranspose2d(8, 8, 4, stride=2, padding=1).cuda()
    compiled = torch.compile(lambda x: torch.relu(layer(x)) + 1, fullgraph=True, mode=mode)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(4):
            x = torch.randn(2, 8, 9, 9, device="cuda").to(memory_format=torch.channels_last)
            torch.testing.assert_close(compiled(x).clone(), torch.relu(layer(x)) + 1)


def test_compiled_gradients() -> None:
    layer = tconv.ConvTranspose1d(8, 4, 4, stride=2).cuda()
    x = torch.randn(2, 8, 9, device="cuda", requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True)
    got = torch.autograd.grad(compiled(x).square().sum(), [x, *layer.parameters()])
    expected = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_opcheck() -> None:
    x, weight, bias = (t.requires_grad_() for t in _tensors(LAYERS[8], torch.float64))
    torch.library.opcheck(torch.ops.tconv.conv_transpose.default, (x, weight, bias, [1, 3], [2, 0], [0, 0], 3, [3, 2]))


def test_what_pytorch_runs(said: pytest.LogCaptureFixture) -> None:
    x, weight = torch.randn(2, 4, 5, device="cuda"), torch.randn(4, 6, 3, device="cuda")
    complex_ = tconv.conv_transpose1d(x.to(torch.complex64), weight.to(torch.complex64))
    torch.testing.assert_close(complex_.real, tconv.conv_transpose1d(x, weight), rtol=1e-2, atol=1e-2)
    assert tconv.conv_transpose1d(x[:0], weight).shape == (0, 6, 7)
    stacked = torch.func.vmap(lambda t: tconv.conv_transpose1d(t, weight))(torch.stack([x, x]))
    torch.testing.assert_close(stacked[1], functional.conv_transpose1d(x, weight), rtol=1e-2, atol=1e-2)
    for reason in ("input is complex64", "the batch is empty", "a functorch transform"):
        assert any(message.startswith(f"PyTorch runs: {reason}") for message in said.messages)


@pytest.mark.parametrize(
    "change",
    [
        {"weight": torch.randn(4, 6, 3).half()},
        {"bias": torch.randn(5)},
        {"stride": 0},
        {"padding": 9},
        {"output_padding": 1},
        {"groups": 3},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("weight_device", ["cuda", "cpu"])
def test_errors_are_torchs_own(change: dict[str, Any], weight_device: str) -> None:
    tensors = {"input": torch.randn(2, 4, 5), "weight": torch.randn(4, 6, 3), "bias": None}
    defaults = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    call = tensors | defaults | change
    devices = {"input": "cuda", "weight": weight_device, "bias": "cuda"}
    arguments = tuple(v.to(devices[k]) if isinstance(v, torch.Tensor) else v for k, v in call.items())
    with pytest.raises(Exception) as theirs:
        functional.conv_transpose1d(*arguments)
    with pytest.raises(type(theirs.value)) as ours:
        tconv.conv_transpose1d(*arguments)
    assert str(ours.value) == str(theirs.value)


def test_explain() -> None:
    layer = tconv.ConvTranspose2d(8, 8, 4, stride=2, padding=1).cuda()
    explanation = tconv.explain(layer, torch.randn(2, 8, 9, 9, device="cuda"))
    assert explanation.runs == "tconv"
    assert explanation.gpu is not None and explanation.gpu.name == torch.cuda.get_device_name()
    assert explanation.gpu.shared_bytes_per_block >= 64 * 1024


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_device_than_the_current_one() -> None:
    x, weight = torch.randn(2, 4, 50, device="cuda:1"), torch.randn(4, 6, 3, device="cuda:1")
    got = tconv.conv_transpose1d(x, weight, stride=2)
    assert torch.cuda.current_device() == 0 and got.device == x.device
    _assert_right(got, (x, weight, None), {"stride": 2})
