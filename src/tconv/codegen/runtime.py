"""The part of a generated file that is the same in all of them. `generate` copies the text below the first mark: what
stands above the user's model, and behind the second mark the kernels, which stand below it.

`generate` fills in the empty places and leaves out what stands between marks where a file does not need it. All of it
runs where generated files run: Python 3.8 and PyTorch 1.13 on.
"""
# mypy: ignore-errors
# ruff: noqa: B905, RUF005, UP033
# ---- copied from here on

import functools
import hashlib
import inspect
import itertools
import operator
import warnings
from collections import namedtuple

import torch
from torch import nn
from torch.autograd import forward_ad

# What becomes of a call that no kernel of this file runs: "pytorch" runs it and a warning says why; "error" raises.
ELSEWHERE = "pytorch"

_Layer = namedtuple("_Layer", "in_channels out_channels kernel_size stride padding dilation groups bias dtype")
# A kernel: its family, its name and its place in the family's text; bytes of shared memory of a block; neighbouring
# columns that are loaded at once, of which rows of the input have a multiple; axes along which inputs have one element;
# whether operands are rounded to TF32. Bytes of the weights in the order in which the kernel loads them, 0 where it
# takes them as they are; whether inputs are brought into another order, too.
# ---- where tails are fused
# What it computes behind the layer.
# ---- where tails are fused
_Kernel = namedtuple(
    "_Kernel",
    "family name place shared_bytes columns single tf32 weight_bytes prepares_inputs program",
    defaults=(0, 1, (), False, 0, False, ""),
)
# ---- where programs are computed
# What is computed behind layers, in their kernels.
_TEXTS = ()
# ---- where programs are computed
# The kernels of each layer, the fastest first.
_RECORDED = {}
# ---- where programs are computed
# What each program reads.
_PROGRAMS = {}
# What stands behind layers, in PyTorch's operators: for gradients of gradients.
_BEHIND = ()

# What is known of what stands behind a layer:
#   program    what the layer's kernel computes of the layer's result
#   operands   which of the tensors that it reads are the program's
#   again      the same in PyTorch's operators
# and of gradients, where the one of its result is given:
#   backward   the program of the gradient of the layer's result: of some of the operands, `reads`, and the given one
#   slope      the same, as a function of the given one and of what forward gave; that is kept if it `keeps` it
#   sources    of what the gradient of each operand is the sum. ("layer", 2.0): of twice the layer's; ("given", 1.0): of
#              the given one; or of what another program like `backward` gives, and what that reads. None: it has none;
#              "again": PyTorch tells it
#   wide       some of it autocast computes in float32
#   types      of the results for which it holds; empty for all
_Tailed = namedtuple(
    "_Tailed",
    "program operands again sources backward reads slope keeps wide types",
    defaults=((), None, (), "", (), None, False, False, ()),
)
# By what it reads, as `_Tail.read` says that.
_TAILS = {}
# Classes of modules that are called there, with what their results depend on: numbers and such, and tensors.
_POINTWISE = {}
# ---- where programs are computed
# ---- where layers are built elsewhere
# Modules left to PyTorch, by name.
_LEFT = ()
# ---- where layers are built elsewhere


# ---- which kernel runs a call ----------------------------------------------------------------------------------------

_Gpu = namedtuple("_Gpu", "capability shared_bytes multiprocessors")


@functools.lru_cache(maxsize=None)
def _gpu(device):
    """What decides which kernels run there; None where none does."""
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    kilobytes = 227 if capability[0] in (9, 10) else 163 if capability in ((8, 0), (8, 7)) else 99
    return _Gpu(capability, kilobytes * 1024, torch.cuda.get_device_properties(device).multi_processor_count)


def _has_sm_90a(capability):
    """Whether the GPU and the compiler know sm_90a, which is Hopper's alone."""
    return capability == (9, 0) and int((torch.version.cuda or "0").partition(".")[0]) >= 12


def _runs_on(kernel, gpu):
    if kernel.family == "wgmma":
        return _has_sm_90a(gpu.capability)
    if kernel.family == "mma":
        return gpu.capability >= (8, 0) and kernel.shared_bytes <= gpu.shared_bytes
    return gpu.capability >= (7, 5)


def _three(values, fill):
    return (fill,) * (3 - len(values)) + tuple(values)


# A kernel for a call of these sizes, (depth, height, width), so many samples at a time. The result has a shape, and is
# a slice of a tensor with `y_channels`, or all of it.
_Launch = namedtuple("_Launch", "kernel y_channels batch input_size output_size shape samples")


