"""Plans of the `mma` family, and which family is chosen."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tconv.errors import CompileError
from tconv.jit.compile import compile_source
from tconv.kernels import source
from tconv.kernels.instances import instances
from tconv.planner import Gpu, Unplannable, choose, plan_direct, plan_mma
from tconv.planner.choice import launch
from tconv.planner.mma import candidates, equivalent, why_not_mma
from tconv.planner.mma_model import predict_mma
from tconv.planner.mma_shape import (
    box_positions,
    boxes,
    chunks,
    fragments_with_taps,
    halo_positions,
    launch_mma,
    needs_wide_index,
    planes,
    preparing_items,
    row_blocks,
    shared_bytes,
    shifts,
    sum_bytes,
    thread_loads,
    weight_bytes,
)
from tconv.planner.mma_tile import can_copy, mma_tile, row_channels, suits_threads, with_resident_weights
from tconv.planner.plan import Kernel
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


def positions(problem, layer):
    axes = zip(layer.axes, problem.output_size, strict=True)
    return problem.batch * math.prod(axis.positions(size) for axis, size in axes)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_plans_can_be_launched(problem):
    try:
        planned = plan_mma(problem, H200)
    except Unplannable:
        assume(False)
    tile, layer = planned.kernel.tile, planned.kernel.layer
    assert planned.kernel.threads % 32 == 0
    assert 32 <= planned.kernel.threads <= 256
    assert 0 < planned.shared_bytes <= H200.shared_bytes_per_block
    assert 0 < planned.grid < 2**31
    sets, count = layer.groups * row_blocks(layer, tile), math.prod(boxes(problem, layer, tile))
    assert planned.grid % sets == 0
    assert sets <= planned.grid <= count * sets
    assert tile.resident or planned.grid == count * sets
    assert math.prod(boxes(problem, layer, tile)) * box_positions(tile) >= positions(problem, layer)
    assert 0 <= planned.preparation.grid * planned.preparation.threads - preparing_items(layer, tile) < 256
    assert planned.preparation.bytes == weight_bytes(layer, tile)
    assert planned.predicted_seconds > 0
    assert planned.reasons
    assert planned == plan_mma(problem, H200), "planning is deterministic"


@settings(max_examples=20, deadline=None)
@given(problems())
def test_blocks_take_no_more_memory_than_the_gpu_gives(problem):
    small = replace(H200, shared_bytes_per_block=SMALLEST_SHARED_BYTES)
    try:
        assert plan_mma(problem, small).shared_bytes <= SMALLEST_SHARED_BYTES
    except Unplannable:
        assume(False)


def test_resident_weights_share_the_boxes_evenly():
    """So many blocks as run at once; of 1000 boxes each has 4 at most, and as few blocks as that takes."""
    layer = Layer(2, 16, 16, (1, 2, 2), (1, 2, 2), precision="fp16")
    tile = with_resident_weights(layer, mma_tile(layer, (1, 4), 4, 8, (1, 1, 1, 256), 1, 0))
    problem = Problem(layer, 1000, (1, 1, 256))
    gpu = replace(H200, multiprocessors=132)
    assert launch_mma(problem, Kernel("mma", layer, replace(tile, blocks=2)), gpu).grid == 250
    assert launch_mma(problem, Kernel("mma", layer, replace(tile, resident=0)), gpu).grid == 1000


@pytest.mark.parametrize("channels", [16, 128, 512])
def test_resident_weights_fit_into_shared_memory(channels):
    layer = Layer(2, channels, channels, (1, 2, 2), (1, 2, 2), precision="fp16")
    tiles = [tile for tile in candidates(Problem(layer, 64, (1, 64, 64)), layer, H200) if tile.resident]
    assert tiles
    for tile in tiles:
        assert shared_bytes(layer, tile) >= weight_bytes(layer, tile) // row_blocks(layer, tile)
        assert shared_bytes(layer, tile) <= H200.shared_bytes_per_block


@settings(max_examples=25, deadline=None)
@given(problems())
def test_every_candidate_suits_the_kernel(problem):
    layer = equivalent(problem)
    assume(why_not_mma(layer) is None)
    for tile in itertools.islice(candidates(problem, layer, H200), 0, None, 7):
        assert box_positions(tile) <= tile.warps_wide * tile.position_tiles * 8
        assert tile.row_tiles * tile.position_tiles * 4 * (2 if layer.precision == "fp32" else 1) <= 128
        assert 1 <= tile.chunk_shifts <= shifts(layer, tile)
        assert halo_positions(layer, tile) >= box_positions(tile)
        assert 0 < fragments_with_taps(layer, tile) <= shifts(layer, tile) * tile.warps_high * tile.row_tiles
        assert suits_threads(layer, tile)
        if tile.copied:
            assert can_copy(layer, tile, 1)
            assert tile.copied >= 2 or (chunks(layer, tile) == 1 and not tile.resident)
            assert tile.copied <= chunks(layer, tile) or tile.resident
        cost = predict_mma(problem, layer, tile, H200)
        assert all(math.isfinite(seconds) and seconds > 0 for seconds in vars(cost).values())


@pytest.mark.rotates(4)
@pytest.mark.parametrize("instance", list(instances("mma"))[::6], ids=lambda instance: instance.name)
def test_kernel_and_planner_have_the_same_formulas(instance):
    planned = launch_mma(instance.problem, instance.kernel, H200)
    layer, tile = planned.kernel.layer, planned.kernel.tile
    shape = "tconv::MmaShape<tconv_kernel_layer, tconv_kernel_tile>"

    def compiles(shared_bytes):
        checks = f"{shape}::shared_bytes == {shared_bytes} && {shape}::row_blocks == {row_blocks(layer, tile)}"
        checks += f" && {shape}::weight_vectors * 16 == {planned.preparation.bytes}"
        checks += f" && {shape}::shifts == {shifts(layer, tile)}"
        checks += f" && {shape}::preparing_items == {preparing_items(layer, tile)}"
        checks += f" && {shape}::thread_loads == {thread_loads(layer, tile)}"
        text = source.unit(planned.kernel) + f'static_assert({checks}, "formulas differ");\n'
        try:
            compile_source(text, "sm_80", headers=source.header_directory())
        except CompileError as error:
            assert "formulas differ" in error.log
            return False
        return True

    assert compiles(planned.shared_bytes)
    assert not compiles(planned.shared_bytes + 4)


def test_where_the_kernel_is_a_multiple_of_the_stride_no_product_is_wasted():
    planned = plan_mma(U_NET, H200)
    layer, tile = planned.kernel.layer, planned.kernel.tile
    assert fragments_with_taps(layer, tile) == shifts(layer, tile) * tile.warps_high * tile.row_tiles


def test_shifts_without_taps_are_left_out():
    """Of k3 s2 the four phases have 4, 2, 2 and 1 taps."""
    tile = plan_mma(UP, H200).kernel.tile
    assert shifts(UP.layer, tile) == 4
    assert fragments_with_taps(UP.layer, tile) * 16 == 9 * 4 * tile.warps_high * tile.row_tiles


def test_one_input_an_axis_makes_every_tap_a_phase():
    """DCGAN's first layer: 16 taps, of which an output has one."""
    problem = Problem(Layer(2, 100, 512, (1, 4, 4), precision="tf32_rna"), 64, (1, 1, 1))
    layer = plan_mma(problem, H200).kernel.layer
    assert layer.stride == (1, 4, 4)
    assert shifts(layer, plan_mma(problem, H200).kernel.tile) == 1
    assert equivalent(replace(problem, input_size=(1, 1, 2))).stride == (1, 4, 1)


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
    tile = mma_tile(U_NET.layer, (1, 1), 4, 4, (1, 1, 1, 32), 1, 0)
    assert not needs_wide_index(U_NET, U_NET.layer, tile)
    assert needs_wide_index(replace(U_NET, input_size=(1, 4096, 4096)), U_NET.layer, tile)


