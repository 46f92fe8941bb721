"""The kernel for any dense layer, which written files alone have: right in the emulator, compiled for every arch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from any_layer import NAME, Mistake, emulated, problems, shows
from kernel_runs import integer_tensors, random_tensors, worst

from tconv.emulator import Mode, Order
from tconv.jit.compile import compile_source
from tconv.kernels.source import ANY_DENSE_LAYER, header_directory, unit
from tconv.planner import Kernel
from tconv.problem import Layer, Precision

#: Each needs a part of the kernel that others do not.
LAYERS = {
    "few channels": Layer(1, 5, 3, (1, 1, 4), (1, 1, 2)),
    "fewer taps in one phase": Layer(1, 5, 3, (1, 1, 3), (1, 1, 2)),
    "a whole chunk of input channels": Layer(2, 32, 12, (1, 2, 3), bias=True),
    "a chunk and one channel": Layer(2, 33, 20, (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    "phases without taps": Layer(2, 18, 33, (1, 3, 3), (1, 5, 5), (0, 1, 1), (1, 2, 2), bias=True),
    "four warps high": Layer(1, 20, 70, (1, 1, 16), (1, 1, 8), (0, 0, 4), bias=True),
    "two blocks of rows": Layer(2, 40, 130, (1, 1, 2), (1, 1, 2)),
    "whole rows of taps at once": Layer(2, 16, 8, (1, 2, 7), (1, 1, 1), (0, 1, 2), (1, 1, 3)),
    "rows of taps in parts": Layer(2, 16, 70, (1, 2, 7), (1, 1, 2), (0, 1, 2)),
    "a dilation beyond a block": Layer(1, 16, 8, (1, 1, 3), dilation=(1, 1, 90)),
    "groups in 3-D": Layer(3, 36, 34, (2, 3, 4), (2, 1, 3), (0, 1, 2), (1, 2, 1), groups=2, bias=True),
    "padding beyond the kernel": Layer(2, 17, 9, (1, 2, 2), (1, 2, 2), (0, 3, 4)),
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "tf32_rna", "fp16", "bf16")


@pytest.mark.rotates(16)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_right(name: str, precision: Precision) -> None:
    for problem in problems(LAYERS, name, precision):
        tensors = random_tensors(problem)
        assert worst(problem, tensors, emulated(ANY_DENSE_LAYER, problem, tensors)) <= 1


@pytest.mark.rotates(16)
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_exact_on_integers_in_any_order_with_wide_indices(name: str) -> None:
    for problem in problems(LAYERS, name, "tf32"):
        tensors = integer_tensors(problem)
        first = emulated(ANY_DENSE_LAYER, problem, tensors)
        assert worst(problem, tensors, first) == 0
        orders: tuple[Order, ...] = ("descending", "random")
        for order in orders:
            assert torch.equal(emulated(ANY_DENSE_LAYER, problem, tensors, order=order, wide=True), first)


@pytest.mark.rotates(16)
@pytest.mark.parametrize("mode", ["address", "thread"])
@pytest.mark.parametrize("name", LAYERS)
def test_it_stays_in_bounds_and_has_no_races(name: str, mode: Mode) -> None:
    problem = problems(LAYERS, name, "fp32" if "chunk" in name else "fp16")[0]
    tensors = random_tensors(problem)
    assert worst(problem, tensors, emulated(ANY_DENSE_LAYER, problem, tensors, mode)) <= 1


MISTAKES: dict[str, Mistake] = {
    "no wait for copies": ("copies.template wait<0>();\n", "", "few channels", "plain"),
    "stages overwritten while they are read": (
        "__syncthreads();  // this step has landed, and nobody reads the other stage any more",
        "",
        "a chunk and one channel",
        "thread",
    ),
    "sums overwritten": (
        "__syncthreads();  // nobody reads what was there any more",
        "",
        "a chunk and one channel",
        "thread",
    ),
    "sums read before they are there": (
        "__syncthreads();\n    for (int column",
        "for (int column",
        "few channels",
        "thread",
    ),
    "one stage for both": (
        "other = shared + Tile::stage_bytes;",
        "other = shared;",
        "a chunk and one channel",
        "thread",
    ),
    "channels beyond the last read": (
        "CI % Tile::chunk_channels == 0 || chunk * Tile::chunk_channels + i < CI",
        "true",
        "a chunk and one channel",
        "address",
    ),
    "weights of channels beyond the last": (
        "in_channel < Layer::group_in_channels && out",
        "out",
        "a chunk and one channel",
        "address",
    ),
    "weights of rows beyond the last": (
        " && out_channel < Layer::group_out_channels",
        "",
        "a chunk and one channel",
        "address",
    ),
    "channels beyond the last stored": ("if (channel >= CO) continue;\n", "", "few channels", "address"),
    "columns before a row stored": ("place.width < 0 || ", "", "few channels", "address"),
    "places at the wrong shift": ("- tap * Width::shift_period", "- tap", "whole rows of taps at once", "plain"),
    "a tap that a phase does not have": ("&& half < 2 * taps", "", "a chunk and one channel", "plain"),
    "the wrong taps of a row": ("widths.has(k) && ", "", "fewer taps in one phase", "address"),
    "phases without taps multiplied": (
        "is_left = depths.has(0) && heights.has(0) && widths.has(0)",
        "is_left = true",
        "phases without taps",
        "address",
    ),
    "positions of no sample read": ("places[p].sample >= 0 && ", "", "few channels", "address"),
    "the left border unchecked": (
        "in_range(column, input_width)",
        "column < input_width",
        "few channels",
        "address",
    ),
    "the same taps for all phases of the height": (
        "heights(height_phase);",
        "heights(0);",
        "a chunk and one channel",
        "plain",
    ),
    "a group's input channels from the first group": (
        "* Layer::groups + group) * CI",
        "* Layer::groups) * CI",
        "groups in 3-D",
        "plain",
    ),
    "the second block of rows stores as the first": (
        "weight_set % Tile::row_blocks * Tile::rows;",
        "0;",
        "two blocks of rows",
        "thread",
    ),
    "an output row too many": ("row >= output_height", "row > output_height", "a chunk and one channel", "address"),
    "what rounding leaves is left out": (
        "for (int q = Tile::planes - 1 - p; q >= 0; --q)",
        "for (int q = 0; q < 1 && p == 0; ++q)",
        "a chunk and one channel",
        "plain",
    ),
}


@pytest.mark.rotates(16)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str) -> None:
    planted = MISTAKES[mistake]
    assert any(shows(ANY_DENSE_LAYER, problem, planted) for problem in problems(LAYERS, planted[2], "fp32"))


@pytest.mark.rotates(48)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_it_compiles_for_every_arch_without_spills(name: str, precision: Precision) -> None:
    """Registers are enough for the blocks that it asks for."""
    layer = replace(LAYERS[name], precision=precision)
    for wide in (False, True):
        source = unit(Kernel(ANY_DENSE_LAYER, layer, None, wide), NAME)
        for arch in ("sm_80", "sm_86", "sm_90", "sm_120"):
            compiled = compile_source(source, arch, headers=header_directory())
            assert not compiled.spill_bytes