@functools.lru_cache(maxsize=4096)
def _launch_for(device, dtype, x_shape, weight_shape, bias_shape, options, program="", into=0):
    """The launch of a call, or in words why no kernel of this file runs it; "" where PyTorch has an error to give."""
    stride, padding, output_padding, groups, dilation = options
    if not len(x_shape) == len(weight_shape) == len(stride) + 2 == len(output_padding) + 2:
        return ""
    out_channels, kernel_size = weight_shape[1] * groups, weight_shape[2:]
    has_bias = bias_shape is not None
    layer = _Layer(weight_shape[0], out_channels, kernel_size, stride, padding, dilation, groups, has_bias, dtype)
    if layer not in _RECORDED:
        types = ", ".join(str(each.dtype)[6:] for each in _RECORDED if each._replace(dtype=dtype) == layer)
        if types:
            return f"its kernels are for {types}, not for {str(dtype)[6:]}: tconv optimize --types makes others"
        return "none was made for these arguments of the layer"
    spans = [apart * (taps - 1) + 1 for taps, apart in zip(kernel_size, dilation)]
    sizes = zip(x_shape[2:], stride, padding, spans, output_padding)
    output = tuple((size - 1) * step - 2 * less + span + extra for size, step, less, span, extra in sizes)
    if x_shape[1] != layer.in_channels or bias_shape not in (None, (out_channels,)):
        return ""
    if min(output + x_shape[2:]) < 1 or min(output_padding) < 0:
        return ""
    if any(extra >= max(step, apart) for step, extra, apart in zip(stride, output_padding, dilation)):
        return ""
    if not x_shape[0]:
        return "the batch is empty"
    gpu = _gpu(device)
    if gpu is None:
        return f"they run on a GPU, and the tensors are on {device.type!r}"
    if max(max(size, span) + s + p for size, span, s, p in zip(output, spans, stride, padding)) >= 2**31:
        return "an axis is too long for one launch"
    kernels = [each for each in _RECORDED[layer] if each.program == program]
    kernels = [each for each in kernels if _runs_on(each, gpu)]
    if not kernels:
        return f"none runs on a GPU of compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    input_size, output_size = _three(x_shape[2:], 1), _three(output, 1)
    for kernel in kernels:
        if input_size[2] % kernel.columns == 0 and all(input_size[axis] == 1 for axis in kernel.single):
            break
    else:
        return "none takes an input of this size"
    if not _can_build(kernel, gpu):
        return "the CUDA compiler, nvcc, is not found: it builds them"
    samples = _samples(kernel, gpu, x_shape[0], input_size, output_size)
    # A slice of the batch begins at a multiple of 16 bytes, which is what kernels load and store at once.
    samples = samples if samples >= x_shape[0] else samples // 16 * 16
    if not samples:
        return "it is too large for one launch"
    shape = (x_shape[0], out_channels) + output
    return _Launch(kernel, into or out_channels, x_shape[0], input_size, output_size, shape, samples)


# ---- building and launching ------------------------------------------------------------------------------------------


def _load_options(family, capability):
    """The arguments of load_inline that build the kernels of a family for one compute capability."""
    from torch.utils.cpp_extension import load_inline

    cuda = _CUDA[family]
    version = "90a" if _has_sm_90a(capability) else "".join(map(str, capability))
    flags = ["-O3", f"-gencode=arch=compute_{version},code=sm_{version}"]
    flags += ["-DTCONV_OVERLAPS"] * (capability >= (9, 0))
    flags += ["--split-compile=0"] * ((torch.version.cuda or "") >= "13")  # all kernels at once
    options = {
        "name": "tconv_" + hashlib.sha256("\n".join([_BINDING, cuda] + flags).encode()).hexdigest()[:20],
        "cpp_sources": [_BINDING],
        "cuda_sources": [cuda],
        "extra_cuda_cflags": flags,
    }
    if "no_implicit_headers" in inspect.signature(load_inline).parameters:  # seconds instead of a minute
        options["no_implicit_headers"] = True
    return options