@pytest.mark.parametrize(
    ("problem", "gpu", "words"),
    [
        (U_NET, replace(H200, arch="sm_75"), "needs sm_80"),
        (replace(U_NET, layer=replace(U_NET.layer, stride=(1, 3, 3))), H200, "no taps"),
        (Problem(Layer(1, 1, 1, (1, 1, 8192), (1, 1, 8192)), 1, (1, 1, 4)), H200, "8192 phases"),
        (Problem(Layer(1, 1, 1, (1, 1, 4), (1, 1, 4)), 1, (1, 1, 2**29 - 400)), H200, "longer than"),
    ],
)
def test_what_the_family_does_not_run(problem, gpu, words):
    with pytest.raises(Unplannable, match=words):
        plan_mma(problem, gpu)


def test_the_faster_family_is_chosen_of_those_allowed():
    both = choose(U_NET, H200)
    assert both.kernel.family == "mma"
    assert both.predicted_seconds < plan_direct(U_NET, H200).predicted_seconds
    alone = replace(U_NET, layer=replace(U_NET.layer, in_channels=64, out_channels=64, groups=64))
    assert choose(alone, H200).kernel.family == "direct", "one channel leaves a matrix product nearly empty"
    sparse = replace(U_NET, layer=replace(U_NET.layer, stride=(1, 3, 3)))
    assert choose(sparse, H200).kernel.family == "direct", "phases without taps"
    with pytest.raises(Unplannable, match="no taps"):
        choose(sparse, H200, ("mma",))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_dense_layer_runs_on_tensor_cores_in_every_precision(precision):
    problem = replace(U_NET, layer=replace(U_NET.layer, precision=precision))
    plan = choose(problem, H200)
    assert plan.kernel.family == "mma"
    assert plan.predicted_seconds < plan_direct(problem, H200).predicted_seconds / 1.5
    sums = plan.kernel.tile.row_tiles * plan.kernel.tile.position_tiles * sum_bytes(problem.layer)
    assert sums * planes(problem.layer) <= 128, "registers"


def test_a_kernel_that_loads_several_inputs_of_a_row_at_once_needs_rows_of_so_many():
    planned = plan_mma(U_NET, H200)
    assert planned.kernel.tile.patch_columns == 4
    fits, short = (replace(U_NET, input_size=(1, 256, width)) for width in (252, 254))
    assert launch(fits, planned.kernel, H200) is not None
    assert launch(short, planned.kernel, H200) is None
    assert plan_mma(short, H200).kernel.tile.patch_columns <= 2


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
    tile = mma_tile(layer, (1, 1), 2, 4, (1, 1, 1, columns), 1, padding % 2, channels_last, 1, together)
    assert can_copy(layer, tile, together) is copies


def test_layers_of_one_shift_have_several_chunks_on_their_way():
    for precision in ("tf32", "fp16"):
        problem = replace(U_NET, layer=replace(U_NET.layer, precision=precision))
        tile = plan_mma(problem, H200).kernel.tile
        assert tile.copied > 2
        fewer = replace(tile, copied=2)
        assert shared_bytes(problem.layer, fewer) < shared_bytes(problem.layer, tile)


def test_reasons_say_what_limits():
    reasons = "\n".join(plan_mma(U_NET, H200).reasons)
    wanted = ("tiles of 16 rows", "positions (images, slabs, rows, columns)", "have a tap", "copied", "by the model")
    for words in wanted:
        assert words in reasons
