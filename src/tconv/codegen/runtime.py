"""The part of a generated file that is the same in all of them. `generate` copies the text below the first mark: what
stands above the user's model, and behind the second mark the kernels, which stand below it.

`generate` fills in the empty places, those in parentheses with tconv's own definitions, and leaves out what stands
between marks where a file does not need it. All of it runs where generated files run: Python 3.8 and PyTorch 1.13 on.
"""
# mypy: ignore-errors
# ruff: noqa: B905, F821, RUF005, UP033
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

_FIELDS = "spatial_dims in_channels out_channels kernel stride padding dilation groups bias precision tail into"


class _Layer(namedtuple("_Layer", _FIELDS, defaults=("", 0))):
    """What a kernel is compiled for. Tuples are (depth, height, width); on unused axes 1, 1, 0, 1."""

    # (what a layer knows of itself)


# Everything that is compiled in, the tile as CUDA text; and what is asked before that: bytes of shared memory of a
# block, neighbouring inputs that are loaded at once, whether inputs are brought into another order. `stride` is that of
# the layer, or another one, which gives the same outputs along an axis of one input. Without a tile a kernel runs any
# layer.
_Kernel = namedtuple(
    "_Kernel",
    "family layer tile threads blocks shared_bytes columns_together prepares_inputs stride wide_index"
    " padding_from channels_to",
    defaults=(None, None, None, None, 0, 1, False, None, False, None, None),
)
# A layer at one size, (depth, height, width), and the kernel that runs it.
_Plan = namedtuple("_Plan", "layer batch input_size output_size kernel")
# What was planned for the layers of the model file, the best kernel first.
_RECORDED = {}
# ---- where programs are computed
# What is computed behind layers, in their kernels: what it reads and a functor that computes it; and the calls of
# PyTorch that say the same, as `_Result` notes them.
_PROGRAMS = {}
_CALLS = {}
# Classes of modules that are called there, with what their results depend on: numbers and such, and tensors.
_POINTWISE = {}
# ---- where programs are computed
# ---- where tails are fused
# Behind which layers programs stand, and of how many channels their results become a slice, 0 where of none.
_BEHIND = {}
# ---- where tails are fused
# ---- where functions are called
# Layers that are called as functions: they are built along with the modules.
_CALLED = ()
# ---- where functions are called
# ---- where layers are built elsewhere
# Modules left to PyTorch, by name.
_LEFT = ()
# ---- where layers are built elsewhere
# How layers in float32 are computed: "tf32" with operands rounded to TF32, "fp32" as they are, "match" as PyTorch does.
_FLOAT32 = "match"
_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
# Both types of 16 bits take the same tiles.
_TWINS = {"fp16": "bf16", "bf16": "fp16"}
# What a GPU has: bytes of shared memory for a block on tensor cores, 0 without such; whether it runs sm_90a. What is no
# GPU is taken for the one that was planned for.
_Gpu = namedtuple("_Gpu", "most_shared sm_90a multiprocessors")
_PLANNED = _Gpu(227 * 1024, True, 1)


# ---- planning --------------------------------------------------------------------------------------------------------


def _with_precision(layer, tiny_maps=False):
    """The float32 `layer` with the precision that it was recorded with, else the one that PyTorch runs on its kind."""
    if layer.precision != "fp32" or _FLOAT32 == "fp32" or (_FLOAT32 == "match" and layer in _RECORDED):
        return layer
    rounded = [layer._replace(precision=precision) for precision in ("tf32", "tf32_rna")]
    for recorded in rounded:
        if recorded in _RECORDED:
            return recorded
    few_channels = layer.spatial_dims < 3 and layer.out_channels <= 3
    if _FLOAT32 == "match" and (layer.groups > 1 or few_channels or tiny_maps):
        return layer
    return rounded[any(stride > 1 and dilation > 1 for stride, dilation in zip(layer.stride, layer.dilation))]


# ---- where tiles run other channels
def _adapts(kernel, recorded, layer, twin):
    """Whether the tile that was recorded for a layer runs one of other channels, groups, padding and bias."""
    others = {name: getattr(layer, name) for name in ("in_channels", "out_channels", "padding", "groups", "bias")}
    if kernel.padding_from is None or recorded in (layer, twin) or recorded._replace(**others) not in (layer, twin):
        return False
    few = kernel.channels_to is None or layer.in_channels // layer.groups <= kernel.channels_to
    return few and all(map(operator.ge, layer.padding, kernel.padding_from))


