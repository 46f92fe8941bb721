"""Plans of the `col2im_wgmma` family, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_planner_col2im import A100, CUBES, H200, IMAGES, LONG, ODD, SQUARES

from tconv.planner import COL2IM_WGMMA, Kernel, Question, Unplannable, choose
from tconv.planner.choice import replan
from tconv.planner.col2im_wgmma.candidates import candidates, fits
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape
from tconv.planner.input_order import input_preparation
from tconv.planner.numbers import length, single
from tconv.planner.sizes import equivalent, with_strides
from tconv.problem import Layer, Problem

#: Of HiFi-GAN, in both of its sizes.
VOCODERS = (
    Problem(Layer(1, 512, 256, (1, 1, 16), (1, 1, 8), (0, 0, 4), bias=True, precision="fp16"), 1, (1, 1, 800)),
    Problem(Layer(1, 512, 256, (1, 1, 16), (1, 1, 8), (0, 0, 4), bias=True, precision="tf32"), 16, (1, 1, 32)),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dims = draw(st.integers(1, 3))

    def axes(low: int, high: int, filler: int) -> tuple[int, int, int]:
        drawn = [draw(st.integers(low, high)) for _ in range(dims)]
        depth, height, width = [filler] * (3 - dims) + drawn
        return depth, height, width

    kernel, stride, dilation = axes(1, 5, 1), axes(1, 4, 1), axes(1, 2, 1)
    channels = draw(st.sampled_from([32, 40, 63, 130])), draw(st.sampled_from([9, 16, 50]))
    precision = draw(st.sampled_from(["tf32", "fp16", "bf16"]))
    layer = Layer(dims, *channels, kernel, stride, dilation=dilation, precision=precision)
    problem = Problem(layer, draw(st.integers(1, 5)), axes(1, 40 if dims < 3 else 7, 1))
    assume(COL2IM_WGMMA.why_not(problem, H200) is None)
    return problem


@settings(max_examples=60, deadline=None)
@given(problems(), st.booleans())
def test_its_tiles_are_for_the_very_sizes(problem: Problem, last: bool) -> None:
    own = equivalent(problem)
    tiles = candidates(own, H200, last)
    assume(tiles is not None)
    for place in range(0, length(tiles), 41):
        tile = single(tiles, place)
        shape = Col2imWgmmaShape(own.layer, tile)
        assert fits(own, tile)
        assert shape.shared_bytes <= H200.shared_bytes_per_block and shape.registers * shape.threads <= 65536
        assert shape.stages_ahead >= 1 and tile.stages <= shape.set_k_tiles
        assert bool(tile.channels_last) == last
    plan = COL2IM_WGMMA.plan(problem, H200, last)
    assert COL2IM_WGMMA.runs(plan.kernel, problem)


def test_it_is_chosen_on_hopper_where_weights_are_most_of_the_work() -> None:
    for problem in (CUBES, SQUARES, ODD, *VOCODERS):
        assert choose(Question(problem), H200).kernel.family == "col2im_wgmma"
        assert choose(Question(problem), A100).kernel.family != "col2im_wgmma"
    with pytest.raises(Unplannable, match="needs sm_90a"):
        COL2IM_WGMMA.plan(CUBES, A100)


def test_one_input_an_axis_makes_every_tap_a_phase() -> None:
    """DCGAN's first layer: a product of matrices without sums, whose kernel runs no other maps."""
    problem = Problem(Layer(2, 100, 512, (1, 4, 4), precision="tf32_rna"), 64, (1, 1, 1))
    kernel = choose(Question(problem), H200).kernel
    assert kernel.family == "col2im_wgmma" and kernel.layer.stride == (1, 4, 4)
    assert not COL2IM_WGMMA.runs(kernel, replace(problem, input_size=(1, 1, 2)))
    rows = replace(problem, input_size=(1, 1, 2))
    assert equivalent(rows).layer.stride == (1, 4, 1) and equivalent(rows, most_phases=3) is rows
    # An output that no tap reaches would be beyond the last position.
    padded = Problem(replace(problem.layer, kernel=(1, 2, 2), stride=(1, 4, 4)), 64, (1, 1, 1), (0, 3, 1))
    assert equivalent(padded).layer.stride == (1, 4, 2)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_an_equivalent_layer_has_the_same_outputs(problem: Problem) -> None:
    own = equivalent(problem)
    assert own.output_size == problem.output_size and own.layer.weight_shape == problem.layer.weight_shape
    assert with_strides(problem, own.layer.stride) == own and with_strides(problem, problem.layer.stride) == problem
    depth, height, width = own.layer.stride
    other = with_strides(problem, (depth, height, width + 7))
    assert other is None


