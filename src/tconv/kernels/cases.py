"""Small problems that together reach every value of every parameter of a layer; kernels are instantiated for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tconv.planner import Kernel
from tconv.problem import Layer, Precision, Problem, Triple


@dataclass(frozen=True)
class Instance:
    """A kernel and a small problem that it solves."""

    name: str
    problem: Problem
    kernel: Kernel[Any]


@dataclass(frozen=True)
class Case:
    """A problem but for its precision; sizes are of the layer's own axes."""

    channels: tuple[int, int]
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = False
    batch: int = 2

    def problem(self, precision: Precision) -> Problem:
        dims = len(self.size)

        def triple(values: tuple[int, ...], missing: int) -> Triple:
            depth, height, width = (missing,) * (3 - len(values)) + values
            return depth, height, width

        layer = Layer(
            dims,
            *self.channels,
            triple(self.kernel, 1),
            triple(self.stride, 1),
            triple(self.padding, 0),
            triple(self.dilation, 1),
            self.groups,
            self.bias,
            precision,
        )
        return Problem(layer, self.batch, triple(self.size, 1), triple(self.output_padding, 0))


#: Programs behind a layer that together have every kind of operand: none, and those of channels, are known before an
#: output is; others are read with it. All but the last give the same numbers wherever integers are exact.
PROGRAMS: dict[str, str] = {
    "relu": "max(y, 0)",
    "affine": "max(y * (channel0 * 2 + 1) + channel1, scalar2)",
    "residual": "t0 = y + output0; where(t0 > 1, t0, -t0) * output1",
    "gated": "min(max(y, -4), 6) * sample0 + output1 - channel2",
    "mish": "t0 = exp(min(y, 20)); t1 = t0 * (t0 + 2); y * (t1 / (t1 + 2)) + 0.5 * output0",
}

#: What is instantiated in every precision; of the others each case has its turn of one.
IN_EVERY_PRECISION = ("2d-k3-s5-d2", "1d-k4-s2", "1d-k64-s32", "2d-k3-s1", "2d-k3-s2-op1", "2d-k3-s2-aligned")

