"""What is computed: the layer, the sizes, and the algebra of phases and taps.

Every transposed convolution is brought to three spatial axes, (depth, height, width): a 1-D layer is
(1, 1, L), a 2-D layer (1, H, W). `Layer` is everything a kernel is compiled for, `Problem` adds what a
call brings. Pure Python: nothing here needs torch or a GPU.

Per axis, input i and tap k meet at output ``o = i*stride + k*dilation - padding``. Read the other way
round, with *phase* ``r = o mod stride`` and *position* ``q = o div stride``: phase r is fed by the taps
with ``(k*dilation - padding) mod stride == r``, and tap k reads input
``q - floor((k*dilation - padding) / stride)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

Triple = tuple[int, int, int]
#: How products are taken: in the type of the operands and summed in fp32 (fp64 in fp64). "tf32" and "tf32_rna" are for
#: float32 operands that are first rounded to TF32, to nearest: ties to even, or away from zero (PTX's .rn and .rna).
Precision = Literal["fp32", "tf32", "tf32_rna", "fp16", "bf16", "fp64"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
#: Those that round their operands to TF32.
TF32: tuple[Precision, ...] = ("tf32", "tf32_rna")
#: Those whose products tensor cores sum in float32 as they are.
SUMMED_IN_FLOAT: tuple[Precision, ...] = (*TF32, "fp16", "bf16")
#: What a kernel reads and writes for each precision, by torch's names.
DTYPE_OF: dict[Precision, str] = {
    "fp32": "float32",
    "tf32": "float32",
    "tf32_rna": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
}
ITEM_BYTES: dict[Precision, int] = {"fp32": 4, "tf32": 4, "tf32_rna": 4, "fp16": 2, "bf16": 2, "fp64": 8}


class InvalidProblem(ValueError):
    """The arguments describe no transposed convolution; the message says which one and what is allowed."""


class Axis(NamedTuple):
    """One spatial axis of a layer: its kernel size, stride, padding and dilation, and what follows from them."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def tap_period(self) -> int:
        """Distance between neighbouring taps of one phase."""
        return self.stride // math.gcd(self.stride, self.dilation)

    @property
    def shift_period(self) -> int:
        """How many inputs lie between the inputs that neighbouring taps of one phase read."""
        return self.dilation // math.gcd(self.stride, self.dilation)

    @property
    def phases_with_taps(self) -> int:
        """How many of the `stride` phases have a tap. They are those of the taps 0 .. phases_with_taps-1."""
        return min(self.kernel, self.tap_period)

    @property
    def taps_per_phase(self) -> int:
        """The most taps that any phase has."""
        return -(-self.kernel // self.tap_period)

    def phase_of(self, tap: int) -> int:
        return (tap * self.dilation - self.padding) % self.stride

    def shift_of(self, tap: int) -> int:
        """Tap `tap` at position q reads input ``q - shift_of(tap)``; negative where padding cut off the start."""
        return (tap * self.dilation - self.padding) // self.stride

    def taps(self, phase: int) -> range:
        """The taps that feed `phase`, ascending; an empty range for a phase without taps."""
        common = math.gcd(self.stride, self.dilation)
        distance = (phase + self.padding) % self.stride
        if distance % common:
            return range(0)
        inverse = pow(self.dilation // common, -1, self.tap_period)
        return range(distance // common * inverse % self.tap_period, self.kernel, self.tap_period)

    def output_size(self, input_size: int, output_padding: int) -> int:
        """Length of the output, as in torch.nn.ConvTranspose2d's documentation."""
        span = self.dilation * (self.kernel - 1) + 1
        return (input_size - 1) * self.stride - 2 * self.padding + span + output_padding

    def positions(self, output_size: int) -> int:
        """How many positions q the outputs 0 .. output_size-1 have."""
        return -(-output_size // self.stride)

    @property
    def is_trivial(self) -> bool:
        """True for an axis that does nothing: the unused axes of 1-D and 2-D layers."""
        return self == Axis(1, 1, 0, 1)


@dataclass(frozen=True)
class Layer:
    """Everything a kernel is compiled for: the layer without batch, sizes and output_padding.

    The tuples are (depth, height, width); unused leading axes have kernel 1, stride 1, padding 0, dilation 1.

    Args:
        epilogue: the text of the program that is applied to its outputs (`tconv.pointwise`); none of them is empty.
        weights_last: weights lie in memory as (in_channels, *kernel, out_channels / groups), which is PyTorch's
            channels_last of them; else as `weight_shape`.

    Raises:
        InvalidProblem: for values that PyTorch refuses as well.
    """

    spatial_dims: int
    in_channels: int
    out_channels: int
    kernel: Triple
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    groups: int = 1
    bias: bool = False
    precision: Precision = "fp32"
    epilogue: str = ""
    weights_last: bool = False

    def __post_init__(self) -> None:
        if self.spatial_dims not in (1, 2, 3):
            raise InvalidProblem(f"got {self.spatial_dims} spatial dimensions; allowed are 1, 2 and 3")
        if self.precision not in PRECISIONS:
            raise InvalidProblem(f"got precision {self.precision!r}; allowed are {', '.join(PRECISIONS)}")
        for name, low in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            value = getattr(self, name)
            if len(value) != 3 or any(v < low for v in value):
                raise InvalidProblem(f"got {name}={value}; allowed are three integers of at least {low}")
        if any(not axis.is_trivial for axis in self.axes[: 3 - self.spatial_dims]):
            raise InvalidProblem(
                f"an unused axis of {self.spatial_dims} spatial dimensions is not trivial: {self.axes}"
            )
        if self.in_channels < 1 or self.out_channels < 1 or self.groups < 1:
            raise InvalidProblem(
                f"got in_channels={self.in_channels}, out_channels={self.out_channels}, groups={self.groups}; "
                "each must be at least 1"
            )
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.groups:
                raise InvalidProblem(
                    f"got {name}={getattr(self, name)} with groups={self.groups}; {name} must be a multiple of groups"
                )

    @cached_property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        depth, height, width = (
            Axis(k, s, p, d) for k, s, p, d in zip(self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )
        return depth, height, width

    @property
    def dtype(self) -> str:
        """Element type of input, weight, bias and output, by torch's name (``"float32"``)."""
        return DTYPE_OF[self.precision]

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.precision]

    @property
    def in_channels_per_group(self) -> int:
        return self.in_channels // self.groups

    @property
    def out_channels_per_group(self) -> int:
        return self.out_channels // self.groups

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(in_channels, out_channels / groups, *kernel), as in torch, with the layer's own number of axes."""
        return (self.in_channels, self.out_channels_per_group, *self.kernel[3 - self.spatial_dims :])

    @property
    def products_per_output(self) -> int:
        """The most multiply-adds that any one output takes: K of the error bounds."""
        return self.in_channels_per_group * self.taps_per_output

    @property
    def taps_per_output(self) -> int:
        """The most taps that any one output has."""
        return math.prod(axis.taps_per_phase for axis in self.axes)

    def in_channels_last(self) -> Layer:
        """The layer with its weights in channels_last; itself where that is no order of its own."""
        differs = self.spatial_dims > 1 and self.out_channels_per_group > 1 and math.prod(self.kernel) > 1
        return replace(self, weights_last=True) if differs else self

    def describe(self) -> str:
        """One line as people write it: ``2-D 32→64 k3 s(5,1) p1 d2 groups 4 bias fp32 then max(y, 0)``."""
        words = [f"{self.spatial_dims}-D {self.in_channels}→{self.out_channels}"]
        axes = ("k", self.kernel, 0), ("s", self.stride, 0), ("p", self.padding, 0), ("d", self.dilation, 1)
        for letter, values, usual in axes:
            used = values[3 - self.spatial_dims :]
            if set(used) != {usual}:
                words.append(letter + (f"({','.join(map(str, used))})" if len(set(used)) > 1 else str(used[0])))
        words += [f"groups {self.groups}"] * (self.groups > 1) + ["bias"] * self.bias + [self.precision]
        words += ["weights channels_last"] * self.weights_last
        words += [f"then {self.epilogue}"] * bool(self.epilogue)
        return " ".join(words)


@dataclass(frozen=True)
class Problem:
    """A layer with the sizes of one call.

    Args:
        into: how many channels the tensor has of which the outputs are a slice; 0 where they are all of it.

    Raises:
        InvalidProblem: for sizes that PyTorch refuses as well.
    """

    layer: Layer
    batch: int
    input_size: Triple
    output_padding: Triple = (0, 0, 0)
    into: int = 0

    def __post_init__(self) -> None:
        if self.into and self.into < self.layer.out_channels:
            raise InvalidProblem(
                f"got into={self.into} with {self.layer.out_channels} channels; it must be no less, or 0"
            )
        if self.batch < 0:
            raise InvalidProblem(f"got batch {self.batch}; it must not be negative")
        unused = 3 - self.layer.spatial_dims
        if min(self.input_size) < 1 or any(n != 1 for n in self.input_size[:unused]):
            raise InvalidProblem(f"got input size {self.input_size}; each must be at least 1, and 1 on unused axes")
        for axis, extra in zip(self.layer.axes, self.output_padding, strict=True):
            if not 0 <= extra < max(axis.stride, axis.dilation):
                raise InvalidProblem(
                    f"got output_padding={self.output_padding} with stride={self.layer.stride} and "
                    f"dilation={self.layer.dilation}; it must be smaller than stride or dilation on its axis"
                )
        if min(self.output_size) < 1:
            raise InvalidProblem(
                f"got input size {self.input_size} for {self.layer.describe()}: the output would be "
                f"{self.output_size}; use a larger input or less padding"
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Problem:
        """The inverse of `dataclasses.asdict`, also after a passage through JSON, which knows no tuples."""

        def tupled(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

        return cls(**{**tupled(fields), "layer": Layer(**tupled(fields["layer"]))})

    @property
    def output_size(self) -> Triple:
        depth, height, width = (
            axis.output_size(n, extra)
            for axis, n, extra in zip(self.layer.axes, self.input_size, self.output_padding, strict=True)
        )
        return depth, height, width

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the input tensor, with the layer's own number of axes."""
        return (self.batch, self.layer.in_channels, *self.input_size[3 - self.layer.spatial_dims :])

    @property
    def y_channels(self) -> int:
        """Channels of the tensor that the outputs are written to."""
        return self.into or self.layer.out_channels

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output tensor, with the layer's own number of axes."""
        return (self.batch, self.layer.out_channels, *self.output_size[3 - self.layer.spatial_dims :])

    @property
    def multiply_adds(self) -> int:
        """Products of one input element with one weight, those that fall into the padding counted as well."""
        filters = self.layer.in_channels * self.layer.out_channels_per_group
        return self.batch * filters * math.prod(self.layer.kernel) * math.prod(self.input_size)

    @property
    def bytes_moved(self) -> int:
        """The fewest bytes that must move: input, weight and bias read once, output written once."""
        layer = self.layer
        items = math.prod(self.input_shape) + math.prod(layer.weight_shape) + math.prod(self.output_shape)
        return (items + layer.out_channels * layer.bias) * layer.item_bytes
