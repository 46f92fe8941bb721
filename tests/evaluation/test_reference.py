"""Float64 results, rounding to TF32, and the bound per element."""

from __future__ import annotations

import itertools
import math
import struct

import pytest
import torch

from tconv.evaluation import reference
from tconv.evaluation.draws import draw
from tconv.evaluation.reference import exact, rounded_tf32
from tconv.evaluation.tolerance import Tolerance, half_ulp
from tconv.problem import TF32, Layer, Problem

PROBLEM = Problem(Layer(2, 4, 6, (1, 3, 2), (1, 2, 3), (0, 1, 0), (1, 2, 1), 2, True), 3, (1, 4, 5), (0, 1, 2))


def bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def from_bits(value: int) -> float:
    return struct.unpack("<f", struct.pack("<I", value))[0]


@pytest.mark.parametrize(
    ("given", "to_even", "away"),
    [
        (0x3F800000, 0x3F800000, 0x3F800000),  # 1 stays
        (0x3F800FFF, 0x3F800000, 0x3F800000),  # just below half a unit: down
        (0x3F801000, 0x3F800000, 0x3F802000),  # a tie whose even neighbour is nearer to zero
        (0xBF801000, 0xBF800000, 0xBF802000),  # so on the other side of zero
        (0x3F801001, 0x3F802000, 0x3F802000),  # just above half a unit: up
        (0x3F803000, 0x3F804000, 0x3F804000),  # the next tie, whose even neighbour is further from zero
        (0x3FFFF000, 0x40000000, 0x40000000),  # the carry moves into the exponent
        (0x7F7FFFFF, 0x7F800000, 0x7F800000),  # the largest float becomes infinite
        (0x00001000, 0x00000000, 0x00002000),  # a subnormal
        (0x80000000, 0x80000000, 0x80000000),  # -0
        (0x7F800000, 0x7F800000, 0x7F800000),  # infinity
    ],
)
def test_rounding_to_tf32_is_to_nearest_with_ties_either_way(given: int, to_even: int, away: int) -> None:
    value = torch.tensor([from_bits(given)])
    assert bits(float(rounded_tf32(value)[0])) == bits(float(rounded_tf32(value, "tf32")[0])) == to_even
    assert bits(float(rounded_tf32(value, "tf32_rna")[0])) == away


def test_rounding_to_tf32_keeps_nan_and_takes_nothing_but_float32() -> None:
    # All bits set: half a unit more would wrap round to a negative zero.
    assert math.isnan(float(rounded_tf32(torch.tensor([-1], dtype=torch.int32).view(torch.float32))[0]))
    with pytest.raises(TypeError, match="float16"):
        rounded_tf32(torch.ones(1, dtype=torch.float16))