@functools.lru_cache(maxsize=None)
def _extension(family, capability):
    """The function that launches the kernels of a family, built at its first use."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(**_load_options(family, capability)).launch


def _can_build(kernel, gpu):
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_HOME is not None


def _samples(kernel, gpu, *sizes):
    """How many samples one launch takes: its offsets have 32 bits."""
    batch, input_size, output_size = sizes
    launch = _extension(kernel.family, gpu.capability)
    return launch(kernel.place, 0, gpu.multiprocessors, *[0] * 6, batch, *input_size, *output_size)


def _launch(launch, x, weight, bias, y, *operands):
    """Runs a kernel on contiguous tensors of one device, on the current stream."""
    device, kernel = x.device, launch.kernel
    if torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            return _launch(launch, x, weight, bias, y, *operands)
    gpu = _gpu(device)
    pointers = [x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(), 0]
    # ---- where weights are prepared
    if kernel.weight_bytes:
        # Inputs in another order lie behind the weights.
        bytes_of_inputs = x.numel() * x.element_size() if kernel.prepares_inputs else 0
        prepared = torch.empty(kernel.weight_bytes + bytes_of_inputs, dtype=torch.uint8, device=device)
        pointers[4] = prepared.data_ptr()
    # ---- where weights are prepared
    stream = torch._C._cuda_getCurrentRawStream(device.index)  # torch.cuda.current_stream() takes as long as a launch
    sizes = (launch.y_channels, x.shape[0], *launch.input_size, *launch.output_size)
    # ---- where programs are computed
    sizes += tuple(t.data_ptr() for t in operands)
    # ---- where programs are computed
    error = _extension(kernel.family, gpu.capability)(kernel.place, stream, gpu.multiprocessors, *pointers, *sizes)
    if error:
        raise RuntimeError(f"CUDA error {error} at the launch of {kernel.name} on {tuple(x.shape)}")


# ---- the operator ----------------------------------------------------------------------------------------------------


def _run(launch, x, weight, bias, *operands):
    y = x.new_empty(launch.shape)
    _fill(y, launch, x, weight, bias, *operands)
    return _as_theirs(y, x, weight)


def _fill(y, launch, x, weight, bias, *operands):
    x, weight = x.contiguous(), weight.contiguous()
    # ---- where weights are prepared
    if launch.kernel.family != "direct":  # bulk copies begin at multiples of 16 bytes
        x = x.clone() if x.data_ptr() % 16 else x
        weight = weight.clone() if weight.data_ptr() % 16 else weight
    # ---- where weights are prepared
    bias = None if bias is None else bias.contiguous()
    # ---- where programs are computed
    operands = [t.contiguous() for t in operands]
    # Outputs that lie together are read at once.
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
    """The result in PyTorch's memory format: channels_last in, channels_last out."""
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
    """Of input, weight and bias, and of the five options."""
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


# Its own `apply` asks first whether torch.func is at work, which is known here: a microsecond of each call.
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
    """The operator of this load of the file, in that namespace; None where PyTorch has none.

    To define a name again would take the operator away from the load that has it: each has a name of its own.
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


# What torch.compile and dispatch modes see, as one node; named by the contents of this file.
_OPERATOR = _define("tconv_DIGEST")


def _tuple(value, dims):
    if type(value) is tuple and len(value) == dims:  # as modules have them
        return value
    values = tuple(map(operator.index, value)) if hasattr(value, "__iter__") else (operator.index(value),)
    return values * dims if len(values) == 1 else values


def _autocast_dtype():
    """What autocast makes of operands; None where it is off."""
    if not torch.is_autocast_enabled():
        return None
    newer = hasattr(torch, "get_autocast_dtype")
    return torch.get_autocast_dtype("cuda") if newer else torch.get_autocast_gpu_dtype()


def _autocast(tensor, dtype):
    stays = tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64
    return tensor if stays else tensor.to(dtype)


def _conv_transpose(
    dims, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, tail=None
):
    """Equivalent to: the conv_transpose of torch.nn.functional with `dims` spatial dimensions."""
    stride, padding, dilation = _tuple(stride, dims), _tuple(padding, dims), _tuple(dilation, dims)
    options = (stride, padding, _tuple(output_padding, dims), groups, dilation)
    autocast = _autocast_dtype()
    if autocast is not None:
        input, weight, bias = (_autocast(tensor, autocast) for tensor in (input, weight, bias))
    tensors = (input.unsqueeze(0) if input.dim() == dims + 1 else input, weight, bias)
    # ---- where tails are fused
    if tail is not None:
        y = _fused(tensors, options, tail, autocast) if tensors[0] is input else None
        if y is not None:
            return y
        return tail.joined(tail(_conv_transpose(dims, input, weight, bias, *options)))
    # ---- where tails are fused
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
    """The launch for these tensors; None where PyTorch's own operator is to run. It gives its errors, too."""
    x, weight, bias = tensors
    other = x if bias is None else bias
    if not (x.dtype == weight.dtype == other.dtype and x.device == weight.device == other.device):
        return None
    reason = _looked_at(tensors)
    if not reason:
        # Shapes in a trace of torch.jit are no numbers.
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