# ---- where tiles run other channels
def _kernels(layer, gpu):
    """What runs a layer there, best first: what was planned for it and the GPU has, then what runs any layer."""
    twin = layer._replace(precision=_TWINS.get(layer.precision, layer.precision))
    for kernel in _RECORDED.get(layer, ()) or _RECORDED.get(twin, ()):
        on_tensor_cores = kernel.shared_bytes <= gpu.most_shared and (gpu.sm_90a or kernel.family != "wgmma")
        if on_tensor_cores or kernel.family == "direct":
            yield kernel._replace(layer=layer._replace(stride=kernel.stride or layer.stride))
    # ---- where a kernel runs any dense layer
    if gpu.most_shared and _is_dense(layer):
        yield _Kernel("gemm", layer)
    # ---- where a kernel runs any dense layer
    # ---- where tiles run other channels
    for recorded, kernels in _RECORDED.items():
        for kernel in kernels:
            if _adapts(kernel, recorded, layer, twin):
                yield kernel._replace(layer=layer._replace(stride=kernel.stride or layer.stride))
    # ---- where tiles run other channels
    yield _Kernel("plain", layer)


def _has_sm_90a(capability):
    """Whether the GPU and the compiler know sm_90a, which is Hopper's alone."""
    return capability == (9, 0) and int((torch.version.cuda or "0").partition(".")[0]) >= 12


@functools.lru_cache(maxsize=None)
def _gpu(device):
    if device.type != "cuda":
        return _PLANNED
    capability = torch.cuda.get_device_capability(device)
    kilobytes = 227 if capability[0] in (9, 10) else 163 if capability in ((8, 0), (8, 7)) else 99
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return _Gpu(kilobytes * 1024 * (capability >= (8, 0)), _has_sm_90a(capability), multiprocessors)


def _three(values, fill):
    return (fill,) * (3 - len(values)) + tuple(values)


@functools.lru_cache(maxsize=None)
def _plan(
    dims, dtype, x_shape, weight_shape, bias_shape, stride, padding, output_padding, groups, dilation, gpu=_PLANNED
):
    """The launch for a batch of these shapes; None if there is no such transposed convolution."""
    options = (stride, padding, output_padding, dilation)
    if len(x_shape) != dims + 2 or len(weight_shape) != dims + 2 or any(len(values) != dims for values in options):
        return None
    if min(stride + dilation + x_shape[2:] + weight_shape + (groups,)) < 1 or min(padding + output_padding) < 0:
        return None
    out_channels = weight_shape[1] * groups
    if x_shape[1] != weight_shape[0] or weight_shape[0] % groups or bias_shape not in (None, (out_channels,)):
        return None
    if any(extra >= max(step, apart) for step, _, extra, apart in zip(*options)):
        return None
    axes = [_three(values, fill) for values, fill in zip((weight_shape[2:], stride, padding, dilation), (1, 1, 0, 1))]
    layer = _Layer(dims, x_shape[1], out_channels, *axes, groups, bias_shape is not None, _PRECISIONS[dtype])
    layer = _with_precision(layer, tiny_maps=x_shape[0] > 1 and max(x_shape[2:]) <= 4)
    input_size, spans = _three(x_shape[2:], 1), [apart * (taps - 1) + 1 for taps, apart in zip(axes[0], axes[3])]
    sizes = zip(input_size, axes[1], axes[2], spans, _three(output_padding, 0))
    output_size = tuple((size - 1) * step - 2 * less + span + extra for size, step, less, span, extra in sizes)
    if min(output_size) < 1:
        return None
    if max(max(size, span) + s + p for size, span, s, p in zip(output_size, spans, axes[1], axes[2])) >= 2**31:
        raise ValueError(f"{layer.describe()}: an axis of the output {output_size} is too long for one launch")
    return _Plan(layer, x_shape[0], input_size, output_size, _fitting(layer, input_size, gpu))


def _fitting(layer, input_size, gpu):
    """The best kernel that runs a layer at this size."""
    for kernel in _kernels(layer, gpu):
        strides = zip(kernel.layer.stride, layer.stride, input_size)
        same = all(compiled == stride or size == 1 for compiled, stride, size in strides)
        if same and input_size[2] % kernel.columns_together == 0:
            return kernel


# ---- building and launching ------------------------------------------------------------------------------------------


# (the configuration of a kernel as CUDA text)


