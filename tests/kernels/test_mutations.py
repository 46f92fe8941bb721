"""One-line mistakes in the `direct` kernel, each of which the instances must catch."""

from __future__ import annotations

import pytest
from kernel_runs import INSTANCES, emulate, random_tensors, worst

from tconv.emulator import EmulatorError
from tconv.kernels import source

# What is changed, into what, which instance shows it, and how the emulator is run.
MUTATIONS = {
    "phase counted from the wrong end": (
        "const int item = j * Shape::tap_items + a * Tile::phase_lanes * Tile::channels;",
        "const int item = (Tile::chunk_taps - 1 - j) * Shape::tap_items + a * Tile::phase_lanes * Tile::channels;",
        "1d-k4-s2-fp32-narrow",
        "plain",
    ),
    "shift ignores the dilation": (
        "phases.first_shifts[a] + j * Width::shift_period, has_tap);",
        "phases.first_shifts[a] + j, has_tap);",
        "1d-k5-s1-d3-bf16-narrow",
        "plain",
    ),
    "first tap without the modular inverse": (
        "if (inverse > 1) tap =",
        "if (false) tap =",
        "1d-k90-s40-d3-tf32_rna-narrow",
        "plain",
    ),
    "padding forgotten in the column": (
        "* Stride - Padding);",
        "* Stride);",
        "1d-k4-s2-fp32-narrow",
        "plain",
    ),
    "left border unchecked": (
        "static_cast<unsigned>(index) < static_cast<unsigned>(count)",
        "index < count",
        "1d-k4-s2-fp32-narrow",
        "address",
    ),
    "right border off by one": (
        "in_range(column - shift + p * Tile::columns, columns[r])",
        "in_range(column - shift + p * Tile::columns, columns[r] + 1)",
        "2d-k3-s1-fp32-narrow",
        "plain",
    ),
    "origin left out of the column": (
        "at.width * Width::stride - Tile::origin,",
        "at.width * Width::stride,",
        "2d-k3-s5-d2-fp32-narrow",
        "plain",
    ),
    "rows of a warp mixed up": (
        "offset = row - row_of_run * run;",
        "offset = row;",
        "2d-k3-s5-d2-fp32-narrow",
        "plain",
    ),
    "vectors stored in unaligned rows": (
        "output_width % Shape::vector == 0;",
        "true;",
        "2d-k3-s2-odd-fp32-narrow",
        "address",
    ),
    "channels read beyond the last": (
        "(Layer::in_channels % Tile::unroll == 0 || k < channels)",
        "(true)",
        "2d-k3-s2-op1-fp32-narrow",
        "address",
    ),
    "group left out of the weight offset": (
        "(static_cast<long long>(part.group) * Layer::in_channels + in_channel)",
        "(static_cast<long long>(in_channel))",
        "2d-asymmetric-grouped-fp16-narrow",
        "plain",
    ),
    "group left out of the bias": (
        "bias + part.group * CO + own_channel + c",
        "bias + own_channel + c",
        "2d-k4-s2-multiplier-fp16-narrow",
        "plain",
    ),
    "partial channel tile written": (
        "const int c = n / Shape::sum_rows;\n      if (!Shape::whole_channels && c >= target.channels) break;",
        "const int c = n / Shape::sum_rows;",
        "2d-k3-s5-d2-fp32-wide",
        "plain",
    ),
    "columns without taps left out": (
        "if (exchanges) direct_clear_buffer<Layer, Tile>(buffer);",
        "",
        "2d-k3-s5-d2-fp32-narrow",
        "plain",
    ),
    "depth phases left out": (
        "const int depth_phase = row_phase / height_phases, height_phase = row_phase % height_phases;",
        "const int depth_phase = 0, height_phase = row_phase % height_phases;",
        "3d-k2-s2-bf16-narrow",
        "plain",
    ),
    "operands not rounded": (
        "if (rounding == Rounding::none || (bits & 0x7f800000u) == 0x7f800000u) return value;",
        "return value;",
        "2d-k3-s1-tf32-narrow",
        "plain",
    ),
    "operands truncated": (
        "bits_float((bits + half_unit) & 0xffffe000u)",
        "bits_float(bits & 0xffffe000u)",
        "2d-k3-s1-tf32-narrow",
        "plain",
    ),
    "ties rounded away instead of to even": (
        "rounding == Rounding::ties_away ? 0x1000u",
        "true ? 0x1000u",
        "2d-k3-s1-tf32-narrow",
        "plain",
    ),
    "ties rounded to even instead of away": (
        "rounding == Rounding::ties_away ? 0x1000u",
        "false ? 0x1000u",
        "2d-k3-s1-tf32_rna-narrow",
        "plain",
    ),
    "staged weights used before the barrier": (
        "direct_clear_buffer<Layer, Tile>(buffer);\n    __syncthreads();",
        "direct_clear_buffer<Layer, Tile>(buffer);",
        "2d-k3-s1-fp32-wide",
        "thread",
    ),
    "stage overwritten while in use": (
        "if (!Shape::resident) {\n                __syncthreads();",
        "if (!Shape::resident) {",
        "2d-many-in-fp64-narrow",
        "thread",
    ),
    "exchange read before it is written": (
        "      __syncwarp();\n    }\n#pragma unroll",
        "    }\n#pragma unroll",
        "1d-k2-s7-fp32-narrow",
        "thread",
    ),
    "one item more than shared memory holds": (
        "i < Shape::weight_items;",
        "i <= Shape::weight_items + Shape::other_items;",
        "2d-k3-s1-fp32-narrow",
        "address",
    ),
    "rows of positions swapped": (
        "return stacked ? row + top_shift - Height::shift_of(tap) : 0;",
        "return stacked ? Tile::rows - 1 - row + top_shift - Height::shift_of(tap) : 0;",
        "2d-k4-s2-depthwise-fp32-tiled",
        "plain",
    ),
    "origin of rows left out": (
        "at.height * Height::stride - Tile::row_origin + height_phase;",
        "at.height * Height::stride + height_phase;",
        "2d-k4-s2-depthwise-fp32-stacked",
        "plain",
    ),
    "tile placed one row too low": (
        "at.height - tile_row - Shape::top_shift,",
        "at.height - tile_row - Shape::top_shift + 1,",
        "2d-k3-s5-d2-fp32-tiled",
        "plain",
    ),
    "stage of inputs read before all have written it": (
        "    // All have written this stage, and have read the other one, which is written next.\n    __syncthreads();",
        "",
        "2d-k3-s5-d2-fp32-tiled",
        "thread",
    ),
    "one stage of inputs instead of two": (
        "stage ^= 1;",
        "",
        "2d-asymmetric-grouped-fp32-tiled",
        "thread",
    ),
    "a split multiplies another's weights": (
        "own_weights += split * Tile::unroll * Shape::channel_items;",
        "",
        "2d-asymmetric-grouped-fp32-split",
        "plain",
    ),
    "the last split left out": (
        "other < Tile::splits;",
        "other < Tile::splits - 1;",
        "2d-asymmetric-grouped-fp32-split",
        "plain",
    ),
    "sums joined before they are there": (
        "  __syncthreads();\n  if (split > 0) return;",
        "  if (split > 0) return;",
        "2d-asymmetric-grouped-fp32-split",
        "thread",
    ),
    "inputs asked for ahead of the wrong channel": (
        "next.load(x, row_pitch, column, columns, plane, left,",
        "next.load(x - plane, row_pitch, column, columns, plane, left,",
        "2d-asymmetric-grouped-fp32-stacked",
        "plain",
    ),
    "a line stored from another line's place": (
        "line[step * Shape::exchange_pitch + lane - ahead]",
        "line[step * Shape::exchange_pitch + lane]",
        "2d-k3-s5-d2-fp32-wide",
        "plain",
    ),
}


def instance_of(name: str):
    """The named instance, or the one of another precision in its place: which one a case has is no matter here."""
    case, _, width = name.rsplit("-", 2)
    others = (i for n, i in INSTANCES.items() if n.startswith(case + "-") and n.endswith(width))
    return INSTANCES.get(name) or next(others)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutation_is_caught(mutation):
    old, new, name, mode = MUTATIONS[mutation]
    instance = instance_of(name)
    text = source.inlined([(instance.kernel, "tconv_kernel")])
    assert text.count(old) == 1, "the kernel has changed: the mutation must be adapted"
    tensors = random_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, mode, text=text)) <= 1
    try:
        y = emulate(instance, tensors, mode, text=text.replace(old, new))
    except EmulatorError:
        return
    assert worst(instance.problem, tensors, y) > 1
