"""What the planner of the wgmma family decides beyond what tests of all families ask."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tconv.planner import FAMILIES, Gpu, Kernel, Unplannable
from tconv.planner.block_tiles import rounds
from tconv.planner.wgmma.builder import wgmma_tile, with_resident_weights
from tconv.planner.wgmma.candidates import candidates
from tconv.planner.wgmma.launch import launch_traits
from tconv.planner.wgmma.model import predict
from tconv.planner.wgmma.shape import WgmmaShape
from tconv.problem import Layer, Problem

H200 = Gpu.h200()
WGMMA = FAMILIES["wgmma"]


def k2_s2(channels: int, groups: int = 1) -> Layer:
    return Layer(2, channels * groups, channels * groups, (1, 2, 2), (1, 2, 2), groups=groups, precision="fp16")


@pytest.mark.parametrize(("groups", "stay", "grid"), [(1, 0, 125), (1, 1, 125), (3, 0, 125), (3, 1, 126)])
def test_each_block_keeps_its_own_weights(groups, stay, grid):
    """As few blocks as the most block tiles of one ask for; those that keep their weights are so many of each set."""
    layer = k2_s2(64, groups)
    tile = wgmma_tile(
        layer,
        block_tile=(1, 1, 2, 64),
        channels=64,
        phases=4,
        position_tiles=1,
        stacked=0,
        k_tile_steps=2,
        patch_columns=8,
    )
    tile = with_resident_weights(layer, tile) if stay else tile
    plan = WGMMA.plan_with(Problem(layer, 500, (1, 2, 64)), Kernel("wgmma", layer, tile), H200)
    assert plan.grid == grid
    assert plan.grid % (groups if stay else 1) == 0


@pytest.mark.parametrize(("channels", "may"), [(64, True), (512, False)])
def test_weights_stay_where_they_fit_beside_two_stages_of_inputs(channels, may):
    layer = k2_s2(channels)
    tiles = candidates(Problem(layer, 64, (1, 64, 64)), layer, H200, together=8)
    shape, stay = WgmmaShape(layer, tiles), tiles.resident > 0
    all_of_them = stay & (shape.weight_sets == 1)
    assert bool(all_of_them.any()) == may
    assert (tiles.input_stages >= 2)[stay].all()
    assert (shape.shared_bytes > shape.set_bytes)[stay].all()
    assert (shape.shared_bytes <= H200.shared_bytes_per_block).all()


@pytest.mark.parametrize(("in_channels", "size", "batch"), [(2048, (1, 1, 1), 2**20), (8, (1, 4, 512), 2**20)])
def test_positions_and_channels_of_all_images_that_are_prepared_are_counted(in_channels, size, batch):
    layer = replace(k2_s2(64), in_channels=in_channels)
    tile = wgmma_tile(
        layer, block_tile=(1, 1, 2, 8), channels=32, phases=4, position_tiles=1, stacked=0, k_tile_steps=2,
        patch_columns=1, prepared_inputs=1,
    )  # fmt: skip
    kernel = Kernel("wgmma", layer, tile)
    assert WGMMA.plan_with(Problem(layer, batch - 1, size), kernel, H200).inputs is not None
    with pytest.raises(Unplannable, match="2147483648 blocks, or positions or channels of all images"):
        WGMMA.plan_with(Problem(layer, batch, size), kernel, H200)


def test_weights_that_a_block_reads_once_need_not_stay():
    layer, problem = k2_s2(64), Problem(k2_s2(64), 1, (1, 64, 64))
    tiles = candidates(problem, layer, H200, together=8)
    stay = (tiles.resident > 0) & (tiles.own_weights == 0)
    assert stay.any()
    assert (rounds(problem, layer, launch_traits(layer, tiles, H200.multiprocessors)) > 1)[stay].all()


def test_blocks_prepare_few_weights_themselves():
    few, many = Problem(k2_s2(64), 4, (1, 128, 128)), Problem(k2_s2(1024), 8, (1, 32, 32))
    tiles = candidates(few, few.layer, H200, together=8)
    own, shape = tiles.own_weights > 0, WgmmaShape(few.layer, tiles)
    assert own.any() and (tiles.resident > 0)[own].all() and (shape.phase_sets == 1)[own].all()
    assert ((shape.weight_bytes == 0) == own).all()
    assert WGMMA.plan(few, H200).preparation is None
    assert WGMMA.plan(many, H200).preparation is not None


@pytest.mark.parametrize(
    ("kernel", "padding", "places"),
    [
        (4, 1, 5 * 5),  # shifts -1 to 1, of which a phase has two
        (3, 1, 5 * 5),  # a phase has two shifts, or one
        (5, 2, 6 * 6),  # a phase has three of the three
    ],
)
def test_a_block_with_one_phase_brings_what_that_reads(kernel, padding, places):
    layer = Layer(2, 64, 64, (1, kernel, kernel), (1, 2, 2), (0, padding, padding), precision="tf32")
    alone = wgmma_tile(
        layer,
        block_tile=(1, 1, 4, 4),
        channels=64,
        phases=1,
        position_tiles=1,
        stacked=0,
        k_tile_steps=4,
        patch_columns=1,
    )
    shape, every = WgmmaShape(layer, alone), WgmmaShape(layer, replace(alone, phases=4))
    assert shape.halo_all_rows * shape.halo_columns == places
    assert shape.halo_all_rows <= every.halo_all_rows


@pytest.mark.parametrize(
    ("layer", "input_size", "precision", "columns"),
    [
        (Layer(3, 64, 128, (3, 3, 3), (2, 2, 2), (1, 1, 1), bias=True), (24, 48, 48), "tf32", 48),
        (Layer(2, 64, 128, (1, 4, 4), (1, 2, 2), bias=True), (1, 64, 64), "bf16", 68),
    ],
)
def test_block_tiles_have_whole_rows_where_rows_begin_within_sectors(layer, input_size, precision, columns):
    """1.6 and 1.9 times as fast, measured, as those whose runs end in sectors that other blocks store the rest of."""
    problem = Problem(replace(layer, precision=precision), 64, input_size)
    tile = WGMMA.plan(problem, H200).kernel.tile
    assert tile.block_tile.columns == columns and tile.block_tile.rows > 1
    assert tile.phases == math.prod(layer.stride), "rows of all phases lie behind each other"
    assert problem.output_size[2] * problem.layer.item_bytes % 32 > 0


def test_whole_rows_are_predicted_to_cut_fewer_sectors():
    layer = Layer(3, 64, 128, (3, 3, 3), (2, 2, 2), (1, 1, 1), precision="tf32")
    problem = Problem(layer, 16, (24, 48, 48))

    def memory(block_tile):
        tile = wgmma_tile(
            layer,
            block_tile=block_tile,
            channels=32,
            phases=8,
            position_tiles=1,
            stacked=0,
            k_tile_steps=4,
            patch_columns=4,
        )
        return predict(problem, layer, tile, H200).memory

    assert memory((1, 1, 2, 48)) < memory((1, 2, 1, 48)) < memory((1, 1, 4, 24)) < memory((1, 4, 2, 16))
