"""Plans of the `mma` family, and which family is chosen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tconv.planner import DIRECT, FAMILIES, MMA, Gpu, Kernel, Question, Unplannable, choose
from tconv.planner.block_tiles import needs_wide_index, works
from tconv.planner.choice import replan
from tconv.planner.mma import equivalent_layer, why_not_mma
from tconv.planner.mma.builder import (
    can_copy,
    finished,
    holds_inputs,
    mma_tile,
    row_channels,
    suits_channels,
    with_pipeline,
    with_resident_weights,
)
from tconv.planner.mma.candidates import candidates
from tconv.planner.mma.launch import launch_traits
from tconv.planner.mma.model import predict
from tconv.planner.mma.shape import MmaShape
from tconv.planner.numbers import length, single
from tconv.problem import PRECISIONS, InvalidProblem, Layer, Problem

H200 = Gpu.h200()
#: Of a block, on every GPU from sm_80 on.
SMALLEST_SHARED_BYTES = 99 * 1024
U_NET = Problem(Layer(2, 128, 64, (1, 2, 2), (1, 2, 2), bias=True, precision="tf32_rna"), 8, (1, 256, 256))
UP = Problem(Layer(2, 128, 64, (1, 3, 3), (1, 2, 2), (0, 1, 1), precision="fp16"), 8, (1, 128, 128), (0, 1, 1))


@st.composite
def problems(draw):
    dims = draw(st.integers(1, 3))

    def triple(low, high, fill):
        return (fill,) * (3 - dims) + tuple(draw(st.integers(low, high)) for _ in range(dims))

    groups = draw(st.sampled_from([1, 1, 2, 5]))
    channels = [groups * draw(st.sampled_from([1, 3, 8, 17, 64, 130])) for _ in range(2)]
    axes = triple(1, 7, 1), triple(1, 4, 1), triple(0, 4, 0), triple(1, 3, 1)
    try:
        layer = Layer(dims, *channels, *axes, groups, draw(st.booleans()), draw(st.sampled_from(PRECISIONS)))
        return Problem(layer, draw(st.sampled_from([1, 2, 9, 64])), triple(1, 70, 1))
    except InvalidProblem:
        assume(False)


def block_tiles_of(problem, layer, tile):
    kernel = launch_traits(layer, tile, H200.multiprocessors)
    return works(problem, layer, kernel) // kernel.weight_sets


def tile_of(layer, columns, wide=1, row_tiles=2, position_tiles=4, **options):
    """One row of positions for each of `wide` warps."""
    made = mma_tile(
        layer,
        high=1,
        wide=wide,
        row_tiles=row_tiles,
        position_tiles=position_tiles,
        block_tile=(1, 1, 1, columns),
        k_tile_steps=1,
        origin=options.pop("origin", 0),
        channels_last=options.pop("channels_last", False),
    )
    return finished(layer, made, **options)


def positions(problem, layer):
    axes = zip(layer.axes, problem.output_size, strict=True)
    return problem.batch * math.prod(axis.positions(size) for axis, size in axes)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_plans_can_be_launched(problem):
    try:
        planned = MMA.plan(problem, H200)
    except Unplannable:
        assume(False)
    tile, layer = planned.kernel.tile, planned.kernel.layer
    assert planned.kernel.threads % 32 == 0
    assert 32 <= planned.kernel.threads <= 256
    assert 0 < planned.shared_bytes <= H200.shared_bytes_per_block
    assert 0 < planned.grid < 2**31
    shape = MmaShape(layer, tile)
    sets, count = layer.groups * shape.row_blocks, block_tiles_of(problem, layer, tile)
    assert planned.grid % sets == 0
    assert sets <= planned.grid <= count * sets
    assert tile.pipeline.resident or planned.grid == count * sets
    assert count * shape.block_tile_positions >= positions(problem, layer)
    assert 0 <= planned.preparation.grid * planned.preparation.threads - shape.preparing_items < 256
    assert planned.preparation.bytes == shape.weight_bytes
    assert planned.predicted_seconds > 0
    assert planned.reasons
    assert planned == MMA.plan(problem, H200), "planning is deterministic"


@settings(max_examples=20, deadline=None)
@given(problems())
def test_blocks_take_no_more_memory_than_the_gpu_gives(problem):
    small = replace(H200, shared_bytes_per_block=SMALLEST_SHARED_BYTES)
    try:
        assert MMA.plan(problem, small).shared_bytes <= SMALLEST_SHARED_BYTES
    except Unplannable:
        assume(False)


def test_resident_weights_share_the_block_tiles_evenly():
    """So many blocks as run at once; of 1000 block tiles each has 4 at most, and as few blocks as that takes."""
    layer = Layer(2, 16, 16, (1, 2, 2), (1, 2, 2), precision="fp16")
    tile = with_resident_weights(layer, tile_of(layer, 256, wide=4, row_tiles=4, position_tiles=8))
    problem = Problem(layer, 1000, (1, 1, 256))
    gpu = replace(H200, multiprocessors=132)
    assert MMA.plan_with(problem, Kernel("mma", layer, replace(tile, blocks=2)), gpu).grid == 250
    assert MMA.plan_with(problem, Kernel("mma", layer, with_pipeline(tile, resident=0)), gpu).grid == 1000


@pytest.mark.parametrize("channels", [16, 128, 512])
def test_resident_weights_fit_into_shared_memory(channels):
    layer = Layer(2, channels, channels, (1, 2, 2), (1, 2, 2), precision="fp16")
    tiles = candidates(Problem(layer, 64, (1, 64, 64)), layer, H200)
    shape = MmaShape(layer, tiles)
    resident = tiles.pipeline.resident > 0
    assert resident.any()
    assert (shape.shared_bytes >= shape.weight_bytes // shape.row_blocks)[resident].all()
    assert (shape.shared_bytes <= H200.shared_bytes_per_block)[resident].all()


@settings(max_examples=25, deadline=None)
@given(problems())
def test_every_candidate_suits_the_kernel(problem):
    layer = equivalent_layer(problem)
    assume(why_not_mma(layer) is None)
    tiles = candidates(problem, layer, H200)
    for place in range(0, 0 if tiles is None else length(tiles), 7):
        tile = single(tiles, place)
        shape = MmaShape(layer, tile)
        assert shape.block_tile_positions <= tile.warps.wide * tile.warps.position_tiles * 8
        sums = tile.warps.row_tiles * tile.warps.position_tiles
        assert sums * 4 * (2 if layer.precision == "fp32" else 1) <= 128
        assert 1 <= tile.pipeline.k_tile_shifts <= shape.shifts
        assert shape.halo_all_rows * shape.halo_columns >= shape.block_tile_positions
        assert 0 < shape.fragments_with_taps <= shape.shifts * shape.block_row_tiles
        assert suits_channels(shape) and holds_inputs(shape)
        if tile.pipeline.copied:
            assert can_copy(layer, tile, 1)
            assert tile.pipeline.copied >= 2 or (shape.k_tiles == 1 and not tile.pipeline.resident)
            assert tile.pipeline.copied <= shape.k_tiles or tile.pipeline.resident
        cost = predict(problem, layer, tile, H200)
        assert all(math.isfinite(seconds) and seconds > 0 for seconds in vars(cost).values())


def test_a_cost_is_the_same_alone_and_among_many():
    problem = replace(U_NET, layer=replace(U_NET.layer, kernel=(1, 4, 4), padding=(0, 1, 1)))
    tiles = candidates(problem, problem.layer, H200, together=4)
    together = predict(problem, problem.layer, tiles, H200)
    for place in range(0, length(tiles), 97):
        alone = predict(problem, problem.layer, single(tiles, place), H200)
        assert alone.seconds == pytest.approx(together.seconds[place], rel=1e-12)


def test_where_the_kernel_is_a_multiple_of_the_stride_no_product_is_wasted():
    planned = MMA.plan(U_NET, H200)
    layer, tile = planned.kernel.layer, planned.kernel.tile
    shape = MmaShape(layer, tile)
    assert shape.fragments_with_taps == shape.shifts * shape.block_row_tiles


def test_shifts_without_taps_are_left_out():
    """Of k3 s2 the four phases have 4, 2, 2 and 1 taps."""
    shape = MmaShape(UP.layer, MMA.plan(UP, H200).kernel.tile)
    assert shape.shifts == 4
    assert shape.fragments_with_taps * 16 == 9 * 4 * shape.block_row_tiles


def test_one_input_an_axis_makes_every_tap_a_phase():
    """DCGAN's first layer: 16 taps, of which an output has one."""
    problem = Problem(Layer(2, 100, 512, (1, 4, 4), precision="tf32_rna"), 64, (1, 1, 1))
    layer = MMA.plan(problem, H200).kernel.layer
    assert layer.stride == (1, 4, 4)
    assert MmaShape(layer, MMA.plan(problem, H200).kernel.tile).shifts == 1
    assert equivalent_layer(replace(problem, input_size=(1, 1, 2))).stride == (1, 4, 1)


