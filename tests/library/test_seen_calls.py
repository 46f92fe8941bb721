"""A layer's warm call is recognised, and only while nothing that decides has changed. Without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from modes import Dispatched
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import tconv
from tconv import ops, routes

X = torch.randn(2, 32, 8, 8)


@pytest.fixture
def layer(as_cuda: Any) -> tconv.ConvTranspose2d:
    torch.manual_seed(1)
    return tconv.ConvTranspose2d(32, 16, 4, stride=2, padding=1)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The inputs of the calls that were not recognised."""
    found: list[torch.Tensor] = []
    metadata = routes._metadata

    def listed(tensor: torch.Tensor) -> Any:
        if type(tensor) is not nn.Parameter:
            found.append(tensor)
        return metadata(tensor)

    monkeypatch.setattr(routes, "_metadata", listed)
    return found


def near(got: torch.Tensor, layer: Any, x: torch.Tensor) -> None:
    arguments = (layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)
    expected = torch.conv_transpose2d(x, layer.weight, layer.bias, *arguments)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_warm_call_is_recognised(layer: Any, looked_up: list[torch.Tensor], as_cuda: Any, gradients: bool) -> None:
    with torch.set_grad_enabled(gradients):
        for turn in range(3):
            result = layer(X + turn)
            near(result, layer, X + turn)
            assert result.requires_grad == gradients
    assert len(looked_up) == 1 and len(as_cuda) == 3


def test_a_few_shapes_are_recognised(layer: Any, looked_up: list[torch.Tensor]) -> None:
    inputs = [X[..., :columns] for columns in (2, 3, 4, 5)]
    for x in inputs * 2:
        near(layer(x), layer, x)
    assert len(looked_up) == 4
    for x in [*inputs, X] * 2:
        near(layer(x), layer, x)


def _other_data(layer: Any) -> None:
    layer.weight.data = torch.randn(32, 16, 3, 3)


def _other_type(layer: Any) -> None:
    layer.double()


def _other_strides(layer: Any) -> None:
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)


def _without_bias(layer: Any) -> None:
    layer.bias = None


def _other_arguments(layer: Any) -> None:
    layer.stride, layer.padding = (3, 1), (0, 1)


@pytest.mark.parametrize(
    "change",
    [_other_data, _other_type, _other_strides, _without_bias, _other_arguments],
    ids=lambda each: each.__name__,
)
def test_a_change_is_seen(layer: Any, looked_up: list[torch.Tensor], change: Callable[[Any], None]) -> None:
    layer(X)
    change(layer)
    x = X.to(layer.weight.dtype)
    for _ in range(2):
        near(layer(x), layer, x)
    assert len(looked_up) == 2


def test_values_may_change(layer: Any, looked_up: list[torch.Tensor]) -> None:
    layer(X)
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.data = torch.randn(16)
    near(layer(X), layer, X)
    assert len(looked_up) == 1