def test_exact_is_the_definition_and_magnitude_its_absolute_terms() -> None:
    operands = draw(PROBLEM, torch.device("cpu"), 3)
    x, weight, bias = (tensor.double() for tensor in operands if tensor is not None)
    result = bias.view(1, -1, 1, 1).repeat(3, 1, *PROBLEM.output_size[1:])
    magnitude = result.abs()
    for n, c, i, j, o, k, m in itertools.product(range(3), range(4), range(4), range(5), range(3), range(3), range(2)):
        row, column = i * 2 + k * 2 - 1, j * 3 + m
        if 0 <= row < result.shape[2] and 0 <= column < result.shape[3]:
            product = x[n, c, i, j] * weight[c, o, k, m]
            result[n, c // 2 * 3 + o, row, column] += product
            magnitude[n, c // 2 * 3 + o, row, column] += product.abs()
    (part,) = exact(operands, PROBLEM)
    torch.testing.assert_close(part.result, result, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(part.magnitude, magnitude, rtol=1e-13, atol=1e-13)


def test_a_large_batch_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = draw(PROBLEM, torch.device("cpu"), 0)
    (whole,) = exact(operands, PROBLEM, rounded=True)
    monkeypatch.setattr(reference, "_K_TILE_ELEMENTS", 2 * whole.result[0].numel())
    parts = list(exact(operands, PROBLEM, rounded=True))
    assert [(part.samples, part.rows.start) for part in parts] == [(slice(0, 2), 0), (slice(2, 3), 0)]
    for name in ("result", "magnitude"):
        torch.testing.assert_close(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    for precision in TF32:
        together = torch.cat([part.rounded[precision] for part in parts])
        torch.testing.assert_close(together, whole.rounded[precision])


#: Rows that no input reaches (stride beyond kernel and dilation, output_padding), padding that cuts whole inputs off.
IN_ROWS = (
    PROBLEM,
    Problem(Layer(1, 2, 3, (1, 1, 2), (1, 1, 5), (0, 0, 1)), 2, (1, 1, 9), (0, 0, 4)),
    Problem(Layer(1, 4, 4, (1, 1, 3), (1, 1, 2), (0, 0, 7), (1, 1, 3), 2, True), 1, (1, 1, 12), (0, 0, 2)),
    Problem(Layer(2, 3, 2, (1, 4, 3), (1, 1, 1), (0, 3, 1), (1, 4, 1), 1, True), 2, (1, 5, 4)),
    Problem(Layer(3, 2, 2, (2, 3, 1), (3, 1, 2), (0, 1, 0), (1, 2, 1), 1, True), 2, (3, 4, 3), (2, 1, 1)),
)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("problem", IN_ROWS, ids=lambda problem: problem.layer.describe())
def test_a_large_sample_is_taken_in_rows(problem: Problem, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = draw(problem, torch.device("cpu"), 0)
    (whole,) = exact(operands, problem, rounded=True)
    monkeypatch.setattr(reference, "_K_TILE_ELEMENTS", rows * whole.result[0, :, 0].numel())
    results = [torch.full_like(whole.result, math.nan) for _ in range(4)]
    parts = list(exact(operands, problem, rounded=True))
    assert {part.rows.stop - part.rows.start for part in parts[:-1]} <= {rows, whole.result.shape[2] % rows}
    for part in parts:
        for result, values in zip(results, (part.result, part.magnitude, *part.rounded.values()), strict=True):
            part.of(result).copy_(values)
    for result, values in zip(results, (whole.result, whole.magnitude, *whole.rounded.values()), strict=True):
        torch.testing.assert_close(result, values, rtol=1e-13, atol=1e-13)


def test_half_an_ulp_is_half_the_distance_to_the_next_number() -> None:
    values = [1.0, 1.5, -1.999, 2.0, 3e-5, 65504.0, 1e-7, 0.0]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        near = torch.tensor(values, dtype=dtype)
        # Away from zero the distance is the unit of the binade; the largest float16 has infinity above it.
        above = torch.nextafter(near.abs(), torch.tensor(math.inf, dtype=dtype)).double()
        expected = (above - near.abs().double()) / 2
        finite = above.isfinite()
        torch.testing.assert_close(half_ulp(near.double(), dtype)[finite], expected[finite], rtol=0, atol=0)
    assert float(half_ulp(torch.tensor([65504.0], dtype=torch.float64), torch.float16)) == 16


def test_what_each_arithmetic_is_allowed() -> None:
    layer = Layer(1, 64, 8, (1, 1, 4), (1, 1, 2))  # 64 channels of two taps
    assert Tolerance.of(layer, "fp32").factor == 8 * 2.0**-24 + 3 * 2.0**-22
    assert Tolerance.of(layer, "tf32").factor == (8 + 128 / 32) * 2.0**-24 + 2 * 2.0**-11
    assert Tolerance.of(layer, "bf16").factor == (8 + 128 / 32) * 2.0**-24
    assert Tolerance.of(layer, "fp64").factor == 8 * 2.0**-53
    assert Tolerance.of(layer, "fp32").pooled_floor == pytest.approx((0.5 * math.sqrt(128) + 1) * 2.0**-24)