# Missing in some versions of PyTorch.
_transforms = getattr(torch._C, "_are_functorch_transforms_active", bool)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", int)
_PLAIN = (torch.Tensor, nn.Parameter, type(None))


def _looked_at(tensors):
    """Who looks at what is computed, and so is to see PyTorch's operator; "" where nobody does."""
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
    """Whether PyTorch may round operands of convolutions to TF32: its newer flag where it has one, else the older."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return torch._C._get_cudnn_allow_tf32() if newer is None else newer("cuda", "conv") == "tf32"


@functools.lru_cache(maxsize=None)
def _elsewhere(weight_shape, options, reason, elsewhere):
    """Says, once for each layer and reason, that PyTorch runs it; where that is an error, says so each time."""
    stride, padding, _, groups, dilation = options
    channels = f"{weight_shape[0]}→{weight_shape[1] * groups}"
    sizes = f"kernel {weight_shape[2:]}, stride {stride}, padding {padding}, dilation {dilation}, groups {groups}"
    layer = f"conv_transpose{len(stride)}d {channels}, {sizes}"
    if elsewhere == "error":  # what is raised is not kept
        raise RuntimeError(f"no kernel of this file runs {layer}: {reason} (ELSEWHERE is 'error')")
    warnings.warn(f"PyTorch runs {layer}, not a kernel of this file: {reason}", stacklevel=2)


# ---- where functions are called
cuda_conv_transpose1d = functools.partial(_conv_transpose, 1)
cuda_conv_transpose2d = functools.partial(_conv_transpose, 2)
cuda_conv_transpose3d = functools.partial(_conv_transpose, 3)


# ---- where functions are called
# ---- where tails are fused
# ---- what stands behind a layer --------------------------------------------------------------------------------------


# ---- where tails are fused
# ---- where programs are computed
_CPU = torch.device("cpu")


@functools.lru_cache(maxsize=4096)
def _kind(shape, of):
    """What a tensor of that shape has one value for, beside a result of the shape `of`; None if of nothing."""
    if len(shape) == 1 and shape[0] == of[1] != 1:  # as the parameters of modules have them
        return "vector"
    shape = (1,) * (len(of) - len(shape)) + shape
    if shape == of:
        return "output"
    if len(shape) > len(of):
        return None
    if set(shape) <= {1}:
        return "scalar"
    if shape[1] != of[1] or not set(shape[2:]) <= {1} or shape[0] not in (1, of[0]):
        return None
    return "channel" if shape[0] == 1 else "sample"


def _is_plain(module):
    """Whether calling a module computes what is recorded of its class, and nothing else."""
    if type(module) not in _POINTWISE:  # it need not be a module any more
        return False
    hooked = _is_hooked(module) or module._forward_pre_hooks or "forward" in vars(module)
    return not (hooked or (module.training and hasattr(module, "num_batches_tracked")))


# ---- where programs are computed
# ---- where tails are fused
# What sees a module's result, the gradient of that, or all arguments of a call; hooks that see its inputs alone may.
_HOOKS = (
    *("_forward_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    "_compiled_call_impl",
)
_GLOBAL_HOOKS = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "backward_pre"))


def _is_hooked(module):
    return any(map(vars(module).get, _HOOKS))


def _watched():
    """Whether somebody is told of every module's calls, or of their gradients."""
    return any(map(vars(nn.modules.module).get, _GLOBAL_HOOKS))


