"""The kernel for any layer, which written files alone have: right in the emulator, and compiled for every arch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from any_layer import NAME, Mistake, emulated, problems, shows
from kernel_runs import integer_tensors, random_tensors, worst

from tconv.emulator import Mode, Order
from tconv.jit.compile import compile_source
from tconv.kernels.source import ANY_LAYER, header_directory, unit
from tconv.planner import Kernel
from tconv.problem import PRECISIONS, Layer, Precision

#: Each needs a part of the kernel that others do not.
LAYERS = {
    "one channel": Layer(1, 1, 1, (1, 1, 4), (1, 1, 2)),
    "a partial block of channels": Layer(2, 3, 11, (1, 2, 3), bias=True),
    "phases of height and width": Layer(2, 4, 5, (1, 3, 4), (1, 2, 4)),
    "phases of the width in the lanes": Layer(2, 5, 3, (1, 3, 3), (1, 5, 5), (0, 1, 1), (1, 2, 2), bias=True),
    "lanes without a phase": Layer(1, 2, 9, (1, 1, 20), (1, 1, 12), (0, 0, 4)),
    "more phases than lanes": Layer(1, 4, 2, (1, 1, 5), (1, 1, 200), groups=2, bias=True),
    "input channels in 2 shares": Layer(2, 65, 4, (1, 3, 3), padding=(0, 1, 1)),
    "input channels in 8 shares": Layer(1, 515, 10, (1, 1, 3), (1, 1, 2), bias=True),
    "depthwise in 3-D": Layer(3, 6, 6, (2, 3, 4), (2, 1, 3), (0, 1, 2), (1, 2, 1), groups=6),
    "padding beyond the kernel": Layer(2, 3, 3, (1, 2, 2), (1, 2, 2), (0, 3, 4)),
}


@pytest.mark.rotates(8)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp64"])
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_right(name: str, precision: Precision) -> None:
    """TF32 is a permission, of which it makes no use."""
    for problem in problems(LAYERS, name, precision):
        exact = replace(problem, layer=replace(problem.layer, precision="fp32" if precision == "tf32" else precision))
        tensors = random_tensors(exact)
        assert worst(exact, tensors, emulated(ANY_LAYER, problem, tensors)) <= 1


@pytest.mark.rotates(8)
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_exact_on_integers_in_any_order_with_wide_indices(name: str) -> None:
    for problem in problems(LAYERS, name, "fp32"):
        tensors = integer_tensors(problem)
        first = emulated(ANY_LAYER, problem, tensors)
        assert worst(problem, tensors, first) == 0
        orders: tuple[Order, ...] = ("descending", "random")
        for order in orders:
            assert torch.equal(emulated(ANY_LAYER, problem, tensors, order=order, wide=True), first)


@pytest.mark.rotates(8)
@pytest.mark.parametrize("mode", ["address", "thread"])
@pytest.mark.parametrize("name", LAYERS)
def test_it_stays_in_bounds_and_has_no_races(name: str, mode: Mode) -> None:
    problem = problems(LAYERS, name, "fp32")[0]
    tensors = random_tensors(problem)
    assert worst(problem, tensors, emulated(ANY_LAYER, problem, tensors, mode)) <= 1


MISTAKES: dict[str, Mistake] = {
    "all shares store": ("if (split > 0) return;", "", "input channels in 2 shares", "thread"),
    "sums overwritten while they are read": (
        "__syncthreads();  // what lay there has been read",
        "",
        "input channels in 2 shares",
        "thread",
    ),
    "shares added twice": ("for (int other = 1;", "for (int other = 0;", "input channels in 8 shares", "plain"),
    "channels beyond the last stored": (
        "if (first_channel + o >= CO) break;",
        "if (o >= CO) break;",
        "a partial block of channels",
        "address",
    ),
    "weights of channels that do not exist": (
        "CO % Tile::channels == 0 || first_channel + o < CO ? o : 0",
        "o",
        "a partial block of channels",
        "address",
    ),
    "positions of no sample read": ("samples[p] >= 0 && in_range(depths", "in_range(depths", "one channel", "address"),
    "lanes beyond the phases work": (
        "lane_position < Tile::lane_positions ? place.sample : -1",
        "place.sample",
        "lanes without a phase",
        "thread",
    ),
    "the left border unchecked": (
        "in_range(widths[p] - shift, input_width)",
        "widths[p] - shift < input_width",
        "one channel",
        "address",
    ),
    "the wrong phase of the height": (
        "phase / width_phases % Height::stride",
        "phase % Height::stride",
        "phases of height and width",
        "plain",
    ),
    "a group's input channels from the first group": (
        "* Layer::groups + group) * CI",
        "* Layer::groups) * CI",
        "depthwise in 3-D",
        "plain",
    ),
    "an output row too many": ("row >= output_height", "row > output_height", "phases of height and width", "address"),
}


@pytest.mark.rotates(8)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str) -> None:
    planted = MISTAKES[mistake]
    assert any(shows(ANY_LAYER, problem, planted) for problem in problems(LAYERS, planted[2], "fp32"))


@pytest.mark.rotates(48)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_it_compiles_for_every_arch_without_spills(name: str, precision: Precision) -> None:
    """Registers are enough for the blocks that it asks for."""
    layer = replace(LAYERS[name], precision=precision)
    for wide in (False, True):
        source = unit(Kernel(ANY_LAYER, layer, None, wide), NAME)
        for arch in ("sm_75", "sm_80", "sm_90", "sm_120"):
            compiled = compile_source(source, arch, headers=header_directory())
            assert not compiled.spill_bytes
