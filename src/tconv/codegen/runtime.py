"""The part of a generated file that is the same in all of them. `generate` copies the text below the first mark: what
stands above the user's model, and behind the second mark the kernels, which stand below it.

`generate` fills in the empty places, those in parentheses with tconv's own definitions: of `Axis` and `Layer`, and of
the CUDA text of a configuration (`_instance`). All of it runs where generated files run: Python 3.8 and PyTorch 1.13
on.
"""
# mypy: ignore-errors
# ruff: noqa: B905, F821, RUF005, UP033
# ---- copied from here on

import functools
import hashlib
import inspect
import math
import operator
import warnings
from collections import namedtuple

import torch
from torch import nn


class _Axis(namedtuple("_Axis", "kernel stride padding dilation")):
    """One spatial axis of a layer."""

    # (what an axis knows of itself)


_FIELDS = "spatial_dims in_channels out_channels kernel stride padding dilation groups bias precision"


class _Layer(namedtuple("_Layer", _FIELDS)):
    """What a kernel is compiled for. Tuples are (depth, height, width); on unused axes 1, 1, 0, 1."""

    @property
    def axes(self):
        return tuple(_Axis(*values) for values in zip(self.kernel, self.stride, self.padding, self.dilation))

    # (what a layer knows of itself)


# Everything that is compiled in, the tile as CUDA text. What is asked before that: bytes of shared memory of a block,
# and of the weights in the order in which it loads them, 0 where it takes them as they are; neighbouring inputs that
# are loaded at once; whether inputs are brought into another order, too. A kernel without a tile runs any layer.
_Kernel = namedtuple(
    "_Kernel",
    "family layer tile threads blocks shared_bytes weight_bytes columns_together prepares_inputs wide_index",
    defaults=(None, None, None, 0, 0, 1, False, False),
)
# A layer at one size; sizes are (depth, height, width).
_Problem = namedtuple("_Problem", "layer batch input_size output_size")
_Plan = namedtuple("_Plan", "problem kernel")
# Layers that are called as functions: they are built along with the modules.
_CALLED = ()
# Modules left to PyTorch, by name.
_LEFT = ()
# How layers in float32 are computed: "tf32" with operands rounded to TF32, "fp32" as they are, "match" as PyTorch does.
_FLOAT32 = "match"

_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


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
    return rounded[any(axis.stride > 1 and axis.dilation > 1 for axis in layer.axes)]


def _three(values, fill):
    return (fill,) * (3 - len(values)) + tuple(values)


# What was planned for the layers of the model file, best first. A kernel may be compiled for another stride than its
# layer has, which gives the same outputs along an axis of one input. Any other layer takes `plain`.
_RECORDED = {}
# Both types of 16 bits take the same kernels.
_TWINS = {"fp16": "bf16", "bf16": "fp16"}

# What a GPU has: bytes of shared memory for a block on tensor cores, 0 without such; whether it runs sm_90a.
_Gpu = namedtuple("_Gpu", "most_shared sm_90a multiprocessors")
# What is no GPU is taken for the one that was planned for.
_PLANNED = _Gpu(227 * 1024, True, 1)


def _kernels(layer, gpu):
    """What runs a layer there, best first: what was planned for it and the GPU has, then a kernel for every GPU."""
    twin = layer._replace(precision=_TWINS.get(layer.precision, layer.precision))
    for kernel in _RECORDED.get(layer, ()) or _RECORDED.get(twin, ()):
        kernel = kernel._replace(layer=kernel.layer._replace(precision=layer.precision))
        on_tensor_cores = kernel.shared_bytes <= gpu.most_shared and (gpu.sm_90a or kernel.family != "wgmma")
        if on_tensor_cores or kernel.family == "direct":
            yield kernel
    yield _Kernel("plain", layer)


def _kernel(layer, gpu=_PLANNED):
    """The best kernel of a layer, which is built before any input is there."""
    return next(_kernels(layer, gpu))


def _fits(kernel, problem):
    """Whether a kernel of a layer runs it at these sizes."""
    strides = zip(kernel.layer.stride, problem.layer.stride, problem.input_size)
    same = all(compiled == stride or size == 1 for compiled, stride, size in strides)
    return same and problem.input_size[2] % kernel.columns_together == 0