class _Tail:
    """What stands behind a layer: a function of its result, and tensors beside that result in a concatenation."""

    def __init__(self, function, modules, before, behind, reads=(), site=None):
        self.function, self.modules, self.before, self.behind = function, modules, before, behind
        self.reads, self.site = reads, site

    def __call__(self, y):
        if self.function is not None:
            return self.function(y)
        for module in self.modules:
            y = module(y)
        return y

    def joined(self, y):
        return torch.cat([*self.before, y, *self.behind], 1) if self.before or self.behind else y

    def fits(self, shape, x):
        """Whether the tensors beside a result of that shape, of a layer of `x`, are concatenated with it."""
        return all(
            part.dim() == len(shape)
            and (part.shape[0], tuple(part.shape[2:])) == (shape[0], shape[2:])
            and (part.dtype, part.device) == (x.dtype, x.device)
            for part in (*self.before, *self.behind)
        )

    # ---- where tails are fused
    # ---- where programs are computed
    def read(self, shape, like):
        """In words, all that decides what it calls of a layer's result, of a shape and like a tensor; None where no
        words do. And the tensors that it reads."""
        said, tensors, values = [self.site], [], []
        for module in self.modules:
            numbers, names = _POINTWISE[type(module)]
            said.append(f"{type(module).__name__}({', '.join(repr(getattr(module, name)) for name in numbers)})")
            values += [getattr(module, name) for name in names]
        for value in (*values, *self.reads):
            if isinstance(value, torch.Tensor):
                kind = _kind(tuple(value.shape), shape)
                if kind is None or value.dtype != like.dtype or value.device != like.device:
                    return None, ()
                place = next((n for n, tensor in enumerate(tensors) if tensor is value), len(tensors))
                tensors[place:] = tensors[place:] or [value]
                said.append(f"{kind}{place}")  # of one that is there twice the calls are others
            elif value is None or type(value) in (bool, int, float, str, torch.dtype):
                said.append(repr(value))  # equal numbers are not the same: 0.0 and -0.0, 1 and True
            elif type(value) is torch.device and torch.empty(0, device=value).device in (like.device, _CPU):
                said.append("device")
            else:
                return None, ()
        if torch.get_default_dtype() != torch.float32:  # of bits and numbers alone
            said.append(repr(torch.get_default_dtype()))
        return tuple(said), tensors


# ---- where programs are computed
# ---- where tails are fused
def cuda_fused(layer, *inputs, tail=None, modules=(), before=(), behind=(), reads=(), site=None, **options):
    """Equal to ``torch.cat([*before, tail(layer(*inputs)), *behind], 1)``: in one kernel where this file has one.

    The tail calls those modules; where none is given, they are called in a row. `reads` is all that the tail of this
    `site` reads beside them. Where the file has no kernel for that, the tail runs behind the layer.
    """
    tail = _Tail(tail, modules, before, behind, reads, site)
    if _OPERATOR is not None and torch.compiler.is_compiling():  # compilers see PyTorch's operators behind the layer
        return tail.joined(tail(layer(*inputs, **options)))
    ours = isinstance(layer, functools.partial) and layer.func is _conv_transpose
    if isinstance(layer, _CudaForward):
        own = type(layer).forward is not _CudaForward.forward or type(layer).__call__ is not nn.Module.__call__
        ours = not own and "forward" not in vars(layer)
        ours = ours and not (_is_hooked(layer) or getattr(layer, "_left", False))
    ours = ours and not _watched()
    # ---- where tails are fused
    # ---- where programs are computed
    ours = ours and all(map(_is_plain, modules))
    # ---- where programs are computed
    # ---- where tails are fused
    if ours:
        return layer(*inputs, tail=tail, **options)
    return tail.joined(tail(layer(*inputs, **options)))


# ---- where tails are fused
# ---- where programs are computed
class _Fused(torch.autograd.Function):
    """A layer and what stands behind it, in one kernel, and so their gradients where that is known. Else the layer is
    computed again, and what stood behind it then, in PyTorch's operators."""

    @staticmethod
    def forward(ctx, launch, layer, options, tailed, x, weight, bias, *operands):
        y = _run(launch, x, weight, bias, *operands)
        ctx.save_for_backward(x, weight, bias, *operands, y if tailed.keeps else None)
        ctx.layer, ctx.options, ctx.tailed = layer, options, tailed
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        return y

    @staticmethod
    def backward(ctx, gradient):
        again, needed = torch.is_grad_enabled(), ctx.needs_input_grad[4:]  # again: of these gradients, too
        *saved, y = ctx.saved_tensors
        found = None if again else _known_gradients(ctx, gradient, needed, saved, y)
        if found is not None:
            return (None, None, None, None, *found)
        with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
            # Views, as one tensor may be several of these.
            given = [t if t is None else t.view_as(t) if again else t.detach() for t in saved]
            wanted = [t for t, need in zip(given, needed) if need]
            for t in () if again else wanted:
                t.requires_grad_()
            y = ctx.tailed.again(_apply(*given[:3], ctx.options, ctx.layer), *given[3:])
        found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=again, allow_unused=True))
        return (None, None, None, None, *(next(found) if need else None for need in needed))


_apply_fused = super(torch.autograd.Function, _Fused).apply


