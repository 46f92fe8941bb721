"""Problems beyond 2^31, and what any one output of theirs should be.

Input, weight and bias are small integers, so that sums are exact in every precision; an input element follows from its
index, so that a huge input is known wherever it is looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tconv.problem import Layer, Problem

LIMIT = 2**31

HUGE = {
    "input and output": Problem(
        Layer(2, 8, 4, (1, 4, 4), (1, 2, 2), (0, 1, 1), bias=True, precision="fp16"), 70, (1, 2048, 2048)
    ),
    "a plane of the output": Problem(
        Layer(2, 1, 2, (1, 2, 2), (1, 2, 2), bias=True, precision="fp16"), 1, (1, 24000, 24000)
    ),
    "a plane of the input": Problem(
        Layer(2, 1, 1, (1, 3, 3), padding=(0, 2, 1), bias=True, precision="fp16"), 1, (1, 46400, 46400)
    ),
    "a volume": Problem(
        Layer(3, 2, 1, (3, 2, 3), (2, 1, 1), (1, 0, 1), (3, 1, 1), bias=True, precision="bf16"), 1, (1300, 1300, 1300)
    ),
    "positions": Problem(
        Layer(2, 1, 1, (1, 1, 3), (1, 1, 1), (0, 0, 1), bias=True, precision="fp16"), 2**21, (1, 1026, 1)
    ),
    "a grid of many row phases": Problem(
        Layer(2, 2, 4, (1, 70, 4), (1, 70, 2), (0, 0, 1), bias=True, precision="fp16"), 4, (1, 1000, 1023)
    ),
    "a grid of many groups": Problem(
        Layer(1, 70000, 70000, (1, 1, 3), (1, 1, 2), groups=70000, bias=True, precision="fp16"), 1, (1, 1, 32768)
    ),
}
#: Those whose grid has more blocks than a grid's second and third dimension could.
LARGE_GRIDS = ("a grid of many row phases", "a grid of many groups")


class Weights(NamedTuple):
    """Weight and bias of a layer: integers from -3 to 3, the bias without 0."""

    weight: Tensor
    bias: Tensor


def weights_of(layer: Layer) -> Weights:
    generator = torch.Generator().manual_seed(11)
    dtype = getattr(torch, layer.dtype)
    weight = torch.randint(-3, 4, layer.weight_shape, generator=generator)
    bias = torch.randint(1, 4, (layer.out_channels,), generator=generator)
    return Weights(weight.to(dtype), bias.to(dtype))


def input_at(index: Tensor) -> Tensor:
    """The input's elements at these flat indices (int64): integers from -3 to 3 without a short period."""
    return (index * 2654435761 >> 9) % 7 - 3


def output_at(problem: Problem, weights: Weights, outputs: Tensor) -> Tensor:
    """What the outputs at these flat indices should be, in float64."""
    weight, bias = (tensor.flatten().double() for tensor in weights)
    channels = outputs // math.prod(problem.output_size) % problem.layer.out_channels
    result = bias[channels]
    for inside, index, weight_index in _products(problem, outputs):
        result += torch.where(inside, input_at(index) * weight[weight_index], 0.0)
    return result


def inputs_of(problem: Problem, outputs: Tensor) -> Iterator[Tensor]:
    """The flat indices of the inputs that the outputs at these flat indices depend on, a part at a time."""
    for inside, index, _ in _products(problem, outputs):
        yield index[inside]


def _products(problem: Problem, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each tap and input channel: which outputs it meets, and the flat indices of input and weight."""
    layer = problem.layer
    rest, at = outputs, []
    for size in reversed(problem.output_size):
        at.insert(0, rest % size)
        rest = rest // size
    sample, channel = rest // layer.out_channels, rest % layer.out_channels
    group, own = channel // layer.out_channels_per_group, channel % layer.out_channels_per_group
    for taps in itertools.product(*(range(axis.kernel) for axis in layer.axes)):
        inside, offset, tap_number = torch.ones_like(outputs, dtype=torch.bool), torch.zeros_like(outputs), 0
        for axis, tap, o, size in zip(layer.axes, taps, at, problem.input_size, strict=True):
            spread = o + axis.padding - tap * axis.dilation
            inside &= (spread % axis.stride == 0) & (spread >= 0) & (spread < size * axis.stride)
            offset = offset * size + spread.div(axis.stride, rounding_mode="floor")
            tap_number = tap_number * axis.kernel + tap
        for number in range(layer.in_channels_per_group):
            in_channel = group * layer.in_channels_per_group + number
            plane = sample * layer.in_channels + in_channel
            filter_ = in_channel * layer.out_channels_per_group + own
            yield inside, plane * math.prod(problem.input_size) + offset, filter_ * math.prod(layer.kernel) + tap_number