def _has_sm_90a(capability):
    """Whether the GPU and the compiler know sm_90a, which is Hopper's alone."""
    return capability == (9, 0) and int((torch.version.cuda or "0").partition(".")[0]) >= 12


@functools.lru_cache(maxsize=None)
def _gpu(device):
    if device.type != "cuda":
        return _PLANNED
    capability = torch.cuda.get_device_capability(device)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    if capability < (8, 0):
        return _Gpu(0, False, multiprocessors)
    kilobytes = 227 if capability[0] in (9, 10) else 163 if capability in ((8, 0), (8, 7)) else 99
    return _Gpu(kilobytes * 1024, _has_sm_90a(capability), multiprocessors)


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
    if x_shape[1] != weight_shape[0] or weight_shape[0] % groups:
        return None
    out_channels = weight_shape[1] * groups
    if bias_shape not in (None, (out_channels,)) or any(o >= max(s, d) for s, _, o, d in zip(*options)):
        return None
    axes = (_three(weight_shape[2:], 1), _three(stride, 1), _three(padding, 0), _three(dilation, 1))
    layer = _Layer(dims, x_shape[1], out_channels, *axes, groups, bias_shape is not None, _PRECISIONS[dtype])
    sizes = zip(layer.axes, _three(x_shape[2:], 1), _three(output_padding, 0))
    output = tuple(axis.output_size(size, extra) for axis, size, extra in sizes)
    if min(output) < 1:
        return None
    layer = _with_precision(layer, tiny_maps=x_shape[0] > 1 and max(x_shape[2:]) <= 4)
    return _sized(_Problem(layer, x_shape[0], _three(x_shape[2:], 1), output), gpu)


def _sized(problem, gpu):
    """The launch of a layer at one size."""
    layer, sizes = problem.layer, problem.output_size
    spans = (max(size, a.dilation * (a.kernel - 1)) + a.stride + a.padding for a, size in zip(layer.axes, sizes))
    if max(spans) >= 2**31:
        raise ValueError(f"{layer.describe()}: an axis of the output {sizes} is too long for one launch")
    return _Plan(problem, next(kernel for kernel in _kernels(layer, gpu) if _fits(kernel, problem)))


# ---- building and launching ------------------------------------------------------------------------------------------


# (the configuration of a kernel as CUDA text)


def _functions(kernel, name):
    """The CUDA text of a kernel's functions."""
    weights = _weights_instance(kernel, name) if kernel.weight_bytes else ""
    return _instance(kernel, name) + weights + (_inputs_instance(kernel, name) if kernel.prepares_inputs else "")


def _start(kernel, name):
    """How the host's side launches a kernel."""
    weights, inputs = (
        f"{name}_{which}" if has else "nullptr"
        for which, has in (("weights", kernel.weight_bytes), ("inputs", kernel.prepares_inputs))
    )
    launch = f"tconv::{kernel.family}_launch<{name}_layer, {name}_tile>(sizes)"
    return f"start<{name}_layer>({launch}, {name}, {weights}, {inputs}, a)"


def _cuda_source(kernels):
    """One CUDA text that defines `kernels`, of their families alone, and the host function that launches by number."""
    families = {kernel.family for kernel in kernels}
    headers = [_PRIMITIVES] + [text for family, text in _KERNELS.items() if family in families]
    named = [(kernel, f"tconv_kernel_{number}") for number, kernel in enumerate(kernels)]
    cases = "".join(f"    case {n}: return {_start(*each)};\n" for n, each in enumerate(named))
    instances = "\n".join(_functions(*each) for each in named)
    return "\n".join(headers + [instances]) + _HOST.replace("SIGNATURE", _SIGNATURE).replace("CASES", cases)


# (device, kernel) -> its extension's `launch`, its number in there
_LAUNCHERS = {}


