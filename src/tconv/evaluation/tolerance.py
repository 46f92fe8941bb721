"""The error that a result may have: constants of the rules, and the bound of each element."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tconv.problem import TF32, Layer, Precision

#: Rounding errors of a summation, in units of epsilon times the sum of magnitudes. Sequential fp32 comes to 4.7.
SUMMATION = 8.0
#: Tensor cores truncate their accumulators: they get one more unit for each this many products.
PRODUCTS_PER_UNIT = 32
#: Two operands, each rounded to 11 significant bits.
TF32_OPERANDS = 2 * 2.0**-11
#: Two float32 operands, each the sum of two such numbers, and of their products all but the smallest: what each of the
#: three leaves out is at most this part of the product. Where an output has few products, the sum's bound has no room.
SPLIT_PRODUCT = 3 * 2.0**-22
#: How much worse than PyTorch, or than exact arithmetic on rounded operands, a pooled error may be.
POOLED_SLACK = 1.25
#: The pooled error of a sane summation, in units of sqrt(products) times epsilon. Sequential fp32 comes to 0.30.
POOLED_SUMMATION = 0.5
#: Relative and absolute tolerance against PyTorch's own result, by precision.
CLOSE: dict[Precision, float] = {
    "fp32": 1e-4,
    "tf32": 1e-4,
    "tf32_rna": 1e-4,
    "fp16": 1e-2,
    "bf16": 1e-2,
    "fp64": 1e-10,
}


def pooled_summation(products: int, epsilon: float) -> float:
    """The relative pooled error of a sane summation. It also covers a product that is computed as three of TF32."""
    return (POOLED_SUMMATION * math.sqrt(products) + 1) * epsilon


#: The bits of a float64 that hold its exponent.
_EXPONENT = 0x7FF0000000000000
_TENSOR_CORES: tuple[Precision, ...] = (*TF32, "fp16", "bf16")


@dataclass(frozen=True)
class Tolerance:
    """The errors that one arithmetic may have on one layer.

    Args:
        precision: the arithmetic that the candidate may use.
        dtype: of the output.
        products: the most products that one output sums up (K).
        epsilon: unit roundoff of the accumulation.
    """

    precision: Precision
    dtype: torch.dtype
    products: int
    epsilon: float

    @classmethod
    def of(cls, layer: Layer, precision: Precision) -> Tolerance:
        """The tolerance of `precision` on `layer`, whose own precision gives the type of the output."""
        epsilon = 2.0**-53 if precision == "fp64" else 2.0**-24
        return cls(precision, getattr(torch, layer.dtype), layer.products_per_output, epsilon)

    @property
    def factor(self) -> float:
        """The allowed error of an element in units of its magnitude, without the rounding of the output."""
        units = SUMMATION + (self.products / PRODUCTS_PER_UNIT if self.precision in _TENSOR_CORES else 0.0)
        of_products = TF32_OPERANDS if self.precision in TF32 else SPLIT_PRODUCT if self.precision == "fp32" else 0.0
        return units * self.epsilon + of_products

    def bound(self, result: Tensor, magnitude: Tensor) -> Tensor:
        """The allowed error of every element, float64, shaped as `result`."""
        return self.factor * magnitude + half_ulp(result, self.dtype)

    @property
    def pooled_floor(self) -> float:
        """A relative error that any summation order may have."""
        return pooled_summation(self.products, self.epsilon)

    @property
    def close(self) -> float:
        """Relative and absolute tolerance against PyTorch's own result."""
        return CLOSE[self.precision]


def half_ulp(result: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between neighbouring numbers of `dtype` at each (float64) element of `result`."""
    info = torch.finfo(dtype)
    power = (result.view(torch.int64) & _EXPONENT).view(torch.float64)  # the largest power of two that is not above
    # An infinite result has no ulp: a result beside it is infinite, too, or wrong.
    return power.nan_to_num_(posinf=0.0).mul_(info.eps).clamp_min_(info.tiny * info.eps).div_(2)