def _cuda_source(kernel):
    """The CUDA text that defines `kernel`, of its family alone, and the host function that launches it."""
    name, prepared = "tconv_kernel", kernel.family not in ("direct", "plain")
    endings = ["", *["_weights"] * prepared, *["_inputs"] * kernel.prepares_inputs]
    functions = [_function(kernel, name, ending) for ending in endings]
    # ---- where programs are computed
    if kernel.layer.tail:
        operands, functor = _PROGRAMS[kernel.layer.tail]
        behind = _reads_and_program(operands, name)
        functions[0] = functor.replace("PROGRAM", f"{name}_program") + _function(kernel, name, "", *behind)
    # ---- where programs are computed
    host = _HOST.replace("FAMILY", kernel.family)
    for end in ("_weights", "_inputs"):
        host = host.replace(f"KERNEL{end}", f"{name}{end}" if end in endings else "nullptr")
    texts = [_PRIMITIVES, _KERNELS[kernel.family], _configuration(kernel, name), *functions]
    return "\n".join(texts) + host.replace("KERNEL", name)


# (device, kernel) -> its extension's `launch`, and bytes of its weights in the order in which it loads them, 0 where it
# takes them as they are
_LAUNCHERS = {}


def _load_options(kernel, capability):
    """The arguments of load_inline that build `kernel` for one compute capability."""
    from torch.utils.cpp_extension import load_inline

    cuda = _cuda_source(kernel)
    version = "90a" if _has_sm_90a(capability) else "".join(map(str, capability))
    flags = ["-O3", f"-gencode=arch=compute_{version},code=sm_{version}"]
    flags += ["-DTCONV_OVERLAPS"] * (capability >= (9, 0))
    options = {
        "name": "tconv_" + hashlib.sha256("\n".join([_BINDING, cuda] + flags).encode()).hexdigest()[:20],
        "cpp_sources": [_BINDING],
        "cuda_sources": [cuda],
        "extra_cuda_cflags": flags,
    }
    if "no_implicit_headers" in inspect.signature(load_inline).parameters:  # seconds instead of a minute
        options["no_implicit_headers"] = True
    return options


def _build(kernels, device):
    """Compiles the kernels that `device` does not have yet."""
    missing = [kernel for kernel in dict.fromkeys(kernels) if (device, kernel) not in _LAUNCHERS]
    if not missing:
        return
    if device.type != "cuda":
        what = "this model runs its transposed convolutions on a CUDA GPU: move it and its input there with .cuda()"
        raise RuntimeError(f"{what}; got tensors on {str(device)!r}")
    capability = torch.cuda.get_device_capability(device)
    if capability < (7, 5):
        what = "this model needs a GPU of compute capability 7.5 or newer"
        raise RuntimeError(f"{what}; {device} has {'.'.join(map(str, capability))}")
    from torch.utils.cpp_extension import load_inline

    for kernel in missing:
        if kernel.family == "plain":
            what = f"no kernel in this file was made for {kernel.layer.describe()} on {device}: the plain one runs it"
            warnings.warn(f"{what}, maybe slower than PyTorch; tconv optimize makes one for it", stacklevel=2)
        launch = load_inline(**_load_options(kernel, capability)).launch
        _LAUNCHERS[device, kernel] = (launch, launch(*[0] * 7, *[1] * 7))


def _launch(plan, x, weight, bias, y, *operands):
    """Runs `plan` on contiguous tensors of one device, on the current stream."""
    layer, batch, input_size, output_size, kernel = plan
    device = x.device
    if (device, kernel) not in _LAUNCHERS:
        _build([kernel], device)
    if torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            return _launch(plan, x, weight, bias, y, *operands)
    launch, weight_bytes = _LAUNCHERS[device, kernel]
    prepared = None
    # ---- where weights are prepared
    if weight_bytes:
        # Inputs in another order lie behind the weights.
        bytes_of_inputs = x.numel() * x.element_size() if kernel.prepares_inputs else 0
        prepared = torch.empty(weight_bytes + bytes_of_inputs, dtype=torch.uint8, device=device)
    # ---- where weights are prepared
    pointers = [0 if t is None else t.data_ptr() for t in (x, weight, bias, y, prepared)]
    stream = torch._C._cuda_getCurrentRawStream(device.index)  # torch.cuda.current_stream() takes as long as a launch
    sizes = [batch, *input_size, *output_size]
    # ---- where programs are computed
    sizes += [t.data_ptr() for t in operands]
    # ---- where programs are computed
    error = launch(stream, _gpu(device).multiprocessors, *pointers, *sizes)
    if error == -1:  # the sizes want offsets of 64 bits
        _launch(plan._replace(kernel=kernel._replace(wide_index=True)), x, weight, bias, y, *operands)
    elif error:
        raise RuntimeError(f"CUDA error {error} at the launch of {layer.describe()} on {tuple(x.shape)}")