def _known_gradients(ctx, gradient, needed, saved, y):
    """Those of a layer and of what stands behind it, by kernels or from the result; None where they are not known."""
    x, weight, bias, *operands = saved
    tailed, of_layer, found, sums = ctx.tailed, gradient, [None] * len(operands), {}
    sources = [source if need else None for source, need in zip(tailed.sources, needed[3:])]
    if not (tailed.backward or tailed.slope) or "again" in sources:
        return None
    if any(needed[:3]) or any(source and source[0] == "layer" for source in sources):
        if tailed.slope:
            of_layer = tailed.slope(gradient, y)
        else:
            launch = _wanted((x, weight, bias), ctx.options, tailed.backward)
            if launch is None:
                return None
            of_layer = _run(launch, x, weight, bias, *(operands[place] for place in tailed.reads), gradient)
    for place, (name, source) in enumerate(zip(_PROGRAMS[tailed.program], sources)):
        if source:
            of, factor = source
            part = gradient if of == "given" else of_layer
            # ---- where programs are computed
            # ---- where tensors scale
            if of not in ("given", "layer"):
                part, factor = _sums(ctx, of, factor, saved, gradient, name), 1
                if part is None:
                    return None
            # ---- where tensors scale
            # ---- where programs are computed
            kept = {"ou": range(x.dim()), "sa": (0, 1), "ch": (1,), "sc": ()}[name[:2]]
            over = tuple(axis for axis in range(x.dim()) if axis not in kept)
            if over:
                # The bias and what is added for each channel have the same sum, each its own copy.
                sum_of = sums.get((of, over))
                part = sums[of, over] = part.sum(over) if sum_of is None else sum_of.clone()
            part = part.reshape(operands[place].shape)
            found[place] = (part if factor == 1 else part * factor).to(x.dtype)
    of_bias = sums.get(("layer", (0, *range(2, x.dim())))) if needed[2] else None
    needed = (*needed[:2], needed[2] and of_bias is None)
    of_inputs = _gradients(ctx, of_layer, (x, weight), needed)[:3] if any(needed) else (None, None, None)
    return (*of_inputs[:2], of_inputs[2] if of_bias is None else of_bias.clone(), *found)


# ---- where programs are computed
# ---- where tensors scale
# Of what is summed for a gradient, so many bytes are there at once.
_SUMMED_BYTES = 2**27


