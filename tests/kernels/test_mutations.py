"""One-line mistakes in the `direct` kernel, each of which the instances must catch."""

from __future__ import annotations

import pytest
from kernel_runs import INSTANCES, emulate, random_tensors, worst

from tconv.emulator import EmulatorError
from tconv.kernels import source

# What is changed, into what, which instance shows it, and how the emulator is run.
MUTATIONS = {
    "phase counted from the wrong end": (
        "const int tap_number = Shape::all_taps ? j : tap_chunk + j;",
        "const int tap_number = Shape::all_taps ? Tile::chunk_taps - 1 - j : tap_chunk + j;",
        "1d-k4-s2-fp32-narrow",
        "plain",
    ),
    "shift ignores the dilation": (
        "tap_number * Width::shift_period;",
        "tap_number;",
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
        "at.width[p] * Width::stride - Width::padding,",
        "at.width[p] * Width::stride,",
        "1d-k4-s2-fp32-narrow",
        "plain",
    ),
    "left border unchecked": (
        "if (column >= 0 && column < input_columns[p])",
        "if (column < input_columns[p])",
        "1d-k4-s2-fp32-narrow",
        "address",
    ),
    "right border off by one": (
        "if (column >= 0 && column < input_columns[p])",
        "if (column >= 0 && column <= input_columns[p])",
        "2d-k3-s1-fp32-narrow",
        "plain",
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
        "if (!Shape::whole_channels && c >= channels) break;",
        "",
        "2d-many-out-fp16-narrow",
        "plain",
    ),
    "columns without taps left out": (
        "(tap < Width::kernel ? tap : Tile::phases)",
        "(tap < Width::kernel ? tap : 0)",
        "2d-k3-s5-d2-fp32-narrow",
        "plain",
    ),
    "depth phases left out": (
        "const int depth_phase = row_phase / Height::stride, height_phase = row_phase % Height::stride;",
        "const int depth_phase = row_phase % Height::stride, height_phase = row_phase % Height::stride;",
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
        "direct_stage<Layer, Tile>(part, weight, staged, 0, 0, 0);\n    __syncthreads();",
        "direct_stage<Layer, Tile>(part, weight, staged, 0, 0, 0);",
        "2d-k3-s1-fp32-wide",
        "thread",
    ),
    "stage overwritten while in use": (
        "if (!Shape::resident) {\n                __syncthreads();",
        "if (!Shape::resident) {",
        "2d-staged-fp32-narrow",
        "thread",
    ),
    "exchange read before it is written": (
        "          __syncwarp();\n          direct_store_exchanged",
        "          direct_store_exchanged",
        "1d-k4-s2-fp32-narrow",
        "thread",
    ),
    "one item more than shared memory holds": (
        "i < Shape::weight_items;",
        "i <= Shape::weight_items + Shape::exchange_items;",
        "2d-k3-s1-fp32-narrow",
        "address",
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
