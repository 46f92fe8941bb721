"""What a transposed convolution should give: float64 results, and operands rounded as tensor cores take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tconv.problem import TF32, Precision, Problem

#: Elements of input or output that are turned to float64 at once.
_CHUNK_ELEMENTS = 2**23
_TF32_DROPPED_BITS = 13


class Operands(NamedTuple):
    """The tensors of one call: x (N, C_in, *spatial), weight (C_in, C_out/groups, *kernel), bias (C_out,) or None."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None

    def clone(self) -> Operands:
        """Copies of all tensors."""
        return Operands(self.x.clone(), self.weight.clone(), None if self.bias is None else self.bias.clone())


@dataclass(frozen=True)
class Exact:
    """Float64 results for some samples of a batch.

    Args:
        samples: which ones.
        result: the transposed convolution of the very tensors.
        magnitude: the same of their absolute values, plus \\|bias\\|: what rounding errors are in proportion to.
        rounded: the same as `result` on operands rounded to TF32, by how they were rounded; empty unless asked for.
    """

    samples: slice
    result: Tensor
    magnitude: Tensor
    rounded: Mapping[Precision, Tensor]


def conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem) -> Tensor:
    """PyTorch's own operator with the problem's parameters. Equivalent to: F.conv_transpose{1,2,3}d(x, weight, ...)."""
    layer = problem.layer
    used = slice(3 - layer.spatial_dims, None)
    operator = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[layer.spatial_dims - 1]
    return operator(
        x,
        weight,
        bias,
        layer.stride[used],
        layer.padding[used],
        problem.output_padding[used],
        layer.groups,
        layer.dilation[used],
    )


def exact(operands: Operands, problem: Problem, *, rounded: bool = False) -> Iterator[Exact]:
    """Float64 results on the operands' device, a few samples at a time so that large problems fit.

    `problem` gives the layer's parameters; the batch is that of `operands.x`.
    """
    x, weight, bias = operands
    wide_weight = weight.double()
    wide_bias = None if bias is None else bias.double()
    absolute_bias = None if wide_bias is None else wide_bias.abs()
    roundings = TF32 if rounded else ()
    rounded_weights = {precision: rounded_tf32(weight, precision).double() for precision in roundings}
    for samples in _chunks(x, problem):
        wide_x = x[samples].double()
        yield Exact(
            samples,
            conv_transpose(wide_x, wide_weight, wide_bias, problem),
            conv_transpose(wide_x.abs(), wide_weight.abs(), absolute_bias, problem),
            {
                precision: conv_transpose(rounded_tf32(x[samples], precision).double(), wide, wide_bias, problem)
                for precision, wide in rounded_weights.items()
            },
        )


def _chunks(x: Tensor, problem: Problem) -> Iterator[slice]:
    batch = x.shape[0]
    outputs = problem.layer.out_channels
    for length in problem.output_size:
        outputs *= length
    largest = max(1, outputs, x[:1].numel())
    step = max(1, _CHUNK_ELEMENTS // largest)
    for start in range(0, batch, step):
        yield slice(start, min(start + step, batch))


def rounded_tf32(tensor: Tensor, precision: Precision = "tf32") -> Tensor:
    """A float32 tensor rounded to TF32's 10 bits, to nearest. Infinities and NaN stay.

    Equivalent to: PTX cvt.rn.tf32.f32 for "tf32" (ties to even), cvt.rna.tf32.f32 for "tf32_rna" (ties away from zero).
    """
    if tensor.dtype != torch.float32:
        raise TypeError(f"got {tensor.dtype}; only torch.float32 rounds to TF32")
    # Sign and magnitude: half a unit added to the bits rounds the magnitude, a carry moves into the exponent.
    bits = tensor.contiguous().view(torch.int32)
    half_unit = 1 << (_TF32_DROPPED_BITS - 1)
    odd = bits >> _TF32_DROPPED_BITS & 1
    raised = bits + (half_unit if precision == "tf32_rna" else half_unit - 1 + odd)
    rounded = (raised & -(1 << _TF32_DROPPED_BITS)).view(torch.float32)
    return torch.where(tensor.isfinite(), rounded, tensor)
