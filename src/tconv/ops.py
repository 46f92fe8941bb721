"""How a call finds its way: eager, with gradients, under autocast, traced.

On plain tensors of a GPU it takes its route (`routes`). While PyTorch traces or a dispatch mode looks on, the call is
the operator ``tconv::conv_transpose``, which computes the same and which compilers see as one node. Everything else is
PyTorch's own operator with the caller's tensors, errors included.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import _C, Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tconv.dispatch import PRECISION_OF, decide, passing_mode, result_format
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.program import parse
from tconv.routes import as_list, find_route, fused, layer_gradients, plain_route, result_shape, run
from tconv.weights import FrozenWeights

_log = logging.getLogger("tconv")
_NATIVE = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


def conv_transpose(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *arguments: Any,
    frozen: FrozenWeights | None = None,
) -> Tensor:
    """``torch.nn.functional.conv_transpose{dims}d`` by the fastest way that is right.

    Args:
        arguments: stride, padding, output_padding, groups, dilation.
        frozen: keeps `weight` prepared, for a layer whose weights nobody writes in place.
    """
    if torch.compiler.is_compiling():
        return _traced(dims, input, weight, bias, arguments)
    if (known := plain_route(dims, input, weight, bias, arguments)) is not None:
        copy = None if frozen is None else frozen.copy(known.launcher, weight, weight)  # held until the launch
        return run(known, input, weight, bias, 0 if copy is None else copy.address)
    native = _NATIVE[dims]
    if not (isinstance(input, Tensor) and input.is_cuda):
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("PyTorch runs: %s", decide(input, weight, bias, *arguments, spatial_dims=dims).reason)
        return native(input, weight, bias, *arguments)
    if mode := passing_mode():
        _log.debug("PyTorch runs: %s", mode)
        return native(input, weight, bias, *arguments)
    if _C._len_torch_dispatch_stack():
        return _traced(dims, input, weight, bias, arguments)
    cast = autocast(input, weight, bias)
    casts, batched = torch.is_autocast_enabled("cuda"), input.dim() != dims + 1
    route = find_route(dims, *cast, arguments, plain=batched and not casts)
    if route is None:
        return native(input, weight, bias, *arguments)
    copy = None if frozen is None else frozen.copy(route.launcher, weight, cast[1])  # held until the launch
    prepared = 0 if copy is None else copy.address
    if not batched:
        return run(route, cast[0].unsqueeze(0), *cast[1:], prepared).squeeze(0)
    return run(route, *cast, prepared)


def autocast(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The tensors as CUDA autocast gives them to a transposed convolution: float64 stays, the rest takes its dtype."""
    if not torch.is_autocast_enabled("cuda"):
        return input, weight, bias
    dtype = torch.get_autocast_dtype("cuda")

    def cast(tensor: Tensor) -> Tensor:
        lowered = tensor.is_cuda and tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if lowered else tensor

    return cast(input), cast(weight), None if bias is None else cast(bias)


# The operator that compilers and dispatch modes see.

_library: Any = torch.library.Library("tconv", "DEF")  # type: ignore[no-untyped-call]
_library.define(
    "conv_transpose(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
    "SymInt[] output_padding, SymInt groups, SymInt[] dilation) -> Tensor"
)


def _traced(dims: int, input: Tensor, weight: Tensor, bias: Tensor | None, arguments: tuple[Any, ...]) -> Tensor:
    """The operator, if the call is an ordinary one; what exactly runs is decided when the operator does."""
    stride, padding, output_padding, groups, dilation = arguments
    lists = [as_list(values, dims) for values in (stride, padding, output_padding, dilation)]
    cast = autocast(input, weight, bias)
    ordinary = (
        all(tensor is None or _is_ordinary(tensor, cast[0].dtype) for tensor in cast)
        and cast[0].dtype in PRECISION_OF
        and weight.dim() == dims + 2
        and input.dim() in (dims + 1, dims + 2)
        and all(len(values) == dims for values in lists)
    )
    if not ordinary:
        return _NATIVE[dims](input, weight, bias, *arguments)
    batched = cast[0] if input.dim() == dims + 2 else cast[0].unsqueeze(0)
    result: Tensor = torch.ops.tconv.conv_transpose(batched, *cast[1:], *lists[:3], groups, lists[3])
    return result if input.dim() == dims + 2 else result.squeeze(0)


def _is_ordinary(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.is_cuda and tensor.dtype == dtype and not is_traceable_wrapper_subclass(tensor)


def _aten(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    stride, padding, output_padding, groups, dilation = arguments
    result: Tensor = torch.ops.aten.convolution(
        input, weight, bias, stride, padding, dilation, True, output_padding, groups
    )
    return result.contiguous(memory_format=result_format(input, weight))


def _cuda(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    route = find_route(weight.dim() - 2, input, weight, bias, _as_before(arguments))
    return _aten(input, weight, bias, *arguments) if route is None else route.launch(input, weight, bias)


@lru_cache(maxsize=4096)
def _the_same(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _as_before(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments of an operator, whose lists are new in every call, as the same objects for equal ones: so calls that
    were seen are recognised. The schema says that they are integers."""
    stride, padding, output_padding, groups, dilation = arguments
    return _the_same(tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation))


def _fake(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    shape = result_shape(input, weight, *arguments)
    return torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=result_format(input, weight))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, bias, *arguments = inputs
    ctx.save_for_backward(input, weight)
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.arguments = arguments


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    input, weight = ctx.saved_tensors
    found = layer_gradients(gradient, input, weight, ctx.bias_sizes, ctx.arguments, ctx.needs_input_grad[:3])
    return (*found, None, None, None, None, None)


# With a program behind it, which may be empty, and weights that do not change from call to call as kernels take them:
# each of `prepared` in the order that `layouts` names, or none. Another kernel may run after all, by other flags or
# other measurements: that prepares the weights for each call.
_library.define(
    "conv_transpose_epilogue(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
    "SymInt[] output_padding, SymInt groups, SymInt[] dilation, str epilogue, Tensor[] operands, Tensor[] prepared, "
    "str[] layouts) -> Tensor"
)


def _cuda_epilogue(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    *of_layer, epilogue, operands, prepared, layouts = arguments
    result = fused(weight.dim() - 2, input, weight, bias, _as_before(of_layer), epilogue, operands, prepared, layouts)
    return _aten_epilogue(input, weight, bias, *arguments) if result is None else result


def _aten_epilogue(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    *of_layer, epilogue, operands, _, _ = arguments
    result = _aten(input, weight, bias, *of_layer)
    if not epilogue:
        return result
    return evaluate(parse(epilogue), result, operands).contiguous(memory_format=result_format(input, weight))


def _fake_epilogue(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    return _fake(input, weight, bias, *arguments[:5])


_library.impl("conv_transpose_epilogue", _cuda_epilogue, "CUDA")
_library.impl("conv_transpose_epilogue", _aten_epilogue, "CPU")
torch.library.register_fake("tconv::conv_transpose_epilogue", _fake_epilogue, lib=_library)
_library.impl("conv_transpose", _cuda, "CUDA")
_library.impl("conv_transpose", _aten, "CPU")
torch.library.register_fake("tconv::conv_transpose", _fake, lib=_library)
torch.library.register_autograd("tconv::conv_transpose", _backward, setup_context=_setup_context, lib=_library)

#: The operators, as graphs name them.
LAYER = torch.ops.tconv.conv_transpose.default
LAYER_WITH_EPILOGUE = torch.ops.tconv.conv_transpose_epilogue.default
