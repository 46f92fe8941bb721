"""Which families of kernels a file has: each is hundreds of lines."""

from __future__ import annotations

import pytest
from codegen_helpers import EXAMPLES, planned_layers

from tconv.planner import FAMILIES, Gpu
from tconv.problem import Layer, Problem
from tconv.rewriter.planning import _at_other_sizes

H200 = Gpu.h200()
#: HiFi-GAN's, which `col2im_wgmma` runs at these sizes alone.
DENSE = Problem(Layer(1, 128, 64, (1, 1, 16), (1, 1, 8), (0, 0, 4), bias=True, precision="tf32"), 1, (1, 1, 2048))
NARROW = Problem(Layer(1, 24, 16, (1, 1, 4), (1, 1, 2), (0, 0, 1), bias=True, precision="tf32"), 1, (1, 1, 32768))


def test_one_family_runs_all_layers_at_other_sizes() -> None:
    """Not the fastest one of each: that would be a family more."""
    layers = planned_layers(EXAMPLES / "vocoder.py")
    assert {layer.plan.kernel.family for layer in layers} == {"col2im_wgmma"}
    assert {layer.any_size.kernel.family for layer in layers if layer.any_size} == {"mma"}


@pytest.mark.parametrize(
    ("problem", "families", "found"),
    [
        (NARROW, ("col2im_wgmma", "direct"), ("direct",)),
        (NARROW, ("col2im_wgmma", "mma"), ("mma",)),  # hardly slower than `direct`
        (DENSE, ("col2im_wgmma", "wgmma"), ("wgmma",)),
        (DENSE, ("col2im_wgmma",), ("mma",)),
        (DENSE, ("wgmma",), ()),
    ],
)
def test_what_is_there_runs_other_sizes_if_it_is_not_much_slower(
    problem: Problem, families: tuple[str, ...], found: tuple[str, ...]
) -> None:
    fastest = {name: 1e-6 * (1 + place) for place, name in enumerate(families)}
    assert _at_other_sizes({problem: fastest}, families, H200) == found


def test_a_family_that_is_much_slower_is_not_enough() -> None:
    wide = Problem(Layer(2, 512, 256, (1, 4, 4), (1, 2, 2), (0, 1, 1), precision="fp16"), 16, (1, 32, 32))
    found = _at_other_sizes({wide: {"col2im_wgmma": 1e-5, "direct": 1.0}}, ("col2im_wgmma", "direct"), H200)
    assert len(found) == 1 and found != ("direct",) and FAMILIES[found[0]].any_size
