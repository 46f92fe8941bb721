"""Plans of the `col2im` family, and where it is chosen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tconv.planner import COL2IM, Gpu, Question, Unplannable, choose
from tconv.planner.choice import replan
from tconv.planner.col2im.candidates import candidates, fits
from tconv.planner.col2im.shape import Col2imShape
from tconv.planner.numbers import length, single
from tconv.planner.sizes import equivalent
from tconv.problem import Layer, Problem

H200 = Gpu.h200()
A100 = Gpu("NVIDIA A100", "sm_80", 108, 163 * 1024)
#: Of nnU-Net, of pix2pix at 2 x 2 and of SwinUNETR: 27 positions, which no copy of 4 bytes divides.
CUBES = Problem(Layer(3, 320, 320, (2, 2, 2), (2, 2, 2), bias=True, precision="fp16"), 2, (4, 4, 4))
SQUARES = Problem(Layer(2, 1024, 512, (1, 4, 4), (1, 2, 2), (0, 1, 1), precision="tf32_rna"), 1, (1, 2, 2))
ODD = Problem(Layer(3, 768, 384, (2, 2, 2), (2, 2, 2), precision="fp16"), 2, (3, 3, 3))
#: Weights pass by once for every few positions: of these there are too many.
LONG = Problem(Layer(1, 512, 256, (1, 1, 16), (1, 1, 8), (0, 0, 4), precision="fp16"), 64, (1, 1, 800))
#: Of DCGAN and of HTDemucs: few output channels, many positions.
IMAGES = Problem(Layer(2, 64, 3, (1, 4, 4), (1, 2, 2), (0, 1, 1), precision="tf32"), 64, (1, 32, 32))
ODD_ROWS = Problem(Layer(1, 512, 1, (1, 1, 16), (1, 1, 8), precision="tf32"), 8, (1, 1, 3999))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dims = draw(st.integers(1, 3))

    def axes(low: int, high: int, filler: int) -> tuple[int, int, int]:
        drawn = [draw(st.integers(low, high)) for _ in range(dims)]
        depth, height, width = [filler] * (3 - dims) + drawn
        return depth, height, width

    kernel, stride, dilation = axes(1, 5, 1), axes(1, 4, 1), axes(1, 2, 1)
    channels = draw(st.sampled_from([32, 40, 63, 130])), draw(st.sampled_from([1, 3, 16, 50]))
    precision = draw(st.sampled_from(["tf32", "fp16", "bf16"]))
    layer = Layer(dims, *channels, kernel, stride, dilation=dilation, precision=precision)
    problem = Problem(layer, draw(st.integers(1, 5)), axes(1, 40 if dims < 3 else 7, 1))
    assume(COL2IM.why_not(problem, H200) is None)
    return problem


@settings(max_examples=60, deadline=None)
@given(problems(), st.booleans())
def test_its_tiles_are_for_the_very_sizes(problem: Problem, last: bool) -> None:
    own = equivalent(problem)
    tiles = candidates(own, H200, last)
    assume(tiles is not None)
    for place in range(0, length(tiles), 41):
        tile = single(tiles, place)
        shape = Col2imShape(own.layer, tile)
        assert fits(own, tile)
        assert shape.shared_bytes <= H200.shared_bytes_per_block and shape.registers * shape.threads <= 65536
        assert bool(tile.channels_last) == last
    plan = COL2IM.plan(problem, H200, last)
    assert COL2IM.runs(plan.kernel, problem)


def test_it_is_chosen_where_weights_are_most_of_the_work() -> None:
    assert {choose(Question(problem), A100).kernel.family for problem in (CUBES, SQUARES, ODD)} == {"col2im"}
    assert choose(Question(LONG), A100).kernel.family != "col2im"


def test_weights_are_resident_where_output_channels_are_few() -> None:
    plan = choose(Question(IMAGES), A100)
    assert plan.kernel.family == "col2im" and plan.kernel.tile.resident
    assert plan.grid <= A100.multiprocessors * plan.kernel.tile.blocks
    many = replace(IMAGES, layer=replace(IMAGES.layer, out_channels=9))
    with pytest.raises(Unplannable, match="9 output channels are more than 8"):
        COL2IM.plan(many, H200)


def test_rows_that_no_patch_divides_are_copied_as_runs() -> None:
    kernel = COL2IM.plan(ODD_ROWS, H200).kernel
    assert kernel.tile.resident and kernel.tile.runs
    assert replan(replace(ODD_ROWS, input_size=(1, 1, 4001)), kernel, H200)


def test_weights_are_taken_as_they_lie() -> None:
    plan = COL2IM.plan(SQUARES, H200)
    assert plan.preparation is None and plan.inputs is None


def test_a_kernel_runs_other_maps_only_where_its_copies_are_right() -> None:
    kernel = COL2IM.plan(ODD, H200).kernel
    assert kernel.tile.runs
    assert replan(replace(ODD, batch=7), kernel, H200)
    assert replan(replace(ODD, input_size=(3, 3, 4)), kernel, H200) is None
    aligned = COL2IM.plan(CUBES, H200).kernel
    assert aligned.tile.patch_positions > 1
    assert replan(replace(CUBES, input_size=(4, 4, 5)), aligned, H200) is None


def test_blocks_have_all_inputs_of_their_outputs() -> None:
    """A tap far away reaches beyond block tiles that are not longer: then there is one block along that axis."""
    far = Problem(Layer(1, 64, 16, (1, 1, 9), dilation=(1, 1, 6), precision="tf32"), 1, (1, 1, 60))
    tiles = candidates(far, H200)
    assert tiles is not None
    assert {single(tiles, place).block_tile.columns for place in range(length(tiles))} == {60}


@pytest.mark.parametrize(
    ("layer", "size", "reason"),
    [
        ({"precision": "fp64"}, (1, 2, 2), "no kernels for fp64"),
        ({"precision": "fp32"}, (1, 2, 2), "no kernels for fp32"),
        ({"kernel": (1, 17, 17)}, (1, 2, 2), "289 taps are more than the col2im family's 256"),
        ({"in_channels": 31}, (1, 2, 2), "31 input channels are too few"),
        ({}, (1, 65, 64), "4160 inputs of a channel are more than 4096, and 512 output channels are more than 8"),
    ],
)
def test_it_says_what_it_does_not_run(layer: dict, size: tuple[int, int, int], reason: str) -> None:
    problem = replace(SQUARES, layer=replace(SQUARES.layer, **layer), input_size=size)
    with pytest.raises(Unplannable, match=reason):
        COL2IM.plan(problem, H200)


def test_it_needs_tensor_cores_that_multiply_tf32() -> None:
    with pytest.raises(Unplannable, match="needs sm_80 or newer"):
        COL2IM.plan(SQUARES, replace(H200, arch="sm_75"))


def test_a_block_has_fewer_outputs_than_a_thread_can_divide() -> None:
    wide = Problem(Layer(1, 32, 64, (1, 1, 200), (1, 1, 20000), precision="tf32"), 1, (1, 1, 100))
    tiles = candidates(wide, H200)
    for place in range(0 if tiles is None else length(tiles)):
        tile = single(tiles, place)
        assert tile.channels * math.prod((tile.block_tile.images, tile.block_tile.columns)) * 20000 < 2**21
