"""On CPU tensors the library is torch.nn.functional and torch.nn: results, errors, state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import tconv

FUNCTIONS = [
    (tconv.conv_transpose1d, functional.conv_transpose1d, 1),
    (tconv.conv_transpose2d, functional.conv_transpose2d, 2),
    (tconv.conv_transpose3d, functional.conv_transpose3d, 3),
]
MODULES = [
    (tconv.ConvTranspose1d, torch.nn.ConvTranspose1d, 1),
    (tconv.ConvTranspose2d, torch.nn.ConvTranspose2d, 2),
    (tconv.ConvTranspose3d, torch.nn.ConvTranspose3d, 3),
]
Function = Callable[..., torch.Tensor]

#: Positional and keyword arguments after input, weight and bias (4 channels in, 6 out, kernel 3), for any dimension.
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((2,), {}),
    ((2, 1, 1), {}),
    ((3, 2, 2, 2), {}),
    ((2, 1, 1, 2, 3), {}),
    ((), {"dilation": 2, "stride": 3, "groups": 2}),
    (([2],), {"padding": (1,), "output_padding": [1]}),
    ((1,), {"output_padding": 1, "dilation": 2}),
]


def _tensors(dims: int, groups: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(dims)
    size = (5, 4, 6)[:dims]
    return (
        torch.randn(2, 4, *size, dtype=dtype),
        torch.randn(4, 6 // groups, *(3,) * dims, dtype=dtype),
        torch.randn(6, dtype=dtype),
    )


@pytest.mark.parametrize(("ours", "theirs", "dims"), FUNCTIONS)
@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS)
def test_functions(ours: Function, theirs: Function, dims: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    groups = kwargs.get("groups", args[3] if len(args) > 3 else 1)
    x, weight, bias = _tensors(dims, groups)
    expected = theirs(x, weight, bias, *args, **kwargs)
    assert expected.abs().sum() > 0
    torch.testing.assert_close(ours(x, weight, bias, *args, **kwargs), expected, rtol=0, atol=0)
    torch.testing.assert_close(ours(x, weight, None, *args, **kwargs), theirs(x, weight, None, *args, **kwargs))
    torch.testing.assert_close(ours(x[0], weight, bias, *args, **kwargs), theirs(x[0], weight, bias, *args, **kwargs))
    by_name = ours(input=x, weight=weight, bias=bias, **dict(zip(_NAMES, args, strict=False)), **kwargs)
    torch.testing.assert_close(by_name, expected, rtol=0, atol=0)


_NAMES = ("stride", "padding", "output_padding", "groups", "dilation")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    x, weight, _ = _tensors(2, 1, dtype)
    got, expected = (f(x, weight, stride=2) for f in (tconv.conv_transpose2d, functional.conv_transpose2d))
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_channels_last_stays() -> None:
    x, weight, _ = _tensors(2, 1, torch.float32)
    x = x.to(memory_format=torch.channels_last)
    assert tconv.conv_transpose2d(x, weight).stride() == functional.conv_transpose2d(x, weight).stride()


@pytest.mark.parametrize(
    "change",
    [
        {"weight": torch.randn(5, 6, 3, 3)},
        {"weight": torch.randn(4, 6, 3)},
        {"weight": torch.randn(4, 6, 3, 3, dtype=torch.float64)},
        {"weight": None},
        {"weight": "weight"},
        {"input": torch.randn(4, 5)},
        {"input": torch.randn(1, 2, 4, 5, 5)},
        {"input": None},
        {"bias": torch.randn(5)},
        {"bias": torch.randn(6, 1)},
        {"stride": 0},
        {"stride": (1, 2, 3)},
        {"stride": "two"},
        {"stride": 1.5},
        {"padding": -1},
        {"padding": "same"},
        {"padding": 20},
        {"output_padding": 1},
        {"output_padding": -1},
        {"output_padding": (1, 2)},
        {"groups": 0},
        {"groups": 3},
        {"groups": 1.0},
        {"dilation": 0},
        {"dilation": [2, -2]},
    ],
    ids=lambda change: " ".join(f"{k}={tuple(v.shape) if hasattr(v, 'shape') else v}" for k, v in change.items()),
)
def test_errors_are_torchs_own(change: dict[str, Any]) -> None:
    tensors = {"input": torch.randn(2, 4, 5, 5), "weight": torch.randn(4, 6, 3, 3), "bias": torch.randn(6)}
    defaults = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    arguments = tuple((tensors | defaults | change).values())
    with pytest.raises(Exception) as theirs:
        functional.conv_transpose2d(*arguments)
    with pytest.raises(type(theirs.value)) as ours:
        tconv.conv_transpose2d(*arguments)
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(("ours", "theirs", "dims"), MODULES)
@pytest.mark.parametrize(
    "arguments", [{}, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "bias": False}]
)
def test_modules(ours: Any, theirs: Any, dims: int, arguments: dict[str, Any]) -> None:
    torch.manual_seed(3)
    module = ours(4, 6, 3, **arguments)
    torch.manual_seed(3)
    reference = theirs(4, 6, 3, **arguments)
    assert module.state_dict().keys() == reference.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), reference.parameters(), strict=True))
    assert repr(module) == repr(reference)
    assert isinstance(module, theirs)
    x = torch.randn(2, 4, *(5, 4, 6)[:dims])
    torch.testing.assert_close(module(x), reference(x), rtol=0, atol=0)
    torch.testing.assert_close(module(x[1]), reference(x[1]), rtol=0, atol=0)
    module.load_state_dict(reference.state_dict())
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(twin) is ours
        torch.testing.assert_close(twin(x), reference(x), rtol=0, atol=0)


@pytest.mark.parametrize(("ours", "theirs", "dims"), MODULES)
def test_output_size(ours: Any, theirs: Any, dims: int) -> None:
    module, reference = ours(4, 6, 3, stride=3), theirs(4, 6, 3, stride=3)
    reference.load_state_dict(module.state_dict())
    x = torch.randn(2, 4, *(5,) * dims)
    for size in ([16] * dims, [2, 6, *[17] * dims]):
        got = module(x, output_size=size)
        assert got.shape[2:] == tuple(size[-dims:])
        torch.testing.assert_close(got, reference(x, output_size=size), rtol=0, atol=0)
    for size in ([18] * dims, [16] * (dims + 3)):
        with pytest.raises(ValueError) as expected:
            reference(x, size)
        with pytest.raises(ValueError) as caught:
            module(x, size)
        assert str(caught.value) == str(expected.value)


def test_an_input_of_the_wrong_shape_raises_torchs_error() -> None:
    module, reference = tconv.ConvTranspose2d(4, 6, 3), torch.nn.ConvTranspose2d(4, 6, 3)
    with pytest.raises(RuntimeError) as expected:
        reference(torch.randn(2, 5, 4, 4))
    with pytest.raises(RuntimeError) as caught:
        module(torch.randn(2, 5, 4, 4))
    assert str(caught.value) == str(expected.value)


def test_weight_norm_and_hooks_work() -> None:
    module = torch.nn.utils.parametrizations.weight_norm(tconv.ConvTranspose1d(4, 6, 4, stride=2, padding=1))
    seen = []
    module.register_forward_hook(lambda m, inputs, output: seen.append(output.shape))
    x = torch.randn(2, 4, 5)
    expected = functional.conv_transpose1d(x, module.weight, module.bias, 2, 1)
    torch.testing.assert_close(module(x), expected, rtol=0, atol=0)
    assert seen == [(2, 6, 10)]


def test_cpu_autocast() -> None:
    module = tconv.ConvTranspose2d(4, 6, 3)
    x = torch.randn(2, 4, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = module(x), torch.nn.ConvTranspose2d.forward(module, x)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
