"""Plans of the `col2im_rows` family, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_planner_col2im import A100, H200

from tconv.planner import COL2IM_ROWS, Question, Unplannable, choose
from tconv.planner.choice import replan
from tconv.planner.col2im_rows.candidates import candidates, fits
from tconv.planner.col2im_rows.shape import Col2imRowsShape
from tconv.planner.numbers import length, single
from tconv.planner.shifts import Uncropped, uncropped_positions
from tconv.problem import Axis, Layer, Problem

#: FSRCNN's last layer, a generator's of volumes, and one on small maps.
FEW_CHANNELS = (
    Problem(Layer(2, 56, 1, (1, 9, 9), (1, 3, 3), (0, 4, 4), bias=True, precision="tf32"), 1, (1, 270, 480), (0, 2, 2)),
    Problem(Layer(3, 64, 1, (4, 4, 4), (2, 2, 2), (1, 1, 1), precision="tf32"), 16, (32, 32, 32)),
    Problem(Layer(2, 32, 2, (1, 5, 5), (1, 2, 2), (0, 2, 2), precision="fp16"), 16, (1, 96, 96), (0, 1, 1)),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dims = draw(st.integers(1, 3))

    def axes(low: int, high: int, filler: int) -> tuple[int, int, int]:
        drawn = [draw(st.integers(low, high)) for _ in range(dims)]
        depth, height, width = [filler] * (3 - dims) + drawn
        return depth, height, width

    kernel, stride, padding, dilation = axes(1, 6, 1), axes(1, 4, 1), axes(0, 3, 0), axes(1, 2, 1)
    channels = draw(st.sampled_from([3, 16, 56])), draw(st.sampled_from([1, 2, 5]))
    precision = draw(st.sampled_from(["tf32", "fp16", "bf16"]))
    layer = Layer(dims, *channels, kernel, stride, padding, dilation, precision=precision)
    problem = Problem(layer, draw(st.integers(1, 5)), axes(7, 300 if dims < 3 else 20, 1))
    assume(COL2IM_ROWS.why_not(problem, H200) is None)
    return problem


@settings(max_examples=60, deadline=None)
@given(problems())
def test_its_tiles_fit(problem: Problem) -> None:
    tiles = candidates(problem, H200)
    assume(tiles is not None)
    for place in range(0, length(tiles), 41):
        tile = single(tiles, place)
        shape = Col2imRowsShape(problem.layer, tile)
        assert fits(problem, tile) and shape.fits_products and shape.columns <= shape.product_rows
        assert shape.shared_bytes <= H200.shared_bytes_per_block and shape.registers * shape.threads <= 65536
        assert shape.teams * shape.team_inputs == 64 * tile.warpgroups
    plan = COL2IM_ROWS.plan(problem, H200)
    assert COL2IM_ROWS.runs(plan.kernel, problem) and plan.preparation is None and plan.inputs is None


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 5), st.integers(0, 9), st.integers(1, 4), st.integers(1, 20), st.integers(0, 4)
)
def test_positions_hold_all_outputs(
    kernel: int, stride: int, padding: int, dilation: int, inputs: int, extra: int
) -> None:
    """Every product of an input and a tap belongs to one shift and one phase of a position."""
    axis = Axis(kernel, stride, padding, dilation)
    outputs = axis.output_size(inputs, min(extra, max(stride, dilation) - 1))
    assume(outputs > 0)
    own = Uncropped.of(axis)
    end = own.first_position + uncropped_positions(axis, outputs)
    assert {(output + padding) // stride for output in range(outputs)} == set(range(own.first_position, end))
    shifts = {(tap * dilation) // stride for tap in range(kernel)}
    assert min(shifts) == 0 and max(shifts) == own.shifts - 1


def test_it_is_chosen_on_hopper_where_few_channels_have_many_positions() -> None:
    for problem in FEW_CHANNELS:
        assert choose(Question(problem), H200).kernel.family == "col2im_rows"
        assert choose(Question(problem), A100).kernel.family != "col2im_rows"
    with pytest.raises(Unplannable, match="needs sm_90a"):
        COL2IM_ROWS.plan(FEW_CHANNELS[0], A100)


def test_a_kernel_runs_all_maps_whose_rows_have_whole_loads() -> None:
    problem = FEW_CHANNELS[0]
    kernel = COL2IM_ROWS.plan(problem, H200).kernel
    assert kernel.tile.input_stages > 0 and kernel.tile.vector == 4
    assert replan(replace(problem, batch=3, input_size=(1, 7, 1000)), kernel, H200)
    odd = replace(problem, input_size=(1, 270, 481))
    assert replan(odd, kernel, H200) is None and COL2IM_ROWS.plan(odd, H200).kernel.tile.vector == 1
    # Rows of an odd number of 16-bit inputs have no copies of 4 bytes or more.
    half = replace(odd, layer=replace(odd.layer, precision="fp16"))
    assert COL2IM_ROWS.plan(half, H200).kernel.tile.input_stages == 0


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ({"precision": "fp64"}, "no kernels for fp64"),
        ({"out_channels": 9}, "9 output channels are more than the col2im_rows family's 8"),
        ({"stride": (1, 17, 17)}, "in 17 rows of a position; a block of the col2im_rows family has room for 256 in 16"),
        ({"kernel": (1, 64, 64), "stride": (1, 2, 2)}, "an input gives to 4096 outputs of 1 channels"),
    ],
)
def test_what_it_does_not_run(layer: dict, reason: str) -> None:
    problem = FEW_CHANNELS[0]
    with pytest.raises(Unplannable, match=reason):
        COL2IM_ROWS.plan(Problem(replace(problem.layer, **layer), 1, (1, 90, 90)), H200)
