"""Plans of the `direct` family: invariants over random problems."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tconv.planner import DIRECT, Gpu, Kernel, Unplannable, floor_seconds
from tconv.planner.direct.builder import default_tile, is_small
from tconv.planner.direct.candidates import candidates
from tconv.planner.direct.launch import launch_traits, runs
from tconv.planner.direct.shape import DirectShape
from tconv.planner.numbers import length, single
from tconv.problem import PRECISIONS, InvalidProblem, Layer, Problem

H200 = Gpu.h200()
#: Dynamic shared memory that every GPU from sm_75 on gives a block.
SMALLEST_SHARED_BYTES = 64 * 1024
STRIDED_DILATED = Problem(Layer(2, 32, 64, (1, 3, 3), (1, 5, 5), (0, 1, 1), (1, 2, 2)), 16, (1, 64, 128))

_some = st.one_of(st.integers(1, 5), st.sampled_from([7, 16, 31, 64, 1000]))


@st.composite
def problems(draw):
    dims, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 32]))

    def values(strategy, unused):
        return (unused,) * (3 - dims) + tuple(draw(strategy) for _ in range(dims))

    layer = Layer(
        dims,
        groups * draw(_some),
        groups * draw(_some),
        values(_some, 1),
        values(_some, 1),
        values(st.integers(0, 9), 0),
        values(st.integers(1, 7), 1),
        groups,
        draw(st.booleans()),
        draw(st.sampled_from(PRECISIONS)),
    )
    try:
        return Problem(layer, draw(st.sampled_from([1, 3, 64, 5000])), values(st.integers(1, 300), 1))
    except InvalidProblem:
        assume(False)


def runs_of(problem, tile):
    return runs(problem, problem.layer, launch_traits(problem.layer, tile, H200.multiprocessors))


def positions(problem):
    return problem.batch * math.prod(
        axis.positions(size) for axis, size in zip(problem.layer.axes, problem.output_size, strict=True)
    )


@settings(max_examples=400, deadline=None)
@example(Problem(Layer(3, 1, 1, (1, 1, 1), (7, 16, 16)), 1, (1, 11, 161)))  # the exchange passed 64 KiB
@given(problems())
def test_plans_can_be_launched(problem):
    try:
        plan = DIRECT.plan(problem, H200)
    except Unplannable:
        assume(False)
    tile, layer = plan.kernel.tile, problem.layer
    assert plan.kernel.threads % 32 == 0
    assert 32 <= plan.kernel.threads <= 512
    assert plan.kernel.threads * tile.blocks * 32 <= 64 * 1024, "blocks could not have even 32 registers a thread"
    assert 0 < plan.shared_bytes <= SMALLEST_SHARED_BYTES
    shape = DirectShape(layer, tile)
    assert plan.grid % shape.parts == 0
    assert 0 < plan.grid < 2**31
    assert shape.thread_accumulators <= 96, "more accumulators than registers hold"
    if not shape.resident:
        blocks = plan.grid // shape.parts
        assert blocks * shape.block_runs >= runs_of(problem, tile), "a staged block does not go on to further runs"
    assert tile.k_tile_channels % tile.unroll == 0
    assert 0 <= tile.origin <= layer.padding[2] and tile.origin < layer.stride[2]
    assert tile.columns in ((1, 2, 4, 8, 16, 32) if tile.phase_lanes == 1 else (1,))
    assert runs_of(problem, tile) * 32 // tile.phase_lanes * tile.positions * tile.rows >= positions(problem)
    assert plan.reasons
    assert plan == DIRECT.plan(problem, H200), "planning is deterministic"


def test_small_problems_get_small_blocks():
    small = replace(STRIDED_DILATED, batch=1, input_size=(1, 6, 9))
    few, many = (DIRECT.plan(problem, H200).kernel for problem in (small, STRIDED_DILATED))
    few_sums, many_sums = (
        DirectShape(STRIDED_DILATED.layer, kernel.tile).thread_accumulators for kernel in (few, many)
    )
    assert few.threads // few.tile.splits * few_sums < many.threads // many.tile.splits * many_sums


@pytest.mark.parametrize(("width", "most"), [(1, 2), (7, 8), (8, 8), (33, 44), (64, 64), (128, 128), (5000, 5120)])
def test_runs_fit_the_rows(width, most):
    """A warp takes several narrow rows at once rather than idle."""
    problem = replace(STRIDED_DILATED, input_size=(1, 64, width))
    tile = DIRECT.plan(problem, H200).kernel.tile
    run = tile.columns * tile.positions * max(1, tile.warps_wide)
    columns = problem.layer.axes[2].positions(problem.output_size[2] + tile.origin)
    assert -(-columns // run) * run <= most


def test_many_batches_and_sizes_share_few_kernels():
    kernels = [DIRECT.plan(replace(STRIDED_DILATED, batch=batch), H200).kernel for batch in (16, 32, 64, 100, 1000)]
    assert len(set(kernels)) <= 2
    assert kernels[2] == kernels[3] == kernels[4]
    vocoder = Layer(1, 32, 16, (1, 1, 8), (1, 1, 4), (0, 0, 2))
    lengths = [int(100 * 1.01**n) for n in range(700)]
    kernels = {DIRECT.plan(Problem(vocoder, 1, (1, 1, length)), H200).kernel for length in lengths}
    assert len(kernels) <= 16


@settings(max_examples=25, deadline=None)
@given(problems())
@example(Problem(Layer(3, 5, 4, (7, 16, 2), (1, 1, 16), precision="fp64"), 1, (1, 1, 1)))  # many weights, and exchanges
def test_every_candidate_computes_the_problem(problem):
    tiles = candidates(problem, H200)
    for place in range(0, length(tiles), 17):
        tile = single(tiles, place)
        try:
            plan = DIRECT.plan_with(problem, Kernel("direct", problem.layer, tile), H200)
        except Unplannable:  # more blocks than a grid has
            continue
        assert tile == default_tile(problem.layer) or is_small(problem.layer, tile)
        assert plan.shared_bytes <= SMALLEST_SHARED_BYTES
        assert runs_of(problem, tile) * 32 // tile.phase_lanes * tile.positions * tile.rows >= positions(problem)
        assert plan.grid >= DirectShape(problem.layer, tile).parts


def test_many_row_phases_go_to_the_grid():
    """Else a few blocks would walk over all of them one by one."""
    wide = Problem(Layer(2, 4, 4, (1, 1, 1), (1, 4096, 4096)), 1, (1, 2, 2))
    plan = DIRECT.plan(wide, H200)
    assert not DirectShape(wide.layer, plan.kernel.tile).resident
    assert plan.grid >= 4096
    with pytest.raises(Unplannable, match="blocks"):
        DIRECT.plan(Problem(Layer(3, 1, 1, (1, 1, 1), (65536, 65536, 1)), 1, (1, 1, 1)), H200)


def test_long_problems_take_64_bit_positions():
    long = replace(STRIDED_DILATED, batch=2**23, input_size=(1, 256, 512))
    assert DIRECT.plan(long, H200).kernel.wide_index
    assert "64-bit positions" in DIRECT.plan(long, H200).reasons
    assert not DIRECT.plan(STRIDED_DILATED, H200).kernel.wide_index


def test_limits_are_named():
    line = Layer(1, 1, 1, (1, 1, 1))
    with pytest.raises(Unplannable, match="longer than"):
        DIRECT.plan(Problem(line, 1, (1, 1, 2**31)), H200)
    with pytest.raises(Unplannable, match="blocks"):
        DIRECT.plan(Problem(Layer(1, 2**31, 2**31, (1, 1, 1), groups=2**31), 1, (1, 1, 9)), H200)
    with pytest.raises(Unplannable, match="shared memory"):
        DIRECT.plan(STRIDED_DILATED, replace(H200, shared_bytes_per_block=1024))


def test_the_floor_is_the_roofline():
    seconds = floor_seconds(STRIDED_DILATED, H200)
    assert seconds == pytest.approx(STRIDED_DILATED.bytes_moved / 4.25e12)
    assert seconds == pytest.approx(0.1995e-3, rel=1e-3)
    tiny = replace(STRIDED_DILATED, batch=1, input_size=(1, 1, 1))
    assert floor_seconds(tiny, H200) == 2e-6
    assert floor_seconds(tiny, replace(H200, bandwidth=None)) is None
    dense = Problem(Layer(2, 512, 512, (1, 3, 3)), 8, (1, 64, 64))
    assert floor_seconds(dense, H200) == pytest.approx(2 * dense.multiply_adds / 51e12)