def _sums(ctx, program, reads, saved, gradient, name):
    """The gradient that a program gives of a tensor of that name, summed along rows and columns where it has one value
    for them, in slices of the batch."""
    x, weight, bias, *operands = saved
    whole, parts, names = name.startswith("ou"), [], _PROGRAMS[ctx.tailed.program]
    samples = len(x) if whole else max(1, _SUMMED_BYTES // (gradient[0].numel() * gradient.element_size()))
    for first in range(0, len(x), samples):
        own = slice(first, first + samples)
        of_part = [t[own] if names[place][:2] in ("ou", "sa") else t for place, t in enumerate(operands)]
        launch = _wanted((x[own], weight, bias), ctx.options, program)
        if launch is None:
            return None
        part = _run(launch, x[own], weight, bias, *(of_part[place] for place in reads), gradient[own])
        wide = torch.promote_types(part.dtype, torch.float32)
        parts.append(part if whole else part.sum(list(range(2, x.dim())), keepdim=True, dtype=wide))
    return part if whole else torch.cat(parts)


# ---- where tensors scale
# ---- where tails are fused
def _fused(tensors, options, tail, autocast):
    """The result with `tail` behind it, by one kernel; None where there is none."""
    around = [*tail.before, *tail.behind]
    layer = _wanted(tensors, options)
    if layer is None:
        return None
    program = None if tail.function or tail.modules else ""
    operands, beside, (x, weight, bias) = (), bool(around), tensors
    asked = (x.device, x.dtype, x.shape, weight.shape, None if bias is None else bias.shape, options)
    # ---- where tails are fused
    # ---- where programs are computed
    tailed, operands = _known_tail(tail, layer, x)
    if autocast is not None and tailed and tailed.wide:
        return None
    program = tailed and tailed.program
    # ---- where programs are computed
    # ---- where tails are fused
    gradients = _wants_gradients(*tensors, *around, *operands)
    if program is None or (gradients and not program):  # PyTorch concatenates, and differentiates that
        return None
    # ---- where tails are fused
    # ---- where programs are computed
    if gradients:
        launch = _launch_for(*asked, program)
        if type(launch) is not _Launch:
            return None
        return tail.joined(_apply_fused(launch, layer, options, tailed, *tensors, *operands))
    # What is read for each output lies as a result of its own would.
    beside = beside and not (program and any(name[:2] in ("ou", "sa") for name in _PROGRAMS[program]))
    # ---- where programs are computed
    # ---- where tails are fused
    if beside and tail.fits(layer.shape, x) and _last(x, weight) is None:
        parts = [*tail.before, None, *tail.behind]
        widths = [layer.shape[1] if part is None else part.shape[1] for part in parts]
        launch = _launch_for(*asked, program, sum(widths))
        if type(launch) is _Launch:
            whole = x.new_empty((layer.batch, sum(widths)) + layer.shape[2:])
            for part, own in zip(parts, whole.split(widths, 1)):
                if part is None:
                    _fill(own, launch, *tensors, *operands)
                else:
                    own.copy_(part)
            return whole
    launch = _launch_for(*asked, program)
    return tail.joined(_run(launch, *tensors, *operands)) if type(launch) is _Launch else None


# ---- where tails are fused
# ---- where programs are computed
def _known_tail(tail, layer, x):
    """What is recorded of a tail, and the tensors that its program reads; None where the file has no kernel for it."""
    if tail.function is None and not tail.modules:
        return _Tailed(""), ()
    said, tensors = tail.read(layer.shape, x)
    tailed = _TAILS.get(said)
    if tailed is None and said and layer.batch == 1:  # what all samples have and what each has is the same
        each = [f"channel{n}" for n, tensor in enumerate(tensors) if tensor.dim() == x.dim()]
        tailed = _TAILS.get(tuple(part.replace("channel", "sample") if part in each else part for part in said))
    if tailed is None or (tailed.types and x.dtype not in tailed.types):
        what = "something else than numbers and tensors of its type and device" if said is None else said[1:]
        words = f"no kernel in this file computes what stands behind {layer.kernel.name} and reads {what}: PyTorch does"
        warnings.warn(f"{words}; tconv optimize makes one for it", stacklevel=2)
        return None, ()
    return tailed, [tensors[place] for place in tailed.operands]


# ---- where programs are computed
# ---- the modules -----------------------------------------------------------------------------------------------------


class _Equal(type):
    """Of a class that is equal to torch's, where types are compared or are the keys of a table."""

    def __eq__(cls, other):
        return cls is other or (isinstance(other, type) and other is vars(cls).get("_stands_for"))

    def __hash__(cls):
        return type.__hash__(vars(cls).get("_stands_for", cls))


class _CudaForward:
    # ---- where layers are built elsewhere
    _left = False  # True on a module that is left to PyTorch

    def __prepare_scriptable__(self):
        """What TorchScript compiles is torch's forward: it does not know the functions of this file."""
        if type(self).forward is _CudaForward.forward:
            self.forward = super().forward
        return self

    # ---- where layers are built elsewhere
    def forward(self, input, output_size=None, tail=None):
        # ---- where layers are built elsewhere
        if self._left:
            return super().forward(input, output_size)
        # ---- where layers are built elsewhere
        dims, output_padding = len(self.kernel_size), self.output_padding
        if output_size is not None:
            sizes = (self.stride, self.padding, self.kernel_size, dims, self.dilation)
            output_padding = self._output_padding(input, output_size, *sizes)
        options = (self.stride, self.padding, output_padding, self.groups, self.dilation)
        return _conv_transpose(dims, input, self.weight, self.bias, *options, tail)


@functools.lru_cache(maxsize=None)
def _on_cuda(theirs):
    """torch's class with its forward on the kernels above.

    It has torch's name, in repr and where weights are initialised by class names; it is pickled by its own.
    """
    names = {"__module__": _CudaForward.__module__, "_stands_for": theirs}
    ours = _Equal(theirs.__name__, (_CudaForward, theirs), names)
    ours.__qualname__ = f"Cuda{theirs.__name__}"
    # ---- where layers are lazy
    if getattr(theirs, "cls_to_become", None):  # what a lazy module becomes
        ours.cls_to_become = _on_cuda(theirs.cls_to_become)
    # ---- where layers are lazy
    return ours


CudaConvTranspose1d = _on_cuda(nn.ConvTranspose1d)
CudaConvTranspose2d = _on_cuda(nn.ConvTranspose2d)
CudaConvTranspose3d = _on_cuda(nn.ConvTranspose3d)
# ---- where layers are lazy
CudaLazyConvTranspose1d = _on_cuda(nn.LazyConvTranspose1d)
CudaLazyConvTranspose2d = _on_cuda(nn.LazyConvTranspose2d)
CudaLazyConvTranspose3d = _on_cuda(nn.LazyConvTranspose3d)
# ---- where layers are lazy
# ---- where layers are built elsewhere
_THEIRS = tuple(getattr(nn, f"{lazy}ConvTranspose{dims}d") for lazy in ("Lazy", "") for dims in (1, 2, 3))


@functools.lru_cache(maxsize=None)
def _cuda_class(kind, parametrized):
    """The class that takes the place of `kind`, one of torch's or a subclass that was defined elsewhere."""
    if kind in _THEIRS:
        return _on_cuda(kind)
    if parametrized:  # this class was made by torch.nn.utils.parametrize, for one module, right above its own
        return type(kind.__name__, (_cuda_class(kind.__base__, False),), dict(vars(kind)))
    theirs = next(base for base in kind.__mro__ if base in _THEIRS)
    forward = type(theirs.__name__, (_CudaForward, theirs), {})
    equal = _Equal if type(kind) is type else type("_Equal", (_Equal, type(kind)), {})
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return equal(kind.__name__, (kind, forward), {**names, "_stands_for": kind, "__reduce_ex__": _reduced})


def _reduced(module, protocol):
    """How a module of such a class is pickled and copied: by its own class, which is found where it was defined."""
    kind = type(module).__bases__[0]
    make, values, *state = kind.__reduce_ex__(module, protocol)
    return (_made_again, (make, *(kind if value is type(module) else value for value in values)), *state)


def _made_again(make, *values):
    module = make(*values)
    if isinstance(module, _THEIRS) and not isinstance(module, _CudaForward):
        module.__class__ = _cuda_class(type(module), False)
    return module


def _swap(model):
    """Gives transposed convolutions that were built elsewhere the classes above; their parameters stay as they are."""
    for name, module in model.named_modules():
        if isinstance(module, _THEIRS) and not isinstance(module, _CudaForward):
            module.__class__ = _cuda_class(type(module), hasattr(module, "parametrizations"))
        if name in _LEFT and isinstance(module, _CudaForward):
            module._left = True


# ---- where layers are built elsewhere
# ---- where sequences are fused


class CudaSequential(nn.Sequential, metaclass=_Equal):
    """torch's class; modules behind a layer run in its kernel where this file has one for that."""

    _stands_for = nn.Sequential

    def forward(self, input):
        modules = list(self)
        while modules:
            layer, behind = modules.pop(0), []
            while isinstance(layer, _CudaForward) and modules and type(modules[0]) in _POINTWISE:
                behind.append(modules.pop(0))
            input = cuda_fused(layer, input, modules=behind) if behind else layer(input)
        return input


CudaSequential.__name__ = "Sequential"  # in repr
# ---- where sequences are fused


def _cuda_model(model):
    """Class decorator: after construction, the kernels that this machine's GPU runs are built."""
    construct = model.__init__

    @functools.wraps(construct)
    def __init__(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        # ---- where layers are built elsewhere
        _swap(self)
        # ---- where layers are built elsewhere
        # ---- where sequences are fused
        for module in self.modules():
            if type(module) is nn.Sequential and any(isinstance(child, _CudaForward) for child in module):
                module.__class__ = CudaSequential
        # ---- where sequences are fused
        if torch.cuda.is_available():
            gpu = _gpu(torch.device("cuda", torch.cuda.current_device()))
            kernels = [kernel for kernels in _RECORDED.values() for kernel in kernels if _runs_on(kernel, gpu)]
            for kernel in kernels:
                if _can_build(kernel, gpu):
                    _extension(kernel.family, gpu.capability)

    model.__init__ = __init__
    return model


# ---- the kernels from here on

# The CUDA kernels, as one text for each family.
_CUDA = {}

# What Python calls: a module of one function, in plain C, as a header of bindings alone takes seconds to compile.
_BINDING = r"""
#include <Python.h>
#include <cstdint>
#include <vector>

int64_t launch(const std::vector<int64_t>& numbers);

static PyObject* call(PyObject*, PyObject* const* given, Py_ssize_t count) {
  std::vector<int64_t> numbers(count);
  for (Py_ssize_t i = 0; i < count; ++i) numbers[i] = PyLong_AsLongLong(given[i]);
  return PyErr_Occurred() ? nullptr : PyLong_FromLongLong(launch(numbers));
}

static PyMethodDef functions[] = {{"launch", (PyCFunction)(void (*)())call, METH_FASTCALL, nullptr}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, functions};

#define TCONV_INIT(name) TCONV_INIT_OF(name)
#define TCONV_INIT_OF(name) PyInit_##name
PyMODINIT_FUNC TCONV_INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""
