"""Which kernel of a generated file runs a call."""
# mypy: ignore-errors

import functools
from collections import namedtuple
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tconv.codegen.runtime.launch import _can_build, _extension, _samples
    from tconv.codegen.runtime.records import _RECORDED, _Layer

# ---- copied from here on

# ---- which kernel runs a call ----------------------------------------------------------------------------------------

_Gpu = namedtuple("_Gpu", "capability shared_bytes multiprocessors")


@functools.lru_cache(maxsize=None)
def _gpu(device):
    """The properties of a device that decide which kernels run there; None where it is no GPU."""
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    kilobytes = 227 if capability[0] in (9, 10) else 163 if capability in ((8, 0), (8, 7)) else 99
    return _Gpu(capability, kilobytes * 1024, torch.cuda.get_device_properties(device).multi_processor_count)


def _has_sm_90a(capability):
    """Whether the GPU is Hopper and its compiler builds for sm_90a."""
    return capability == (9, 0) and int((torch.version.cuda or "0").partition(".")[0]) >= 12


def _runs_on(kernel, gpu):
    if kernel.family in ("wgmma", "col2im_wgmma", "col2im_rows"):
        return _has_sm_90a(gpu.capability)
    if kernel.family in ("mma", "col2im"):
        return gpu.capability >= (8, 0) and kernel.shared_bytes <= gpu.shared_bytes
    return gpu.capability >= (7, 5)


def _three(values, fill):
    return (fill,) * (3 - len(values)) + tuple(values)


# A call: the kernel that runs it, the function that launches it, and on which GPU. The result has `shape`: all channels
# of a tensor, or a slice of the `y_channels` that the tensor has. Sizes are (depth, height, width). One launch takes so
# many `samples`.
# ---- where epilogues are fused
# `others`: launches of the same call with an epilogue, by program and `into`.
# ---- where epilogues are fused
_Launch = namedtuple("_Launch", "kernel run gpu y_channels batch input_size output_size shape samples others")


@functools.lru_cache(maxsize=4096)
def _launch_for(device, dtype, x_shape, weight_shape, bias_shape, options, program="", into=0):
    """The launch of a call, or the reason in words why no kernel of this file runs it; "" where PyTorch will raise."""
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
        alike = kernel.input_size in (None, input_size)
        if alike and input_size[2] % kernel.columns == 0 and all(input_size[axis] == 1 for axis in kernel.single):
            break
    else:
        return "none takes an input of this size"
    if not _can_build(kernel, gpu):
        return "the CUDA compiler, nvcc, is not found: it builds them"
    run = _extension(kernel.family, gpu.capability)
    samples = _samples(kernel, device, run, x_shape[0], input_size, output_size)
    # Kernels load and store 16 aligned bytes at once: a slice of the batch must begin at a multiple of 16 bytes.
    samples = samples if samples >= x_shape[0] else samples // 16 * 16
    if not samples:
        return "it is too large for one launch"
    shape = (x_shape[0], out_channels) + output
    sizes = (into or out_channels, x_shape[0], input_size, output_size)
    return _Launch(kernel, run, gpu, *sizes, shape, samples, {})
