"""How long PyTorch's own operator takes for a layer, predicted: so that layers can be left to it where it is faster.

cuDNN's tensor-core kernels are implicit matrix products on channels_last tensors: an output is a sum over the taps that
reach it, 64 output channels are a tile. Contiguous tensors are converted before and after; a bias is added by a kernel
of its own. Kernels without tensor cores take contiguous tensors, and channels_last ones are converted.

The constants were fitted to times of some 100 layers on one NVIDIA H200 with PyTorch 2.11 and cuDNN 9.19, in several
types and memory formats. Of those in benchmarks/results without groups and with 8 or more output channels, half of the
predictions are within 10 % of what was measured and nine in ten within a third (tests/test_pytorch_model.py); others
are within a factor of 3, seldom of 6. On one H100, to which nothing was fitted, half are within 15 % of what was
measured and nine in ten within two fifths. cuDNN chooses among engines that differ by as much as 3 times: a prediction
is worth a decision only with a margin.
"""

from __future__ import annotations

import math

from tconv.planner.gpu import FIRST_WITH_TF32, Gpu
from tconv.problem import TF32, Layer, Precision, Problem

_WITHOUT_TENSOR_CORES: tuple[Precision, ...] = ("fp32", "fp64")
#: With fewer output channels predictions err too much to speak for PyTorch.
_FEW_CHANNELS = 8
#: Seconds of a call, with the first and the last tiles; and of the conversions, beside their bytes.
_CALL = 15e-6
_CONVERSIONS = 11e-6
#: The share of a copy's bandwidth that conversions reach, of items of four bytes and of fewer; the kernel that adds a
#: bias; and the matrix product.
_CONVERTED_WORDS, _CONVERTED_HALVES, _BIAS, _PRODUCT = 1.0, 0.54, 0.37, 0.47
#: Output channels of a tile; and how many products of each output take as long as beginning and ending a tile.
_CHANNELS = 64
_TILE = 280
#: Seconds that 128 bytes of the products of one output take at least: a tile takes them one after the other.
_STEP = 0.33e-6
#: How much longer cuDNN's engines take: on tensor cores, for channels that fill no vectors of 16 bytes and for strides
#: with dilation; for 2-D TF32 layers with strides of so many output channels; for groups. And for kernels of several
#: taps in depth. (Groups and depth are set to the slow side, not fitted: three models of each were measured.)
_UNALIGNED, _WIDE, _GROUPED, _DEEP = 2.8, 2.2, 3.0, 1.5
_WIDE_CHANNELS = range(129, 257)
#: Without tensor cores, up to so many output channels (of a group) are computed without tiles of channels, at this
#: share of the fp32 rate.
_NARROW_CHANNELS = 3
_NARROW = 0.47


def predict_pytorch(problem: Problem, gpu: Gpu, channels_last: bool) -> float:
    """Seconds that PyTorch's operator takes for `problem` on `gpu`.

    Args:
        problem: in the precision that PyTorch computes in: "tf32" for float32 tensors where that is what it does.
        channels_last: how input and result lie in memory, and weights are taken to; else they are contiguous.
    """
    layer = problem.layer
    bandwidth = gpu.copy_bandwidth
    seconds = _CALL + max(_products(problem, gpu), problem.bytes_moved / (bandwidth * _PRODUCT))
    if channels_last != _on_tensor_cores(layer, gpu):
        share = _CONVERTED_WORDS if layer.item_bytes >= 4 else _CONVERTED_HALVES
        seconds += _CONVERSIONS + 2 * problem.bytes_moved / (bandwidth * share)
    if layer.bias:
        seconds += 2 * math.prod(problem.output_shape) * layer.item_bytes / (bandwidth * _BIAS)
    return seconds


def is_well_known(layer: Layer) -> bool:
    """Whether such layers were measured often enough for a prediction to speak against what runs otherwise."""
    return layer.groups == 1 and layer.out_channels >= _FEW_CHANNELS and layer.precision != "fp64"


def _products(problem: Problem, gpu: Gpu) -> float:
    """Seconds of the matrix product, where memory does not limit it."""
    layer = problem.layer
    channels = layer.out_channels_per_group
    of_output = layer.in_channels_per_group * math.prod(layer.kernel) / math.prod(layer.stride)
    positions = problem.batch * layer.groups * math.prod(problem.output_size)
    if _is_narrow(layer):
        return 2 * positions * channels * (of_output + _TILE) / (gpu.matrix_rate("fp32") * _NARROW)
    padded = -(-channels // _CHANNELS) * _CHANNELS
    rate = gpu.matrix_rate(layer.precision if _on_tensor_cores(layer, gpu) or layer.precision == "fp64" else "fp32")
    seconds = 2 * positions * padded * (of_output + _TILE) / rate
    return max(seconds * _slower(layer, gpu), of_output * layer.item_bytes / 128 * _STEP)


def _slower(layer: Layer, gpu: Gpu) -> float:
    """How much longer than others the engine takes that cuDNN runs on such a layer."""
    factor = _DEEP if layer.kernel[0] > 1 else 1.0
    if not _on_tensor_cores(layer, gpu):
        return factor
    dilated = any(axis.stride > 1 and axis.dilation > 1 for axis in layer.axes)
    if dilated or math.gcd(layer.in_channels_per_group, layer.out_channels_per_group) * layer.item_bytes % 16:
        factor *= _UNALIGNED
    strided = layer.spatial_dims == 2 and max(layer.stride) > 1
    if strided and layer.precision in TF32 and layer.out_channels_per_group in _WIDE_CHANNELS:
        factor *= _WIDE
    return factor * (_GROUPED if layer.groups > 1 else 1.0)


def _is_narrow(layer: Layer) -> bool:
    few = layer.out_channels_per_group <= _NARROW_CHANNELS
    return few and (layer.groups > 1 or layer.precision in _WITHOUT_TENSOR_CORES)


def _on_tensor_cores(layer: Layer, gpu: Gpu) -> bool:
    older = layer.precision == "bf16" and gpu.capability < FIRST_WITH_TF32
    return layer.precision not in _WITHOUT_TENSOR_CORES and not older and not _is_narrow(layer)
