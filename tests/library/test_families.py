"""Which family runs a call, in which arithmetic, and that this follows PyTorch's flags from call to call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tconv
from tconv import routes
from tconv.errors import Unsupported
from tconv.planner import FAMILIES, Gpu, Plan

H200 = Gpu.h200()
NO_OPTIONS = (1, 0, 0, 1, 1)


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    """As PyTorch starts, and put back."""
    conv = getattr(torch.backends.cudnn, "conv", None)
    if getattr(conv, "fp32_precision", None) is None:
        before = torch.backends.cudnn.allow_tf32
        yield
        torch.backends.cudnn.allow_tf32 = before
        return
    before = conv.fp32_precision
    conv.fp32_precision = "tf32"
    yield
    conv.fp32_precision = before


def allow_tf32(allowed: bool) -> None:
    conv = getattr(torch.backends.cudnn, "conv", None)
    if getattr(conv, "fp32_precision", None) is None:
        torch.backends.cudnn.allow_tf32 = allowed
    else:
        conv.fp32_precision = "tf32" if allowed else "ieee"


def dense(dtype: torch.dtype = torch.float32, groups: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 128, 16, 16, dtype=dtype), torch.randn(128, 128 // groups, 3, 3, dtype=dtype)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def precision(groups: int = 1, dtype: torch.dtype = torch.float32) -> str:
    explained = tconv.explain(*dense(dtype, groups), groups=groups, gpu=H200, family="mma")
    assert explained.plan is not None and explained.plan.kernel.family == "mma"
    return explained.plan.kernel.layer.precision


def test_tensor_cores_round_where_the_flags_allow_it() -> None:
    assert precision() == "tf32"
    assert precision(groups=2) == "tf32", "cuDNN has no TF32 for groups, but the flags allow it"
    allow_tf32(False)
    assert precision() == "fp32"
    assert precision(dtype=torch.float16) == "fp16"


def test_a_family_that_is_asked_for_is_taken_or_says_why_not() -> None:
    explained = tconv.explain(*dense(), gpu=H200, family="mma")
    assert "mma, on NVIDIA H200" in str(explained)
    assert "mma, on NVIDIA H200" in str(tconv.explain(*dense(torch.float64), gpu=H200, family="mma"))
    with pytest.raises(Unsupported, match="needs sm_80"):
        tconv.explain(*dense(), gpu=Gpu("T4", "sm_75", 40, 64 * 1024), family="mma")


def test_cuda_cores_keep_full_products() -> None:
    explained = tconv.explain(*dense(), gpu=H200, family="direct")
    assert explained.plan is not None
    assert (explained.plan.kernel.family, explained.plan.kernel.layer.precision) == ("direct", "fp32")


def test_a_call_follows_the_flags_of_its_moment(as_gpu: list[Plan]) -> None:
    x, weight = dense()

    def run() -> str:
        route = routes.find_route(2, x, weight, None, NO_OPTIONS)
        assert route is not None
        close(routes.run(route, x, weight, None), torch.conv_transpose2d(x, weight))
        return as_gpu[-1].kernel.layer.precision

    assert run() == "tf32"
    allow_tf32(False)
    assert run() == "fp32"
    allow_tf32(True)
    assert run() == "tf32"


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_an_input_may_begin_anywhere(memory_format: torch.memory_format, as_gpu: list[Plan]) -> None:
    x, weight = dense()
    x = x.to(memory_format=memory_format)
    moved = torch.empty(x.numel() + 1)[1:].as_strided(x.shape, x.stride()).copy_(x)
    route = routes.find_route(2, moved, weight, None, NO_OPTIONS)
    assert route is not None and moved.data_ptr() % 16
    close(routes.run(route, moved, weight, None), torch.conv_transpose2d(x, weight))
    assert FAMILIES[as_gpu[-1].kernel.family].alignment > 1, "its kernel could have read it where it is"


@pytest.mark.parametrize("gradient", [False, True])
def test_channels_last_is_read_and_written_as_it_is(gradient: bool, as_gpu: list[Plan]) -> None:
    x, weight = dense()
    x = x.to(memory_format=torch.channels_last).requires_grad_(gradient)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        weight = weight.to(memory_format=memory_format)
        route = routes.find_route(2, x, weight, None, NO_OPTIONS)
        assert route is not None
        result = routes.run(route, x, weight, None)
        assert as_gpu[-1].kernel.tile.channels_last == 1
        assert result.is_contiguous(memory_format=torch.channels_last)
        close(result, torch.conv_transpose2d(x, weight))
    unbatched = routes.find_route(2, x[0], weight, None, NO_OPTIONS)
    assert unbatched is not None
    close(routes.run(unbatched, x[0].unsqueeze(0), weight, None), torch.conv_transpose2d(x[:1], weight))


def test_what_is_channels_last_only_in_part_is_copied(as_gpu: list[Plan]) -> None:
    """A contiguous input with a weight in channels_last gives a result in channels_last, as in PyTorch."""
    x, weight = dense()
    weight = weight.to(memory_format=torch.channels_last)
    route = routes.find_route(2, x, weight, None, NO_OPTIONS)
    assert route is not None and not route.directly
    result = routes.run(route, x, weight, None)
    assert result.is_contiguous(memory_format=torch.channels_last)
    close(result, torch.conv_transpose2d(x, weight))


@pytest.mark.parametrize("layer", [(16, 8, 1), (16, 8, 16), (2, 64, 1)], ids=["dense", "depthwise", "wide"])
@pytest.mark.parametrize("of_input", [torch.contiguous_format, torch.channels_last], ids=str)
def test_weights_in_channels_last_are_read_as_they_lie(
    of_input: torch.memory_format,
    layer: tuple[int, int, int],
    as_gpu: list[Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_channels, out_channels, groups = layer
    weight = torch.randn(in_channels, out_channels, 2, 2).to(memory_format=torch.channels_last)
    x = torch.randn(2, in_channels, 8, 8).to(memory_format=of_input)
    expected = torch.conv_transpose2d(x, weight, groups=groups)
    route = routes.find_route(2, x, weight, None, (1, 0, 0, groups, 1))
    assert route is not None and route.copies == (not route.directly and not x.is_contiguous())
    read: list[int] = []
    enqueue = route.launcher.enqueue
    monkeypatch.setattr(
        route.launcher, "enqueue", lambda stream, x, w, *rest: (read.append(w), enqueue(stream, x, w, *rest))
    )
    again = routes._launch_of(route.plan, route.device, route.launcher, route.memory_format, route.copies)
    close(again(x, weight, None), expected)
    assert read == [weight.data_ptr()] and as_gpu[-1].kernel.layer.weights_last


def test_weights_of_one_channel_or_tap_lie_in_both_formats() -> None:
    for shape in ((16, 1, 3, 3), (16, 8, 1, 1)):
        weight = torch.randn(shape).to(memory_format=torch.channels_last)
        plan = tconv.explain(torch.randn(2, 16, 9, 9), weight, gpu=H200, family="direct").plan
        assert plan is not None and not plan.kernel.layer.weights_last


def test_an_explanation_names_the_copies_that_are_made() -> None:
    x, weight = dense()
    x = x.to(memory_format=torch.channels_last)
    assert tconv.explain(x, weight, gpu=H200, family="mma").conversions == ()
    copies = tconv.explain(x, weight, gpu=H200, family="direct").conversions
    assert len(copies) == 2 and "input" in copies[0] and "result" in copies[1]
    weight = weight.to(memory_format=torch.channels_last)
    explained = tconv.explain(x, weight, gpu=H200, family="mma")
    assert explained.conversions == () and "weights channels_last" in str(explained)
