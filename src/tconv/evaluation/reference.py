"""The true results of a transposed convolution: in float64, also on operands rounded as tensor cores round them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tconv.evaluation.accumulation import in_float32
from tconv.problem import TF32, Layer, Precision, Problem

#: Elements of input or output that are converted to float64 at once.
_K_TILE_ELEMENTS = 2**23
_TF32_DROPPED_BITS = 13


class Operands(NamedTuple):
    """The tensors of one call: x (N, C_in, *spatial), weight (C_in, C_out/groups, *kernel), bias (C_out,) or None."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Exact:
    """Float64 results for a part of the output.

    Args:
        samples: the part's samples of the batch.
        rows: the part's rows of the first spatial axis.
        result: the transposed convolution of the tensors as they are.
        magnitude: the same of their absolute values, plus \\|bias\\|. Rounding errors are in proportion to it.
        rounded: the same as `result` on operands rounded to TF32, by the way of rounding; empty unless asked for.
    """

    samples: slice
    rows: slice
    result: Tensor
    magnitude: Tensor
    rounded: Mapping[Precision, Tensor]

    def of(self, output: Tensor) -> Tensor:
        """The same part of an output (N, C_out, *spatial)."""
        return output[self.samples, :, self.rows]


def conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem) -> Tensor:
    """PyTorch's own operator with the problem's parameters. Equivalent to: F.conv_transpose{1,2,3}d(x, weight, ...).

    In 16 bits on a CPU it sums in float32, as on a GPU, and rounds once.
    """
    return _operator(x, weight, bias, problem.layer, problem.layer.padding, problem.output_padding)


def _operator(
    x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer, padding: Sequence[int], output_padding: Sequence[int]
) -> Tensor:
    used = slice(3 - layer.spatial_dims, None)
    operator = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[layer.spatial_dims - 1]
    there = padding[used], output_padding[used], layer.groups, layer.dilation[used]
    result: Tensor = in_float32(operator, x, weight, bias, layer.stride[used], *there)
    return result


def _rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    problem: Problem,
    rows: slice,
    change: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """Rows of `conv_transpose`'s result in float64, from the inputs that reach these rows, after `change`."""
    axis = 3 - problem.layer.spatial_dims
    if rows == slice(0, problem.output_size[axis]):
        return conv_transpose(change(x).double(), weight, bias, problem)
    kernel, stride, padding, dilation = problem.layer.axes[axis]
    first = max(0, -(-(rows.start + padding - (kernel - 1) * dilation) // stride))
    last = min(x.shape[2] - 1, (rows.stop - 1 + padding) // stride)
    shape = (len(x), problem.layer.out_channels, rows.stop - rows.start, *problem.output_shape[3:])
    # Rows that no input reaches hold the bias.
    filling = weight.new_zeros(1) if bias is None else bias
    result = filling.view(1, -1, *[1] * problem.layer.spatial_dims).expand(shape).clone()
    if first <= last:
        reaching = change(x[:, :, first : last + 1]).double()
        none = [(*given[:axis], 0, *given[axis + 1 :]) for given in (problem.layer.padding, problem.output_padding)]
        y = _operator(reaching, weight, bias, problem.layer, *none)
        begin = first * stride - padding  # the row of the output at which y begins
        start, stop = max(rows.start, begin), min(rows.stop, begin + y.shape[2])
        result[:, :, start - rows.start : stop - rows.start] = y[:, :, start - begin : stop - begin]
    return result


def exact(operands: Operands, problem: Problem, *, rounded: bool = False) -> Iterator[Exact]:
    """Float64 results on the operands' device. They come in parts of the output, so that large problems fit.

    `problem` gives the layer's parameters, and `operands.x` the batch.
    """
    x, weight, bias = operands
    wide_weight = weight.double()
    wide_bias = None if bias is None else bias.double()
    absolute_bias = None if wide_bias is None else wide_bias.abs()
    roundings = TF32 if rounded else ()
    rounded_weights = {precision: rounded_tf32(weight, precision).double() for precision in roundings}
    for samples, rows in _parts(x, problem):
        some = x[samples]
        yield Exact(
            samples,
            rows,
            _rows(some, wide_weight, wide_bias, problem, rows),
            _rows(some, wide_weight.abs(), absolute_bias, problem, rows, torch.abs),
            {
                precision: _rows(some, wide, wide_bias, problem, rows, partial(rounded_tf32, precision=precision))
                for precision, wide in rounded_weights.items()
            },
        )


def _parts(x: Tensor, problem: Problem) -> Iterator[tuple[slice, slice]]:
    """The samples and rows of each part: some whole samples, or some rows of one sample."""
    sizes = problem.output_shape[1:]
    largest = max(1, math.prod(sizes), x[:1].numel())
    samples = max(1, _K_TILE_ELEMENTS // largest)
    rows = max(1, min(sizes[1], sizes[1] * _K_TILE_ELEMENTS // largest))
    for first in range(0, len(x), samples):
        for row in range(0, sizes[1], rows):
            yield slice(first, min(first + samples, len(x))), slice(row, min(row + rows, sizes[1]))


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