# ---- the operator ----------------------------------------------------------------------------------------------------


def _run(plan, x, weight, bias, *operands):
    y = torch.empty(_shape(plan), dtype=x.dtype, device=x.device)
    _fill(y, plan, x, weight, bias, *operands)
    return _as_theirs(y, x, weight)


def _shape(plan):
    return (plan.batch, plan.layer.out_channels) + plan.output_size[3 - plan.layer.spatial_dims :]


def _fill(y, plan, x, weight, bias, *operands):
    if y.numel():
        inputs, weights = x.contiguous(), weight.contiguous()
        # ---- where weights are prepared
        if plan.kernel.family not in ("direct", "plain"):  # bulk copies begin at multiples of 16 bytes
            inputs, weights = (t.clone() if t.data_ptr() % 16 else t for t in (inputs, weights))
        # ---- where weights are prepared
        bias, *operands = (None if t is None else t.contiguous() for t in (bias, *operands))
        # ---- where programs are computed
        operands = [
            t.clone() if t.data_ptr() % 16 else t for t in operands
        ]  # outputs that lie together are read at once
        # ---- where programs are computed
        _launch(plan, inputs, weights, bias, y, *operands)


def _as_theirs(y, x, weight):
    """The result in PyTorch's memory format: channels_last in, channels_last out."""
    last = _last(x, weight)
    return y if last is None else y.contiguous(memory_format=last)


def _last(x, weight):
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    given = (t for t in (x, weight) if last and not t.is_contiguous())
    return last if any(t.is_contiguous(memory_format=last) for t in given) else None


def _save(ctx, inputs, output):
    x, weight, bias, *ctx.options = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_sizes = None if bias is None else list(bias.shape)


def _gradients(ctx, gradient):
    """Of input, weight and bias, and of the five options."""
    stride, padding, output_padding, groups, dilation = ctx.options
    options = (stride, padding, dilation, True, output_padding, groups, list(ctx.needs_input_grad[:3]))
    gradients = torch.ops.aten.convolution_backward(gradient, *ctx.saved_tensors, ctx.bias_sizes, *options)
    return (*gradients, None, None, None, None, None)


class _ConvTranspose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs_and_plan):
        *inputs, plan = inputs_and_plan
        _save(ctx, inputs, None)
        return _run(plan, *inputs[:3])

    @staticmethod
    def backward(ctx, gradient):
        return (*_gradients(ctx, gradient), None)


def _pytorch(x, weight, bias, *options):
    """PyTorch's own operator."""
    return getattr(torch, f"conv_transpose{len(options[0])}d")(x, weight, bias, *options)


def _operator(x, weight, bias, stride, padding, output_padding, groups, dilation):
    options = (tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation))
    plan = _planned((x, weight, bias), options)
    return _as_theirs(_pytorch(x, weight, bias, *options), x, weight) if plan is None else _run(plan, x, weight, bias)


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


# What torch.compile sees, as one node; named by the contents of this file.
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
    stride, padding, output_padding, dilation = (_tuple(v, dims) for v in (stride, padding, output_padding, dilation))
    options = (stride, padding, output_padding, groups, dilation)
    autocast = _autocast_dtype()
    if autocast is not None:
        input, weight, bias = (_autocast(tensor, autocast) for tensor in (input, weight, bias))
    tensors = (input.unsqueeze(0) if input.dim() == dims + 1 else input, weight, bias)
    # ---- where tails are fused
    if tail is not None:
        y = _fused(tensors, options, tail) if tensors[0] is input and autocast is None else None
        if y is not None:
            return y
        return tail.joined(tail(_conv_transpose(dims, input, weight, bias, *options)))
    # ---- where tails are fused
    if _OPERATOR is not None and torch.compiler.is_compiling():
        y = _OPERATOR(*tensors, *options)
        return y if tensors[0] is input else y.squeeze(0)
    plan = _planned(tensors, options)
    if plan is None:
        return _pytorch(input, weight, bias, *options)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        y = _ConvTranspose.apply(*tensors, *options, plan)
    else:
        y = _run(plan, *tensors)
    return y if tensors[0] is input else y.squeeze(0)