def _load_options(kernels, capability):
    """The arguments of load_inline that build `kernels` for one compute capability."""
    from torch.utils.cpp_extension import load_inline

    cuda = _cuda_source(kernels)
    version = "90a" if _has_sm_90a(capability) else "".join(map(str, capability))
    flags = ["-O3", f"-gencode=arch=compute_{version},code=sm_{version}"]
    if capability >= (9, 0):
        flags.append("-DTCONV_OVERLAPS")
    digest = hashlib.sha256("\n".join([cuda] + flags).encode()).hexdigest()
    options = {
        "name": "tconv_" + digest[:20],
        "cpp_sources": ["#include <cstdint>\n#include <pybind11/pybind11.h>\n" + _SIGNATURE + ";\n"],
        "cuda_sources": [cuda],
        "functions": ["launch"],
        "extra_cuda_cflags": flags,
        "with_pytorch_error_handling": False,
    }
    if "no_implicit_headers" in inspect.signature(load_inline).parameters:  # seconds instead of a minute
        options["no_implicit_headers"] = True
    return options


def _build(kernels, device):
    """Compiles the kernels that `device` does not have yet, in one extension."""
    missing = [kernel for kernel in dict.fromkeys(kernels) if (device, kernel) not in _LAUNCHERS]
    if not missing:
        return
    if device.type != "cuda":
        raise RuntimeError(
            f"this model runs its transposed convolutions on a CUDA GPU; got tensors on {str(device)!r}: "
            "move the model and its input there with .cuda()"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (7, 5):
        found = ".".join(map(str, capability))
        raise RuntimeError(f"this model needs a GPU of compute capability 7.5 or newer; {device} has {found}")
    for kernel in missing:
        if kernel.tile is None:
            what = f"no kernel in this file was made for {kernel.layer.describe()} on {device}: the plain one runs it"
            warnings.warn(f"{what}, maybe slower than PyTorch; tconv optimize makes one for it", stacklevel=2)
    from torch.utils.cpp_extension import load_inline

    launch = load_inline(**_load_options(missing, capability)).launch
    _LAUNCHERS.update({(device, kernel): (launch, number) for number, kernel in enumerate(missing)})


def _launch(plan, x, weight, bias, y):
    """Runs `plan` on contiguous tensors of one device, on the current stream."""
    (layer, batch, input_size, output_size), kernel, device = plan.problem, plan.kernel, x.device
    if (device, kernel) not in _LAUNCHERS:
        _build([kernel], device)
    if torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            return _launch(plan, x, weight, bias, y)
    launch, number = _LAUNCHERS[device, kernel]
    pointers = [x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(), 0]
    if kernel.weight_bytes:
        # Inputs in another order lie behind the weights.
        inputs = x.numel() * x.element_size() if kernel.prepares_inputs else 0
        prepared = torch.empty(kernel.weight_bytes + inputs, dtype=torch.uint8, device=device)
        pointers[4] = prepared.data_ptr()
    stream = torch._C._cuda_getCurrentRawStream(device.index)  # torch.cuda.current_stream() takes as long as a launch
    error = launch(number, stream, _gpu(device).multiprocessors, *pointers, batch, *input_size, *output_size)
    if error == -1:  # the sizes want offsets of 64 bits
        _launch(plan._replace(kernel=kernel._replace(wide_index=True)), x, weight, bias, y)
    elif error:
        raise RuntimeError(f"CUDA error {error} at the launch of {layer.describe()} on {tuple(x.shape)}")


# ---- the operator ----------------------------------------------------------------------------------------------------


def _run(plan, x, weight, bias):
    layer, batch, _, output_size = plan.problem
    shape = (batch, layer.out_channels) + output_size[3 - layer.spatial_dims :]
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    if y.numel():
        inputs, weights = x.contiguous(), weight.contiguous()
        if plan.kernel.weight_bytes and (inputs.data_ptr() | weights.data_ptr()) % 16:  # where copies would begin
            inputs, weights = inputs.clone(), weights.clone()
        _launch(plan, inputs, weights, None if bias is None else bias.contiguous(), y)
    return _as_theirs(y, x, weight)


def _as_theirs(y, x, weight):
    """The result in PyTorch's memory format: channels_last in, channels_last out."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    others = [t for t in (x, weight) if not t.is_contiguous()]
    if last and any(t.is_contiguous(memory_format=last) for t in others):
        return y.contiguous(memory_format=last)
    return y


def _save(ctx, inputs, output):
    x, weight, bias, *ctx.options = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_sizes = None if bias is None else list(bias.shape)


def _gradients(ctx, gradient):
    """Of input, weight and bias, and of the five options."""
    x, weight = ctx.saved_tensors
    stride, padding, output_padding, groups, dilation = ctx.options
    gradients = torch.ops.aten.convolution_backward(
        gradient, x, weight, ctx.bias_sizes, stride, padding, dilation, True, output_padding, groups,
        list(ctx.needs_input_grad[:3]),
    )
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


def _operator(x, weight, bias, stride, padding, output_padding, groups, dilation):
    options = (tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation))
    return _run(_planned((x, weight, bias), options), x, weight, bias)


def _operators_shape(x, weight, bias, *options):
    theirs = getattr(torch, f"conv_transpose{x.dim() - 2}d")(x, weight, bias, *options)
    return _as_theirs(x.new_empty(theirs.shape), x, weight)


def _define(name):
    """The operator of that name; None where PyTorch has none."""
    if not hasattr(torch.library, "custom_op"):
        return None
    sizes = "SymInt[] stride, SymInt[] padding, SymInt[] output_padding, SymInt groups, SymInt[] dilation"
    schema = f"(Tensor x, Tensor weight, Tensor? bias, {sizes}) -> Tensor"
    defined = torch.library.custom_op(name, _operator, mutates_args=(), schema=schema)
    defined.register_fake(_operators_shape)
    defined.register_autograd(_gradients, setup_context=_save)
    return defined


# What torch.compile sees, as one node; named by the contents of this file.
_OPERATOR = _define("tconv_DIGEST::conv_transpose")


def _tuple(value, dims):
    if type(value) is tuple and len(value) == dims:  # as modules have them
        return value
    values = tuple(map(operator.index, value)) if hasattr(value, "__iter__") else (operator.index(value),)
    return values * dims if len(values) == 1 else values


def _autocast(tensor):
    """What autocast makes of an operand of a convolution."""
    if tensor is None or not tensor.is_cuda or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    if hasattr(torch, "get_autocast_dtype"):
        return tensor.to(torch.get_autocast_dtype("cuda"))
    return tensor.to(torch.get_autocast_gpu_dtype())


def _conv_transpose(dims, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Equivalent to: the conv_transpose of torch.nn.functional with `dims` spatial dimensions."""
    stride, padding, output_padding, dilation = (_tuple(v, dims) for v in (stride, padding, output_padding, dilation))
    options = (stride, padding, output_padding, groups, dilation)
    if torch.is_autocast_enabled():
        input, weight, bias = _autocast(input), _autocast(weight), _autocast(bias)
    x = input.unsqueeze(0) if input.dim() == dims + 1 else input
    tensors = (x, weight, bias)
    if _OPERATOR is not None and torch.compiler.is_compiling():
        y = _OPERATOR(*tensors, *options)
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        y = _ConvTranspose.apply(*tensors, *options, _planned(tensors, options))
    else:
        y = _run(_planned(tensors, options), *tensors)
    return y if x is input else y.squeeze(0)


def _planned(tensors, options):
    """The launch for these tensors; errors are PyTorch's own."""
    x, weight, bias = tensors
    given = [t for t in tensors if t is not None]
    if any(t.dtype not in _PRECISIONS for t in given):
        kernels = ", ".join(map(str, _PRECISIONS))
        raise TypeError(f"this model has kernels for {kernels}; got {', '.join(str(t.dtype) for t in given)}")
    dims = len(options[0])
    shapes = (tuple(x.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape))
    plan = _plan(dims, x.dtype, *shapes, *options, _gpu(x.device))
    if plan is None or any(t.dtype != x.dtype or t.device != x.device for t in given):
        # Not a transposed convolution. PyTorch knows best what is wrong with it.
        getattr(torch, f"conv_transpose{dims}d")(x, weight, bias, *options)
        raise ValueError(f"this model has no kernel for the shapes {shapes} with {options}")
    return plan


cuda_conv_transpose1d = functools.partial(_conv_transpose, 1)
cuda_conv_transpose2d = functools.partial(_conv_transpose, 2)
cuda_conv_transpose3d = functools.partial(_conv_transpose, 3)


# ---- the modules -----------------------------------------------------------------------------------------------------


class _CudaForward:
    _left = False  # True on a module that is left to PyTorch

    def forward(self, input, output_size=None):
        if self._left:
            return super().forward(input, output_size)
        dims = len(self.kernel_size)
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        return _conv_transpose(
            dims, input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation
        )


def _on_cuda(theirs, **members):
    """torch's class with its forward on the kernels above.

    It has torch's name, in repr and where weights are initialised by class names; it is pickled by its own.
    """
    ours = type(theirs.__name__, (_CudaForward, theirs), {"__module__": _CudaForward.__module__, **members})
    ours.__qualname__ = f"Cuda{theirs.__name__}"
    return ours


CudaConvTranspose1d = _on_cuda(nn.ConvTranspose1d)
CudaConvTranspose2d = _on_cuda(nn.ConvTranspose2d)
CudaConvTranspose3d = _on_cuda(nn.ConvTranspose3d)
CudaLazyConvTranspose1d = _on_cuda(nn.LazyConvTranspose1d, cls_to_become=CudaConvTranspose1d)
CudaLazyConvTranspose2d = _on_cuda(nn.LazyConvTranspose2d, cls_to_become=CudaConvTranspose2d)
CudaLazyConvTranspose3d = _on_cuda(nn.LazyConvTranspose3d, cls_to_become=CudaConvTranspose3d)
_CUDA_CLASSES = {
    ours.__bases__[1]: ours
    for ours in (
        *(CudaConvTranspose1d, CudaConvTranspose2d, CudaConvTranspose3d),
        *(CudaLazyConvTranspose1d, CudaLazyConvTranspose2d, CudaLazyConvTranspose3d),
    )
}


@functools.lru_cache(maxsize=None)
def _cuda_class(kind, parametrized):
    """The class that takes the place of `kind`, one of torch's or a subclass that was defined elsewhere."""
    if kind in _CUDA_CLASSES:
        return _CUDA_CLASSES[kind]
    if parametrized:  # this class was made by torch.nn.utils.parametrize, for one module, right above its own
        return type(kind.__name__, (_cuda_class(kind.__base__, False),), dict(vars(kind)))
    ours = next(_CUDA_CLASSES[base] for base in kind.__mro__ if base in _CUDA_CLASSES)
    return type(kind.__name__, (kind, ours), {"__module__": kind.__module__})


def _swap(model):
    """Gives transposed convolutions that were built elsewhere the classes above; their parameters stay as they are."""
    for name, module in model.named_modules():
        if isinstance(module, tuple(_CUDA_CLASSES)) and not isinstance(module, _CudaForward):
            module.__class__ = _cuda_class(type(module), hasattr(module, "parametrizations"))
        if name in _LEFT:
            module._left = True


def _module_kernels(model, gpu=_PLANNED):
    for module in model.modules():
        parameter = next(module.parameters(), None)
        if not isinstance(module, _CudaForward) or module._left or getattr(parameter, "dtype", None) not in _PRECISIONS:
            continue
        if module.in_channels > 0:  # a lazy module has none before its first input
            axes = zip((module.kernel_size, module.stride, module.padding, module.dilation), (1, 1, 0, 1))
            channels = (len(module.kernel_size), module.in_channels, module.out_channels)
            last = (module.groups, module.bias is not None, _PRECISIONS[parameter.dtype])
            yield _kernel(_with_precision(_Layer(*channels, *(_three(*axis) for axis in axes), *last)), gpu)


def _cuda_model(model):
    """Class decorator: after construction, all of the model's kernels are there."""
    construct = model.__init__

    @functools.wraps(construct)
    def __init__(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        _swap(self)
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
            called = [_kernel(layer, _gpu(device)) for layer in _CALLED]
            _build(list(_module_kernels(self, _gpu(device))) + called, device)

    model.__init__ = __init__
    return model


# ---- the kernels from here on

# The CUDA kernels: what their families share, and of each family templates over the layer and its tile.
_PRIMITIVES = r""
_KERNELS = {}

# The host's side of them, left out where only device code is compiled.
_HOST = r"""
#if !defined(__CUDACC_RTC__) && !defined(TCONV_EMULATOR)
#include <cstdint>
#include <cuda_runtime.h>

struct Arguments {
  int64_t stream, x, weight, bias, y, prepared;
  tconv::Sizes sizes;
};

// The functions below return a cudaError_t. This one enqueues a kernel. One that `overlaps` begins while the kernel
// before it runs, and waits for it itself.
template <class... Parameters, class... Values>
static int enqueue(bool overlaps, void (*kernel)(Parameters...), int64_t grid, int block, int shared_bytes,
                   int64_t on, Values... values) {
  if (grid >= int64_t(1) << 31) return cudaErrorInvalidConfiguration;
  if (shared_bytes > 48 * 1024) {
    const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  const auto blocks = static_cast<unsigned>(grid);
  const auto stream = reinterpret_cast<cudaStream_t>(on);
#if defined(TCONV_OVERLAPS) && CUDART_VERSION >= 12030
  int driver = 0;
  if (overlaps && cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030) {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, values...);
  }
#endif
  kernel<<<blocks, block, shared_bytes, stream>>>(values...);
  return cudaGetLastError();
}

template <class Element>
static Element* pointer(int64_t address) {
  return reinterpret_cast<Element*>(address);
}

template <class Element>
struct Kernels {
  using Main = void (*)(const Element*, const Element*, const Element*, Element*, int, int, int, int, int, int, int);
  using OfWeights = void (*)(const Element*, Element*);
  using OfInputs = void (*)(const Element*, Element*, int, int, int, int);
};

// A kernel, behind those that bring its weights and its inputs into another order, in memory at `prepared`. Returns -1
// where offsets of the layer's Index do not reach.
template <class Layer, class Element = typename Layer::Element>
static int start(const tconv::Launch& launch, typename Kernels<Element>::Main kernel,
                 typename Kernels<Element>::OfWeights weights, typename Kernels<Element>::OfInputs inputs,
                 Arguments a) {
  if (launch.wide_index && sizeof(typename Layer::Index) < 8) return -1;
  if (launch.counted >= tconv::index_limit) return cudaErrorInvalidConfiguration;
  const auto &input = a.sizes.input, &output = a.sizes.output;
  bool overlaps = false;
// ---- where inputs are prepared
  if (inputs != nullptr) {
    const auto ordered = pointer<Element>(a.prepared + launch.weight_bytes);
    const int error = enqueue(overlaps, inputs, launch.input_blocks, tconv::preparing_threads,
                              launch.input_shared_bytes, a.stream, pointer<const Element>(a.x), ordered,
                              a.sizes.batch, input[0], input[1], input[2]);
    if (error != cudaSuccess) return error;
    a.x = reinterpret_cast<int64_t>(ordered);
    overlaps = true;
  }
// ---- where inputs are prepared
// ---- where weights are prepared
  if (weights != nullptr) {
    const int error = enqueue(overlaps, weights, launch.weight_blocks, tconv::preparing_threads, 0, a.stream,
                              pointer<const Element>(a.weight), pointer<Element>(a.prepared));
    if (error != cudaSuccess) return error;
    a.weight = a.prepared;
    overlaps = true;
  }
// ---- where weights are prepared
  return enqueue(overlaps, kernel, launch.blocks, launch.threads, launch.shared_bytes, a.stream,
                 pointer<const Element>(a.x), pointer<const Element>(a.weight), pointer<const Element>(a.bias),
                 pointer<Element>(a.y), a.sizes.batch, input[0], input[1], input[2], output[0], output[1], output[2]);
}

SIGNATURE {
  const tconv::Sizes sizes{multiprocessors, batch,
                           {input_depth, input_height, input_width}, {output_depth, output_height, output_width}};
  const Arguments a{stream, x, weight, bias, y, prepared, sizes};
  switch (number) {
CASES    default: return cudaErrorInvalidValue;
  }
}
#endif
"""

_SIGNATURE = (
    "int launch(int number, int64_t stream, int multiprocessors, int64_t x, int64_t weight, int64_t bias, int64_t y,\n"
    "           int64_t prepared, int batch, int input_depth, int input_height,\n"
    "           int input_width, int output_depth, int output_height, int output_width)"
)
