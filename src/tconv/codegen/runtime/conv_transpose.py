"""The transposed convolution of a generated file, with its gradients, and as one operator for compilers."""
# mypy: ignore-errors

import functools
import itertools
import operator
import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from tconv.codegen.runtime.dispatch import _Launch, _launch_for
    from tconv.codegen.runtime.epilogues import _fused
    from tconv.codegen.runtime.known_epilogues import _PROGRAMS
    from tconv.codegen.runtime.launch import _launch
    from tconv.codegen.runtime.records import ELSEWHERE

# ---- copied from here on

# ---- the operator ----------------------------------------------------------------------------------------------------


def _run(launch, x, weight, bias, *operands):
    y = x.new_empty(launch.shape)
    _fill(y, launch, x, weight, bias, *operands)
    return _as_theirs(y, x, weight)


def _fill(y, launch, x, weight, bias, *operands):
    x, weight = x.contiguous(), weight.contiguous()
    # ---- where copies are aligned
    if launch.kernel.family != "direct":  # bulk copies need addresses that are multiples of 16 bytes
        x = x.clone() if x.data_ptr() % 16 else x
        weight = weight.clone() if weight.data_ptr() % 16 else weight
    # ---- where copies are aligned
    bias = None if bias is None else bias.contiguous()
    # ---- where programs are computed
    if operands:
        operands = [t.contiguous() for t in operands]
        # Kernels read operands of neighbouring outputs at once, up to 16 aligned bytes.
        operands = [t.clone() if t.data_ptr() % 16 else t for t in operands]
    # ---- where programs are computed
    if launch.samples >= launch.batch:
        return _launch(launch, x, weight, bias, y, *operands)
    for first in range(0, launch.batch, launch.samples):
        part = slice(first, first + launch.samples)
        # ---- where programs are computed
        read = _PROGRAMS[launch.kernel.program] if operands else ()
        of_part = [t[part] if name[:2] in ("ou", "sa") else t for t, name in zip(operands, read)]
        # ---- where programs are computed
        _launch(launch, x[part], weight, bias, y[part], *of_part)


def _as_theirs(y, x, weight):
    """The result in the memory format that PyTorch would give it: channels_last in, channels_last out."""
    last = _last(x, weight)
    return y if last is None else y.contiguous(memory_format=last)


def _last(x, weight):
    if x.is_contiguous() and weight.is_contiguous():
        return None
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    given = (t for t in (x, weight) if last and not t.is_contiguous())
    return last if any(t.is_contiguous(memory_format=last) for t in given) else None


def _save(ctx, inputs, output):
    x, weight, bias, *ctx.options = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_sizes = None if bias is None else list(bias.shape)


def _gradients(ctx, gradient, saved=None, needed=None):
    """Gradients of input, weight and bias; None for each of the five options."""
    stride, padding, output_padding, groups, dilation = ctx.options
    options = (stride, padding, dilation, True, output_padding, groups, list((needed or ctx.needs_input_grad)[:3]))
    gradients = torch.ops.aten.convolution_backward(gradient, *saved or ctx.saved_tensors, ctx.bias_sizes, *options)
    return (*gradients, None, None, None, None, None)


class _ConvTranspose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, options, launch):
        ctx.save_for_backward(x, weight)
        ctx.options, ctx.bias_sizes = options, None if bias is None else [launch.shape[1]]
        return _run(launch, x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        return (*_gradients(ctx, gradient)[:3], None, None)


# Function.apply first asks whether torch.func is active. `_looked_at` has asked already: this saves a microsecond.
_apply = super(torch.autograd.Function, _ConvTranspose).apply


def _pytorch(x, weight, bias, *options):
    """PyTorch's own operator."""
    return getattr(torch, f"conv_transpose{len(options[0])}d")(x, weight, bias, *options)


def _operator(x, weight, bias, stride, padding, output_padding, groups, dilation):
    options = (tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation))
    launch = _wanted((x, weight, bias), options)
    if launch is None:
        return _as_theirs(_pytorch(x, weight, bias, *options), x, weight)
    return _run(launch, x, weight, bias)


def _operators_shape(x, weight, bias, *options):
    return _as_theirs(x.new_empty(_pytorch(x, weight, bias, *options).shape), x, weight)


def _define(space):
    """Defines the operator of this load of the file in namespace `space`; None where PyTorch has no custom operators.

    Each load takes a new name. To define a name again would take the operator from the load that defined it first.
    """
    if not hasattr(torch.library, "custom_op"):
        return None
    names = itertools.chain(["conv_transpose"], map("conv_transpose_{}".format, itertools.count(2)))
    name = next(each for each in names if not hasattr(getattr(torch.ops, space), each))
    sizes = "SymInt[] stride, SymInt[] padding, SymInt[] output_padding, SymInt groups, SymInt[] dilation"
    schema = f"(Tensor x, Tensor weight, Tensor? bias, {sizes}) -> Tensor"
    defined = torch.library.custom_op(f"{space}::{name}", _operator, mutates_args=(), schema=schema)
    defined.register_fake(_operators_shape)
    defined.register_autograd(_gradients, setup_context=_save)
    return defined