def test_many_inputs_are_for_others() -> None:
    assert choose(Question(IMAGES), H200).kernel.family == "col2im_rows"
    with pytest.raises(Unplannable, match="65536 inputs of a channel are more than 4096, with 3 output channels"):
        COL2IM_WGMMA.plan(IMAGES, H200)
    with pytest.raises(Unplannable, match="51200 inputs of a channel are more than 32768"):
        COL2IM_WGMMA.plan(LONG, H200)


def test_more_inputs_where_taps_do_not_overlap() -> None:
    apart = replace(LONG, layer=replace(LONG.layer, kernel=(1, 1, 8), padding=(0, 0, 0)))
    assert COL2IM_WGMMA.plan(apart, H200).grid > 0
    wide = replace(apart, layer=replace(apart.layer, in_channels=4096, out_channels=512))
    for refused, limit in ((replace(apart, batch=128), 65536), (wide, 32768)):
        with pytest.raises(Unplannable, match=f"inputs of a channel are more than {limit}"):
            COL2IM_WGMMA.plan(refused, H200)


def test_weights_are_taken_as_they_lie() -> None:
    for problem in (SQUARES, ODD):
        assert COL2IM_WGMMA.plan(problem, H200).preparation is None


def test_inputs_are_prepared_where_their_copies_would_be_short_or_they_would_be_moved() -> None:
    """Maps of odd size, of 16 bits, and factors of 32 bits that many blocks read; not those that copies take whole."""
    long_rows, short_rows = VOCODERS
    assert COL2IM_WGMMA.plan(long_rows, H200).inputs is None
    for problem in (ODD, short_rows):
        plan = COL2IM_WGMMA.plan(problem, H200)
        assert plan.inputs == input_preparation(problem, H200.multiprocessors)
        assert Col2imWgmmaShape(plan.kernel.layer, plan.kernel.tile).inputs_in_stages
    without_vectors = replace(ODD, layer=replace(ODD.layer, in_channels=769))
    assert COL2IM_WGMMA.plan(without_vectors, H200).inputs is None
    assert COL2IM_WGMMA.plan(ODD, H200, channels_last=True).inputs is None


def test_a_kernel_runs_other_maps_only_where_its_copies_are_right() -> None:
    tiles = candidates(equivalent(ODD), H200)
    moved, prepared = (
        Kernel("col2im_wgmma", ODD.layer, single(tiles, int(np.flatnonzero(found)[0])))
        for found in (tiles.runs > 0, (tiles.prepared_inputs > 0) & (tiles.block_tile.columns == 3))
    )
    assert not Col2imWgmmaShape(moved.layer, moved.tile).inputs_in_stages
    other = replace(ODD, input_size=(3, 3, 4))
    for kernel in (moved, prepared):
        assert replan(replace(ODD, batch=7), kernel, H200)
    assert replan(other, moved, H200) is None
    assert replan(other, prepared, H200)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ({"precision": "fp64"}, "no kernels for fp64"),
        ({"kernel": (1, 23, 23)}, "529 taps are more than the col2im_wgmma family's 512"),
        ({"in_channels": 31}, "31 input channels are too few"),
    ],
)
def test_it_says_what_it_does_not_run(layer: dict, reason: str) -> None:
    with pytest.raises(Unplannable, match=reason):
        COL2IM_WGMMA.plan(replace(SQUARES, layer=replace(SQUARES.layer, **layer)), H200)