def _planned(tensors, options):
    """The launch for these tensors; None where PyTorch's own operator is to run: it gives its errors, too.

    It does for what is no transposed convolution with a result, for types without a kernel, and where PyTorch must see
    what is computed.
    """
    x, weight, bias = tensors
    given = [t for t in tensors if t is not None]
    if any(t.dtype != x.dtype or t.device != x.device for t in given) or x.dtype not in _PRECISIONS or _seen_through():
        return None
    shapes = (tuple(x.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape))
    return _plan(len(options[0]), x.dtype, *shapes, *options, _gpu(x.device))


# Missing in some versions of PyTorch.
_transforms = getattr(torch._C, "_are_functorch_transforms_active", bool)


def _seen_through():
    """Whether torch.func, forward-mode differentiation or a trace of torch.jit looks at what is computed."""
    return _transforms() or forward_ad._current_level >= 0 or torch._C._get_tracing_state() is not None


# ---- where functions are called
cuda_conv_transpose1d = functools.partial(_conv_transpose, 1)
cuda_conv_transpose2d = functools.partial(_conv_transpose, 2)
cuda_conv_transpose3d = functools.partial(_conv_transpose, 3)


# ---- where functions are called
# ---- where tails are fused
# ---- what stands behind a layer --------------------------------------------------------------------------------------


# ---- where tails are fused
# ---- where programs are computed
_COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")


class _Notes(torch.overrides.TorchFunctionMode):
    """What the lines behind a layer call, as text: ``t0 = add(y, channel0); t1 = min(t0, tensor(0.5)); t1``.

    Tensors are called by what they have one value for: each output, each sample and channel, each channel, or all.
    Where ``torch.tensor`` is given a number, none is made, as that would wait for the GPU: the number is in the text.
    """

    def __init__(self, shape, like):
        self.shape, self.dtype, self.device = shape, like.dtype, like.device
        self.calls, self.operands = [], []

    def of(self, tail):
        with self:
            last = tail(_Result(self, "y", typed=True))
        typed = not isinstance(last, _Result) or last._typed
        return "; ".join(self.calls + [self.said(last) if typed else "?"])

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        of_number = function is torch.tensor and len(args) == 1 and type(args[0]) in (bool, int, float)
        if of_number and kwargs.keys() <= {"dtype", "device"} and self._reaches(kwargs.get("device")):
            return self._number(args[0], kwargs.get("dtype"))
        return function(*args, **kwargs)

    def _reaches(self, device):
        """Whether a tensor without axes that is made there can stand beside the result."""
        return device == self.device or torch.empty(0, device=device).device in (self.device, torch.device("cpu"))

    def _number(self, value, dtype):
        """Stands for the tensor of a number, as PyTorch takes it beside the result: rounded to both types."""
        dtype = dtype or {bool: torch.bool, int: torch.int64}.get(type(value), torch.get_default_dtype())
        if not dtype == self.dtype == torch.float32:  # to which the kernel rounds by itself
            value = torch.tensor(value, dtype=dtype, device="cpu").to(self.dtype).item()
        return _Result(self, f"tensor({value!r})", cast=dtype != self.dtype)

    def call(self, function, *args, **kwargs):
        name, result = function.strip("_"), f"t{len(self.calls)}"
        in_place = kwargs.get("inplace", False) or (function.endswith("_") and not function.startswith("__"))
        if function.startswith("__i"):
            name, in_place = name[1:], True
        by_channel = name in ("batch_norm", "prelu")  # their tensors have one value for each
        said = [self.said(value, by_channel) for value in args]
        said += [f"{key}={self.said(value, by_channel)}" for key, value in kwargs.items()]
        values = (*args, *kwargs.values())
        typed = any(map(self._is_typed, values))
        if not typed and name not in _COMPARISONS and any(map(self._is_float, values)):
            # Of bits and such numbers, the type that is set for these.
            typed = self.dtype == torch.float32 == torch.get_default_dtype() and not any(map(self._is_cast, values))
            said = said if typed else ["?"]
        self.calls.append(f"{result} = {name}({', '.join(said)})")
        if in_place and isinstance(args[0], _Result):
            args[0]._name = result
            return args[0]
        return _Result(self, result, typed=typed and name not in _COMPARISONS)

    def _is_typed(self, value):
        return value._typed if isinstance(value, _Result) else getattr(value, "dtype", None) == self.dtype

    def _is_cast(self, value):
        return isinstance(value, _Result) and value._cast

    def _is_float(self, value):
        return type(value) is float or (isinstance(value, _Result) and value._name.startswith("tensor("))

    def said(self, value, by_channel=False):
        if isinstance(value, _Result):
            return value._name
        if not isinstance(value, torch.Tensor):
            return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "?"
        shape = tuple(value.shape)
        if by_channel:
            kind = {1: "scalar", self.shape[1]: "channel"}.get(value.numel())
        else:
            kind = _kind((1,) * (len(self.shape) - len(shape)) + shape, self.shape)
        if kind is None or value.dtype != self.dtype or value.device != self.device:
            return "?"
        number = next((n for n, operand in enumerate(self.operands) if operand is value), len(self.operands))
        self.operands[number:] = self.operands[number:] or [value]
        return f"{kind}{number}"