def test_flags_for_tf32_count(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = tconv.ConvTranspose2d(256, 128, 4, stride=2, padding=1), torch.randn(4, 256, 8, 8)
    before = torch.backends.cudnn.allow_tf32
    for allowed in (not before, before) * 2:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        layer(x)
    assert len({plan.kernel for plan in as_cuda[:2]}) == 2
    assert as_cuda[:2] == as_cuda[2:]


def test_an_argument_that_is_equal_and_no_integer_is_pytorchs(layer: Any) -> None:
    tensors = X, layer.weight, layer.bias
    tconv.conv_transpose2d(*tensors, stride=1)
    with pytest.raises(TypeError):
        tconv.conv_transpose2d(*tensors, stride=1.0)  # type: ignore[arg-type]


def test_a_list_may_change(layer: Any, looked_up: list[torch.Tensor]) -> None:
    stride = [2, 2]
    tensors = X, layer.weight, layer.bias
    shapes = []
    for rows in (2, 3):
        stride[0] = rows
        shapes.append(tconv.conv_transpose2d(*tensors, stride=stride).shape)
    assert shapes == [(2, 16, 18, 18), (2, 16, 25, 18)]
    assert len(looked_up) == 2


def test_an_operators_lists_are_new_in_every_call(layer: Any, looked_up: list[torch.Tensor], as_cuda: Any) -> None:
    """As compiled graphs call it: what is equal is recognised, and what is not runs as it says."""
    x = torch.randn(2, *X.shape[1:])

    def called(stride: int, extra: list[Any]) -> torch.Tensor:
        arguments = [stride, stride], [1, 1], [0, 0], 1, [1, 1]
        operator = ops._cuda_epilogue if extra else ops._cuda
        return operator(x, layer.weight, layer.bias, *arguments, *extra)

    for extra in ([], ["", [], [], []]):
        for stride in (2, 3):
            expected = torch.nn.functional.conv_transpose2d(x, layer.weight, layer.bias, stride, 1)
            torch.testing.assert_close(called(stride, extra), expected)
        looked_up.clear()
        for stride in (2, 3):
            called(stride, extra)
        assert looked_up == []


def test_an_identity_says_only_where_to_look(layer: Any, looked_up: list[torch.Tensor]) -> None:
    """That of a tensor that is gone becomes another's."""
    layer(X)
    other = tconv.ConvTranspose2d(32, 8, 4, stride=2, padding=1)
    seen = routes._routes[2, id(layer.weight), id(layer.bias), "", 0]
    routes._routes[2, id(other.weight), id(other.bias), "", 0] = seen
    near(other(X), other, X)
    assert len(looked_up) == 2


def test_computed_weights_are_looked_up(layer: Any, looked_up: list[torch.Tensor]) -> None:
    torch.nn.utils.parametrizations.weight_norm(layer)
    for _ in range(2):
        near(layer(X), layer, X)
    assert [tensor is X for tensor in looked_up] == [True, False] * 2, "the input, and a weight that is no parameter"


def test_modes_see_a_warm_call(layer: Any, as_cuda: Any) -> None:
    with torch.no_grad():
        for _ in range(2):
            layer(X)
        launched = len(as_cuda)
        mapped = torch.vmap(layer)(torch.stack([X, X + 1]))
        tangent = torch.func.jvp(layer, (X,), (X,))[1]
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(layer(forward_ad.make_dual(X, X))).tangent
        traced = torch.jit.trace(layer, (X,), check_trace=False)
    assert len(as_cuda) == launched
    near(mapped[1], layer, X + 1)
    for each in (tangent, dual):
        torch.testing.assert_close(each, layer(X) - layer(X * 0), rtol=1e-3, atol=1e-3)
    assert "conv" in str(traced.inlined_graph)


def test_dispatch_modes_see_a_warm_call_as_one_operator(layer: Any, as_cuda: Any) -> None:
    with torch.no_grad():
        for _ in range(2):
            layer(X)
        with Dispatched() as dispatched:
            layer(X)
        graph = make_fx(layer)(X).graph
    assert "tconv.conv_transpose.default" in dispatched.names
    assert "tconv.conv_transpose" in str(graph)


def test_what_escaped_from_a_transform_is_pytorchs(layer: Any, as_cuda: Any) -> None:
    """A wrapper without memory, of what kernels have run before."""
    escaped: list[torch.Tensor] = []
    torch.func.grad(lambda x: escaped.append(x + 1) or x.sum())(X)  # type: ignore[func-returns-value]
    (x,), tensors = escaped, (layer.weight, layer.bias, 2, 1)
    call = tconv.prepare(layer, X)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            layer(X)
            launched = len(as_cuda)
            for _ in range(2):
                near(layer(x), layer, X + 1)
            near(tconv.conv_transpose2d(x, *tensors, epilogue=tconv.Epilogue(lambda y: y * 2)) / 2, layer, X + 1)
            assert len(as_cuda) == launched
    out = torch.empty(2, 16, 16, 16)
    with torch.no_grad():
        near(tconv.conv_transpose2d(x, *tensors, out=out), layer, X + 1)
        with pytest.raises(ValueError, match="not plain"):
            call(x)
    assert "escaped from a transform" in tconv.explain(layer, x).reason


def test_a_gradient_is_asked_for_or_not(layer: Any, looked_up: list[torch.Tensor]) -> None:
    """By the mode or by the tensors, after calls that asked for none."""
    for _ in range(2):
        with torch.no_grad():
            assert not layer(X).requires_grad
        with torch.inference_mode():
            assert layer(X).is_inference()
        assert layer(X).requires_grad
    layer.requires_grad_(False)
    for _ in range(2):
        assert not layer(X).requires_grad
        assert layer(X.clone().requires_grad_()).requires_grad


def test_without_guards_calls_are_looked_up(
    layer: Any, looked_up: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    for _ in range(2):
        near(layer(X), layer, X)
    assert len(looked_up) == 2