# torch.compile and dispatch modes see a call as this one operator. Its namespace has the digest of this file.
_OPERATOR = _define("tconv_DIGEST")


def _tuple(value, dims):
    if type(value) is tuple and len(value) == dims:  # modules keep their options like this
        return value
    values = tuple(map(operator.index, value)) if hasattr(value, "__iter__") else (operator.index(value),)
    return values * dims if len(values) == 1 else values


def _autocast_dtype():
    """The type that autocast casts operands to; None where autocast is off."""
    if not torch.is_autocast_enabled():
        return None
    newer = hasattr(torch, "get_autocast_dtype")
    return torch.get_autocast_dtype("cuda") if newer else torch.get_autocast_gpu_dtype()


def _autocast(tensor, dtype):
    stays = tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64
    return tensor if stays else tensor.to(dtype)


def _conv_transpose(
    dims, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, epilogue=None
):
    """Equivalent to: conv_transpose1d, 2d or 3d of torch.nn.functional, by `dims`."""
    stride, padding, dilation = _tuple(stride, dims), _tuple(padding, dims), _tuple(dilation, dims)
    options = (stride, padding, _tuple(output_padding, dims), groups, dilation)
    autocast = _autocast_dtype()
    if autocast is not None:
        input, weight, bias = (_autocast(tensor, autocast) for tensor in (input, weight, bias))
    tensors = (input.unsqueeze(0) if input.dim() == dims + 1 else input, weight, bias)
    # ---- where epilogues are fused
    if epilogue is not None:
        y = _fused(tensors, options, epilogue, autocast) if tensors[0] is input else None
        if y is not None:
            return y
        return epilogue.joined(epilogue(_conv_transpose(dims, input, weight, bias, *options)))
    # ---- where epilogues are fused
    if _OPERATOR is not None and (torch.compiler.is_compiling() or _modes()):
        y = _OPERATOR(*tensors, *options)
        return y if tensors[0] is input else y.squeeze(0)
    launch = _wanted(tensors, options)
    if launch is None:
        return _pytorch(input, weight, bias, *options)
    y = _apply(*tensors, options, launch) if _wants_gradients(*tensors) else _run(launch, *tensors)
    return y if tensors[0] is input else y.squeeze(0)


def _wants_gradients(*tensors):
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _wanted(tensors, options, program=""):
    """The launch for these tensors; None where PyTorch's operator runs instead. Errors of arguments are PyTorch's."""
    x, weight, bias = tensors
    other = x if bias is None else bias
    if not (x.dtype == weight.dtype == other.dtype and x.device == weight.device == other.device):
        return None
    reason = _looked_at(tensors)
    if not reason:
        # While torch.jit traces, shapes hold tensors instead of numbers: they are read only here.
        shapes = (x.shape, weight.shape, None if bias is None else bias.shape)
        launch = _launch_for(x.device, x.dtype, *shapes, options, program)
        if type(launch) is _Launch:
            if not launch.kernel.tf32 or _allows_tf32():
                return launch
            launch = "they round to TF32, which PyTorch's flags forbid now"
        reason = launch
    if reason and not program:
        _elsewhere(tuple(map(int, weight.shape)), options, reason, ELSEWHERE)
    return None


# Some versions of PyTorch lack these functions: bool() and int() then answer False and 0.
_transforms = getattr(torch._C, "_are_functorch_transforms_active", bool)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", int)
_PLAIN = (torch.Tensor, nn.Parameter, type(None))


def _looked_at(tensors):
    """Says what watches operators in this call, and so must see PyTorch's own; "" where nothing does."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit traces the call"
    if _transforms():
        return "torch.func transforms the call"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation follows the call"
    if _modes():
        return "a dispatch mode is active"
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return "a tensor is of a subclass"
    return ""


def _allows_tf32():
    """Whether PyTorch's flags allow TF32 in convolutions. Its newer flag decides where it has one, else the older."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return torch._C._get_cudnn_allow_tf32() if newer is None else newer("cuda", "conv") == "tf32"


@functools.lru_cache(maxsize=None)
def _elsewhere(weight_shape, options, reason, elsewhere):
    """Warns, once for each layer and reason, that PyTorch runs a layer. With ELSEWHERE "error", raises each time."""
    stride, padding, _, groups, dilation = options
    channels = f"{weight_shape[0]}→{weight_shape[1] * groups}"
    sizes = f"kernel {weight_shape[2:]}, stride {stride}, padding {padding}, dilation {dilation}, groups {groups}"
    layer = f"conv_transpose{len(stride)}d {channels}, {sizes}"
    if elsewhere == "error":  # lru_cache keeps no exceptions, so every call raises
        raise RuntimeError(f"no kernel of this file runs {layer}: {reason} (ELSEWHERE is 'error')")
    warnings.warn(f"PyTorch runs {layer}, not a kernel of this file: {reason}", stacklevel=2)