@pytest.mark.parametrize(
    ("out_channels", "stride", "channels"), [(64, 2, 16), (8, 2, 8), (1, 4, 1), (3, 2, 4), (5, 1, 8)]
)
def test_rows_are_filled_with_phases_where_channels_are_few(out_channels, stride, channels):
    layer = Layer(2, 32, out_channels, (1, 4, 4), (1, stride, stride), precision="fp16")
    found = row_channels(layer)

    def tiles(channels):
        return -(-(stride**2) * channels // 16) * -(-out_channels // channels)

    assert tiles(found) == min(map(tiles, (1, 2, 4, 8, 16)))
    assert tiles(found) == tiles(channels)


def test_long_problems_take_64_bit_offsets():
    kernel = launch_traits(U_NET.layer, tile_of(U_NET.layer, 32, row_tiles=4), H200.multiprocessors)
    assert not needs_wide_index(U_NET, U_NET.layer, kernel)
    assert needs_wide_index(replace(U_NET, input_size=(1, 4096, 4096)), U_NET.layer, kernel)


@pytest.mark.parametrize(
    ("problem", "gpu", "words"),
    [
        (U_NET, replace(H200, arch="sm_75"), "needs sm_80"),
        (Problem(Layer(1, 1, 1, (1, 1, 8192), (1, 1, 8192)), 1, (1, 1, 4)), H200, "8192 phases"),
        (Problem(Layer(1, 1, 1, (1, 1, 4), (1, 1, 4)), 1, (1, 1, 2**29 - 400)), H200, "longer than"),
    ],
)
def test_what_the_family_does_not_run(problem, gpu, words):
    with pytest.raises(Unplannable, match=words):
        MMA.plan(problem, gpu)


def test_the_faster_family_is_chosen_of_those_allowed():
    both = choose(Question(U_NET), H200, ("direct", "mma"))
    assert both.kernel.family == "mma"
    assert both.predicted_seconds < DIRECT.plan(U_NET, H200).predicted_seconds
    alone = replace(U_NET, layer=replace(U_NET.layer, in_channels=64, out_channels=64, groups=64))
    assert choose(Question(alone), H200).kernel.family == "direct", "one channel leaves a matrix product nearly empty"
    sparse = replace(U_NET, layer=replace(U_NET.layer, stride=(1, 3, 3)))
    assert choose(Question(sparse), H200).kernel.family == "wgmma", "phases without taps take nothing"


@pytest.mark.parametrize("family", ["direct", "mma", "wgmma"])
def test_families_are_compared_by_the_very_sizes(family):
    """No family is predicted to take less than the bytes of a long row, though it has one kernel for rows like it."""
    layer = Layer(1, 64, 32, (1, 1, 4), (1, 1, 2), padding=(0, 0, 1), precision="fp16")
    problem = Problem(layer, 1, (1, 1, 3_000_000))
    assert FAMILIES[family].plan(problem, H200).predicted_seconds > problem.bytes_moved / H200.copy_bandwidth


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_dense_layer_runs_on_tensor_cores_in_every_precision(precision):
    problem = replace(U_NET, layer=replace(U_NET.layer, precision=precision))
    plan = choose(Question(problem), H200, ("direct", "mma"))
    assert plan.kernel.family == "mma"
    assert plan.predicted_seconds < DIRECT.plan(problem, H200).predicted_seconds / 1.5
    shape, warps = MmaShape(problem.layer, plan.kernel.tile), plan.kernel.tile.warps
    assert warps.row_tiles * warps.position_tiles * shape.accumulator_bytes * shape.planes <= 128, "registers"


def test_a_kernel_that_loads_several_inputs_of_a_row_at_once_needs_rows_of_so_many():
    planned = MMA.plan(U_NET, H200)
    assert planned.kernel.tile.pipeline.patch_columns == 4
    fits, short = (replace(U_NET, input_size=(1, 256, width)) for width in (252, 254))
    assert replan(fits, planned.kernel, H200) is not None
    assert replan(short, planned.kernel, H200) is None
    assert MMA.plan(short, H200).kernel.tile.pipeline.patch_columns <= 2


@pytest.mark.parametrize(
    ("precision", "kernel", "padding", "together", "columns", "channels_last", "copies"),
    [
        ("tf32", 3, 1, 1, 5, 0, True),
        ("fp64", 3, 1, 2, 6, 0, True),
        ("tf32", 3, 1, 4, 8, 1, False),
        ("fp32", 2, 0, 4, 8, 0, False),  # two numbers for each factor
        ("fp16", 2, 0, 8, 16, 0, True),
        ("bf16", 4, 0, 8, 16, 0, False),  # a shift along the row
        ("fp16", 2, 0, 4, 16, 0, False),  # rows begin at multiples of four
        ("fp16", 2, 0, 8, 12, 0, False),
        ("fp16", 2, 2, 8, 16, 0, False),  # position q reads input q + 1
    ],
)
def test_what_is_copied_as_it_lies(precision, kernel, padding, together, columns, channels_last, copies):
    layer = Layer(1, 64, 16, (1, 1, kernel), (1, 1, 2), (0, 0, padding), precision=precision)
    options = {"origin": padding % 2, "channels_last": bool(channels_last), "together": together}
    assert bool(can_copy(layer, tile_of(layer, columns, **options), together)) is copies


def test_layers_of_one_shift_have_several_k_tiles_on_their_way():
    for precision in ("tf32", "fp16"):
        problem = replace(U_NET, layer=replace(U_NET.layer, precision=precision))
        tile = MMA.plan(problem, H200).kernel.tile
        assert tile.pipeline.copied > 2
        fewer = with_pipeline(tile, copied=2)
        assert MmaShape(problem.layer, fewer).shared_bytes < MmaShape(problem.layer, tile).shared_bytes


def test_reasons_say_what_limits():
    reasons = "\n".join(MMA.plan(U_NET, H200).reasons)
    wanted = ("tiles of 16 rows", "positions (images, slabs, rows, columns)", "have a tap", "copied", "by the model")
    for words in wanted:
        assert words in reasons
