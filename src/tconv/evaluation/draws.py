"""Fresh inputs and weights of one problem, and awkward ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tconv.evaluation.reference import Operands
from tconv.problem import Problem

#: Inputs times two to the power of plus or minus this are beyond float16's exponents, and well inside float32's.
BEYOND_FLOAT16 = 24


def draw(problem: Problem, device: torch.device, seed: int) -> Operands:
    """Normal inputs, and normal weights so scaled that outputs are of order one; the same for the same seed."""
    layer = problem.layer
    dtype = getattr(torch, layer.dtype)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        drawn_as = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.randn(shape, generator=generator, device=device, dtype=drawn_as)

    x = normal(*problem.input_shape)
    weight = normal(*layer.weight_shape) / math.sqrt(layer.products_per_output)
    bias = normal(layer.out_channels) if layer.bias else None
    return Operands(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def scaled(operands: Operands, exponent: int) -> Operands:
    """Input and bias times 2**exponent, which every operation of the layer should follow exactly."""
    factor = 2.0**exponent
    return Operands(operands.x * factor, operands.weight, None if operands.bias is None else operands.bias * factor)


def without_bias(operands: Operands) -> Operands:
    """The bias set to zero, where there is one."""
    return operands._replace(bias=None if operands.bias is None else torch.zeros_like(operands.bias))


def zeros(operands: Operands) -> Operands:
    """An input of zeros."""
    return operands._replace(x=torch.zeros_like(operands.x))


def one_hot(operands: Operands) -> Operands:
    """An input of zeros but for a one at the first element of the first sample and at the last of the last."""
    x = torch.zeros_like(operands.x)
    x.view(-1)[:1] = 1
    x.view(-1)[-1:] = 1
    return operands._replace(x=x)


def non_contiguous(operands: Operands) -> Operands:
    """The same values with the axes stored in reversed order."""
    return Operands(reversed_storage(operands.x), reversed_storage(operands.weight), operands.bias)


def offset_storage(operands: Operands) -> Operands:
    """The same values, each tensor starting one element into its storage: no longer aligned for vector loads."""
    bias = None if operands.bias is None else shifted_storage(operands.bias)
    return Operands(shifted_storage(operands.x), shifted_storage(operands.weight), bias)


def reversed_storage(tensor: Tensor) -> Tensor:
    """The same values with the axes stored in reversed order."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def shifted_storage(tensor: Tensor) -> Tensor:
    """The same values in the same order in memory, starting one element into their storage."""
    strides = torch.empty_like(tensor).stride()  # without gaps
    storage = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return storage.as_strided(tensor.shape, strides, 1).copy_(tensor)