def _kind(shape, of):
    """What a tensor of that shape has one value for, beside a result of the shape `of`; None if of nothing."""
    if shape == of:
        return "output"
    if len(shape) > len(of):
        return None
    if set(shape) <= {1}:
        return "scalar"
    if shape[1] != of[1] or not set(shape[2:]) <= {1} or shape[0] not in (1, of[0]):
        return None
    return "channel" if shape[0] == 1 else "sample"


class _Result:
    """Stands for a layer's result in the lines behind it, for what they make of that, and for tensors of a number.

    Beside what is `typed`, of the result's type and with axes, a number of another type is `cast` to that. Of a
    comparison and numbers alone the numbers' types decide: what they give is not the result's type, or float32.
    """

    def __init__(self, notes, name, typed=False, cast=False):
        self._notes, self._name, self._typed, self._cast = notes, name, typed, cast

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        noted = next(value for value in (*args, *kwargs.values()) if isinstance(value, _Result))
        return noted._notes.call(function.__name__, *args, **kwargs)

    def __getattr__(self, name):
        if callable(getattr(torch.Tensor, name, None)):
            return functools.partial(self._call, name)
        return getattr(self._notes, name)  # shape, dtype, device

    def _call(self, function, *args, **kwargs):
        return self._notes.call(function, self, *args, **kwargs)

    def dim(self):
        return len(self._notes.shape)


_OPERATORS = "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv pow neg gt ge lt le eq ne"
for _name in _OPERATORS.split():
    setattr(_Result, f"__{_name}__", functools.partialmethod(_Result._call, f"__{_name}__"))


def _is_plain(module):
    """Whether calling a module on a `_Result`, and once more, changes nothing."""
    hooked = _is_hooked(module) or module._forward_pre_hooks or "forward" in vars(module)
    counts = module.training and hasattr(module, "num_batches_tracked")
    return type(module) in _POINTWISE and not (hooked or counts)


# What modules in a row were found to compute, behind which layers: the program.
_KNOWN = {}


# ---- where programs are computed
# ---- where tails are fused
# What sees a module's result, the gradient of that, or all arguments of a call; hooks that see its inputs alone may.
_HOOKS = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_pre_hooks_with_kwargs")


def _is_hooked(module):
    return any(getattr(module, name, None) for name in (*_HOOKS, "_compiled_call_impl"))


def _watched():
    """Whether somebody is told of every module's calls, or of their gradients."""
    names = ("forward", "forward_pre", "backward", "backward_pre")
    return any(getattr(nn.modules.module, f"_global_{name}_hooks", None) for name in names)