CASES: dict[str, Case] = {
    "2d-k3-s5-d2": Case((4, 10), (7, 9), (3, 3), (5, 5), (1, 1), (2, 2), bias=True),
    "1d-k4-s2": Case((6, 5), (37,), (4,), (2,), (1,), bias=True),
    "1d-k64-s32": Case((3, 2), (9,), (64,), (32,), (7,), bias=True),
    "2d-k3-s1": Case((5, 9), (6, 35), (3, 3), (1, 1), (1, 1)),
    "1d-k1-s1": Case((3, 4), (33,), (1,), (1,)),
    "1d-k1-s3": Case((3, 4), (11,), (1,), (3,), output_padding=(2,), bias=True),
    "1d-k2-s7": Case((2, 3), (10,), (2,), (7,), output_padding=(6,), bias=True),
    "1d-k2-s3-p5": Case((2, 3), (12,), (2,), (3,), (5,), output_padding=(2,)),
    "1d-k16-s8": Case((5, 6), (11,), (16,), (8,), (4,), bias=True),
    "1d-k20-s10": Case((3, 5), (9,), (20,), (10,), (5,)),
    "1d-k5-s1-d3": Case((3, 3), (20,), (5,), (1,), (6,), (3,), (2,)),
    "1d-k7-s6-d4": Case((4, 3), (13,), (7,), (6,), (2,), (4,), (3,), bias=True),
    "1d-k50-s48-d4": Case((2, 2), (4,), (50,), (48,), (3,), (4,), (5,), bias=True),
    "1d-k50-s72-d4": Case((2, 3), (4,), (50,), (72,), (3,), (4,), (9,), bias=True),
    "1d-k90-s40-d3": Case((2, 1), (5,), (90,), (40,), (11,), (3,)),
    "1d-k600-s1": Case((2, 3), (40,), (600,), (1,)),
    "1d-k1000-s100": Case((3, 1), (3,), (1000,), (100,), bias=True),
    "1d-k2-s200": Case((2, 5), (5,), (2,), (200,), (100,), bias=True),
    "2d-k2-s2": Case((8, 6), (5, 7), (2, 2), (2, 2), bias=True),
    "2d-k3-s2-op1": Case((7, 4), (5, 6), (3, 3), (2, 2), (1, 1), (), (1, 1)),
    "2d-k4-s2-depthwise": Case((6, 6), (6, 9), (4, 4), (2, 2), (1, 1), groups=6),
    "2d-k4-s2-multiplier": Case((3, 6), (5, 5), (4, 4), (2, 2), (1, 1), groups=3, bias=True),
    "2d-asymmetric-grouped": Case((52, 12), (7, 8), (3, 5), (2, 3), (1, 2), (2, 1), (1, 2), groups=4),
    "2d-k9-s4-one": Case((9, 1), (4, 5), (9, 9), (4, 4), (4, 4), (), (3, 3), bias=True),
    "2d-rows-only": Case((3, 4), (6, 7), (3, 1), (2, 1), (1, 0)),
    "2d-columns-only": Case((3, 4), (6, 7), (1, 3), (1, 2), (0, 1)),
    "2d-many-row-phases": Case((3, 5), (3, 8), (1, 3), (70, 2), (2, 1), bias=True),
    "2d-op-beyond-stride": Case((2, 3), (5, 6), (2, 3), (2, 1), (1, 1), (5, 3), (4, 2)),
    "2d-many-out": Case((3, 70), (3, 5), (2, 2), (2, 2), bias=True),
    "2d-many-in": Case((700, 3), (3, 4), (3, 3), (2, 2), (1, 1), batch=1),
    "2d-staged": Case((330, 40), (3, 4), (4, 4), (2, 2), (1, 1), bias=True, batch=1),
    "1d-k40-s20-staged": Case((300, 40), (5,), (40,), (20,), (10,), batch=1),
    "2d-dense": Case((40, 40), (5, 6), (3, 3), (1, 1), (1, 1), bias=True, batch=1),
    "2d-one-pixel": Case((20, 18), (1, 1), (4, 4), (1, 1)),
    "3d-k2-s2": Case((4, 3), (3, 4, 5), (2, 2, 2), (2, 2, 2), bias=True),
    "3d-k3x5x7-grouped": Case((8, 8), (3, 4, 5), (3, 5, 7), (2, 2, 2), (1, 2, 3), (), (1, 1, 1), groups=4),
    "3d-k1x3x3": Case((4, 3), (3, 4, 4), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    "2d-k3-s2-odd": Case((7, 4), (5, 6), (3, 3), (2, 2), (1, 1)),
    "3d-dilated-depth": Case((2, 3), (4, 3, 3), (3, 2, 2), (2, 3, 1), (1, 1, 0), (3, 2, 2), (2, 1, 1), bias=True),
    "2d-k3-s2-aligned": Case((19, 6), (3, 24), (3, 3), (2, 2), (1, 1), (), (1, 1), bias=True),
    "2d-k3-s2-many-out": Case((9, 20), (4, 5), (3, 3), (2, 2), (1, 1), bias=True),
    "2d-k4-s2-full": Case((20, 16), (4, 5), (4, 4), (2, 2), (1, 1), bias=True, batch=1),
    "1d-k20-s10-full": Case((9, 16), (5,), (20,), (10,), (5,), batch=1),
    "1d-k16-s8-full": Case((20, 16), (5,), (16,), (8,), (4,), batch=1),
    "2d-k2-s2-aligned": Case((70, 6), (3, 16), (2, 2), (2, 2), bias=True),
    "2d-k3x2-s2x2-aligned": Case((40, 16), (3, 24), (3, 2), (2, 2), (1, 0)),
    "1d-k3-s3-aligned": Case((35, 5), (40,), (3,), (3,), bias=True),
    # Stride and dilation have a common factor: most phases have no taps, the others have several.
    "3d-k3-s2-d2": Case((9, 6), (2, 3, 5), (3, 3, 3), (2, 2, 2), (1, 1, 1), (2, 2, 2), bias=True, batch=1),
    "2d-k4-s4-d2": Case((20, 16), (3, 8), (4, 3), (4, 2), (1, 2), (2, 4), (1, 0), bias=True),
    "1d-k3-s2-d2-aligned": Case((19, 16), (24,), (3,), (2,), (1,), (2,), bias=True),
    "2d-k4-s2-d2-aligned": Case((20, 16), (3, 8), (4, 4), (2, 2), (1, 2), (2, 2), (0, 1), bias=True),
}