class _Tail:
    """What stands behind a layer: a function of its result, and tensors beside that result in a concatenation."""

    def __init__(self, function, modules, before, behind):
        self.function, self.modules, self.before, self.behind = function, modules, before, behind

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
    def read(self, like):
        """Of modules in a row, what says what they compute of a layer's result of such elements; and their tensors."""
        said, tensors = [like.dtype, like.device], []
        for module in self.modules:
            numbers, names = _POINTWISE[type(module)]
            said += [type(module), *(getattr(module, name) for name in numbers)]
            tensors += [getattr(module, name) for name in names]
        kinds = [None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        return (*said, *kinds), [tensor for tensor in tensors if tensor is not None]


# ---- where programs are computed
# ---- where tails are fused
def cuda_fused(layer, *inputs, tail=None, modules=(), before=(), behind=(), **options):
    """Equal to ``torch.cat([*before, tail(layer(*inputs)), *behind], 1)``: in one kernel where this file has one.

    The tail calls those modules; where none is given, they are called in a row. Where the file has no kernel for that,
    and where gradients are asked for, it runs behind the layer.
    """
    tail = _Tail(tail, modules, before, behind)
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


@functools.lru_cache(maxsize=None)
def _with_program(plan, program, into=0):
    layer = plan.kernel.layer._replace(tail=program, into=into)
    return plan._replace(kernel=plan.kernel._replace(layer=layer))


def _wants_gradients(tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _fused(tensors, options, tail):
    """The result with `tail` behind it, by one kernel; None where there is none, and for gradients."""
    around = [*tail.before, *tail.behind]
    if _wants_gradients([*tensors, *around]):
        return None
    plan = _planned(tensors, options)
    if plan is None:
        return None
    program = None if tail.function or tail.modules else ""
    operands, beside = (), bool(around)
    # ---- where tails are fused
    # ---- where programs are computed
    program, operands = _program_of(tail, plan, tensors[0])
    # ---- where programs are computed
    # ---- where tails are fused
    if program is None or _wants_gradients(operands):
        return None
    # ---- where tails are fused
    # ---- where programs are computed
    # What is read for each output lies as a result of its own would.
    beside = beside and not (program and any(name[:2] in ("ou", "sa") for name in _PROGRAMS[program][0]))
    # ---- where programs are computed
    # ---- where tails are fused
    plan = _with_program(plan, program)
    if not (beside and tail.fits(_shape(plan), tensors[0]) and _last(*tensors[:2]) is None):
        return tail.joined(_run(plan, *tensors, *operands))
    parts = [*tail.before, None, *tail.behind]
    widths = [plan.layer.out_channels if part is None else part.shape[1] for part in parts]
    whole = tensors[0].new_empty((plan.batch, sum(widths)) + _shape(plan)[2:])
    for part, own in zip(parts, whole.split(widths, 1)):
        if part is None:
            _fill(own, _with_program(plan, program, sum(widths)), *tensors, *operands)
        else:
            own.copy_(part)
    return whole


# ---- where tails are fused
# ---- where programs are computed
def _program_of(tail, plan, x):
    """The program of a tail, and what it reads; None where this file has none."""
    said = None
    if tail.function is None:
        read, operands = tail.read(x)
        said = (plan.layer.spatial_dims, plan.layer.out_channels, *read)
        if said in _KNOWN or not tail.modules:
            return _KNOWN.get(said, ""), operands
    notes = _Notes(_shape(plan), x)
    calls = notes.of(tail)
    if calls not in _CALLS and plan.batch == 1:  # what all samples have and what each has is the same
        for number, operand in enumerate(notes.operands):
            each = "sample" if operand.dim() == x.dim() else "channel"
            calls = calls.replace(f"channel{number}", f"{each}{number}")
    program = _CALLS.get(calls)
    if program is None:
        what = f"no kernel in this file computes {calls!r} behind {plan.layer.describe()}: PyTorch does"
        warnings.warn(f"{what}; tconv optimize makes one for it", stacklevel=2)
    elif said and list(map(id, notes.operands)) == list(map(id, operands)):
        _KNOWN[said] = program
    return program, notes.operands


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
        dims = len(self.kernel_size)
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


def _module_kernels(model, gpu=_PLANNED):
    for module in model.modules():
        dtype = getattr(next(module.parameters(), None), "dtype", None)
        # A lazy module has no channels before its first input.
        ours = isinstance(module, _CudaForward) and dtype in _PRECISIONS and module.in_channels > 0
        # ---- where layers are built elsewhere
        ours = ours and not module._left
        # ---- where layers are built elsewhere
        if ours:
            axes = zip((module.kernel_size, module.stride, module.padding, module.dilation), (1, 1, 0, 1))
            channels = (len(module.kernel_size), module.in_channels, module.out_channels)
            last = (module.groups, module.bias is not None, _PRECISIONS[dtype])
            layer = _Layer(*channels, *(_three(*axis) for axis in axes), *last)
            layer = _with_precision(layer)
            kernel = next(_kernels(layer, gpu))
            # ---- where tails are fused
            if layer in _BEHIND:
                for program, into in _BEHIND[layer]:
                    yield kernel._replace(layer=kernel.layer._replace(tail=program, into=into))
                continue
            # ---- where tails are fused
            yield kernel


def _cuda_model(model):
    """Class decorator: after construction, all of the model's kernels are there."""
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
            device = torch.device("cuda", torch.cuda.current_device())
            kernels = list(_module_kernels(self, _gpu(device)))
            # ---- where functions are called
            kernels += [next(_kernels(layer, _gpu(device))) for layer in _CALLED]
            # ---- where functions are called
            _build(kernels, device)

    model.__init__ = __init__
    return model


# ---- the kernels from here on

# The CUDA kernels: what their families share, and of each family templates over the layer and its tile.
_PRIMITIVES = r""
_KERNELS = {}

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

# The host's side of a kernel, left out where only device code is compiled.
_HOST = r"""
#if !defined(__CUDACC_RTC__) && !defined(TCONV_EMULATOR)
#include <cstdint>
#include <cuda_runtime.h>
#include <vector>

// Enqueues a kernel, and returns a cudaError_t. One that `overlaps` begins while the kernel before it runs, and waits
// for it itself.
static int enqueue(void* kernel, void** arguments, int64_t grid, int block, int shared_bytes, int64_t stream,
                   bool overlaps) {
  if (grid >= int64_t(1) << 31) return cudaErrorInvalidConfiguration;
  if (shared_bytes > 48 * 1024) {
    const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  const auto blocks = static_cast<unsigned>(grid);
  const auto on = reinterpret_cast<cudaStream_t>(stream);
#if defined(TCONV_OVERLAPS) && CUDART_VERSION >= 12030
  int driver = 0;
  if (overlaps && cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030) {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks, config.blockDim = block, config.dynamicSmemBytes = shared_bytes;
    config.stream = on, config.attrs = attribute, config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, kernel, arguments);
  }
#endif
  return cudaLaunchKernel(kernel, blocks, block, arguments, shared_bytes, on);
}

// Enqueues the kernel, behind those that bring its weights and its inputs into another order, and returns a
// cudaError_t, or -1 where offsets of the layer's Index do not reach. Where y is 0 it returns how many bytes the
// weights take in their order.
//
// The numbers are the stream, multiprocessors, addresses of x, weight, bias, y and of memory for that order, batch,
// depth, height and width of the input and of the output, and addresses of what the program behind the layer reads.
int64_t launch(const std::vector<int64_t>& numbers) {
  const auto size = [&](int i) { return static_cast<int>(numbers[i]); };
  tconv::Sizes sizes{size(1), size(7), {size(8), size(9), size(10)}, {size(11), size(12), size(13)}};
  int64_t stream = numbers[0], x = numbers[2], weight = numbers[3], bias = numbers[4], y = numbers[5];
  int64_t prepared = numbers[6];
  int (&input)[3] = sizes.input, (&output)[3] = sizes.output;
  const tconv::Launch of_kernel = tconv::FAMILY_launch<KERNEL_layer, KERNEL_tile>(sizes);
  if (y == 0) return of_kernel.weight_bytes;
  if (of_kernel.wide_index && sizeof(KERNEL_layer::Index) < 8) return -1;
  if (of_kernel.counted >= tconv::index_limit) return cudaErrorInvalidConfiguration;
  bool overlaps = false;
// ---- where inputs are prepared
  if (of_kernel.input_blocks > 0) {
    int64_t ordered = prepared + of_kernel.weight_bytes;
    void* of_inputs[] = {&x, &ordered, &sizes.batch, input, input + 1, input + 2};
    const int error = enqueue((void*)KERNEL_inputs, of_inputs, of_kernel.input_blocks, tconv::preparing_threads,
                              of_kernel.input_shared_bytes, stream, overlaps);
    if (error != cudaSuccess) return error;
    x = ordered, overlaps = true;
  }
// ---- where inputs are prepared
// ---- where weights are prepared
  if (of_kernel.weight_blocks > 0) {
    void* of_weights[] = {&weight, &prepared};
    const int error = enqueue((void*)KERNEL_weights, of_weights, of_kernel.weight_blocks, tconv::preparing_threads, 0,
                              stream, overlaps);
    if (error != cudaSuccess) return error;
    weight = prepared, overlaps = true;
  }
// ---- where weights are prepared
  std::vector<void*> arguments = {&x, &weight, &bias, &y, &sizes.batch, input, input + 1, input + 2,
                                  output, output + 1, output + 2};
// ---- where programs are computed
  std::vector<int64_t> operands(numbers.begin() + 14, numbers.end());
  for (int64_t& operand : operands) arguments.push_back(&operand);
// ---- where programs are computed
  return enqueue((void*)KERNEL, arguments.data(), of_kernel.blocks, of_kernel.threads, of_kernel.shared_bytes, stream,
                 overlaps);
}
#endif
"""
