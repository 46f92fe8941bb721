"""What the planner says that a program costs, against what was measured; and what that decides."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from layers import problem_of
from results import cases

from tconv.planner import Gpu, choose
from tconv.planner.choice import leading, was_slower, why_pytorch
from tconv.planner.epilogue_cost import fused_seconds, pass_seconds
from tconv.planner.numbers import ceil_div
from tconv.planner.tuned import Question, Tuned
from tconv.planner.wgmma.model import predict
from tconv.problem import Layer, Problem

H200 = Gpu.h200()
OTHER = Gpu("NVIDIA A100", "sm_80", 108, 163 * 1024)
CLAMPS = "min(max(min(max(y + 0.25, 0), 1) * 2, 0), 1) * 0.5"
MISH = "t0 = exp(min(y, 20)); t1 = t0 * (t0 + 2); min(max(y * (t1 / (t1 + 2)) + 0.5, -1), 1) * 2"
GELU = "t0 = min(y + 0.5, 0); t0 * 0.5 * (1 + erf(t0 * 0.7071067811865476)) * 2"
WIDE = Problem(
    Layer(2, 64, 64, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=True, precision="tf32"), 128, (1, 128, 128), (0, 1, 1)
)
FOUR = Problem(Layer(2, 64, 128, (1, 4, 4), (1, 2, 2), bias=True, precision="tf32"), 128, (1, 64, 64))


def with_program(problem: Problem, program: str) -> Problem:
    return replace(problem, layer=replace(problem.layer, epilogue=program))


@pytest.mark.parametrize(
    ("problem", "program", "alone", "measured"),
    [
        (WIDE, CLAMPS, 0.793, 0.851),
        (WIDE, MISH, 0.793, 0.980),
        (WIDE, GELU, 0.793, 1.079),
        (WIDE, "y + output0", 0.793, 1.546),
        (FOUR, GELU, 0.818, 0.965),
        (FOUR, MISH, 0.818, 0.872),
        (FOUR, "y + output0", 0.818, 1.183),
    ],
)
def test_kernels_take_about_what_was_measured(problem: Problem, program: str, alone: float, measured: float) -> None:
    """Milliseconds on one NVIDIA H200, of the layer alone and with the program behind it."""
    added = fused_seconds(with_program(problem, program), H200) * 1e3
    assert alone + added == pytest.approx(measured, rel=0.1)


def test_tensors_of_the_results_shape_are_read_and_channels_are_computed_once() -> None:
    result = 4 * 128 * 64 * 256 * 256
    added = with_program(WIDE, "y + output0")
    reads = fused_seconds(added, H200) - fused_seconds(with_program(WIDE, "y + channel0"), H200)
    assert reads == pytest.approx(1.6 * result / H200.copy_bandwidth)
    assert pass_seconds(added, H200) > 3 * result / H200.copy_bandwidth > fused_seconds(added, H200)
    scaled = with_program(WIDE, "y * channel0")
    assert fused_seconds(with_program(WIDE, "y * exp(sin(channel0))"), H200) == fused_seconds(scaled, H200)
    assert fused_seconds(WIDE, H200) == pass_seconds(WIDE, H200) == 0


def test_a_block_tile_that_reaches_beyond_the_outputs_computes_there_too() -> None:
    """65 positions in each row and column: block tiles of 66 columns compute the program for fewer places than those of
    68."""
    kernels = [kernel for kernel, _ in leading(Question(FOUR), H200, 12) if kernel.family == "wgmma"]
    behind, block_tiles = with_program(FOUR, GELU), [kernel.tile.block_tile for kernel in kernels]
    costs = [[predict(each, kernel.layer, kernel.tile, H200).seconds for kernel in kernels] for each in (FOUR, behind)]
    covered = [
        ceil_div(65, each.rows) * each.rows * ceil_div(65, each.columns) * each.columns / 65**2 for each in block_tiles
    ]
    assert {66, 68} <= {each.columns for each in block_tiles}
    assert [own - alone for alone, own in zip(*costs, strict=True)] == pytest.approx(
        [fused_seconds(behind, H200) * share for share in covered]
    )
    assert choose(Question(FOUR), H200).kernel.tile.block_tile.columns == 68
    assert choose(Question(behind), H200).kernel.tile.block_tile.columns == 66


def test_a_pass_that_is_saved_speaks_for_the_kernel() -> None:
    alone = Question(replace(problem_of(cases()["rvc-v2-48k-nsf-hifigan-ups-0"]), batch=2))
    behind = replace(alone, problem=with_program(alone.problem, "max(y, 0)"))
    assert why_pytorch(alone, choose(alone, OTHER), OTHER) is not None
    assert why_pytorch(behind, choose(behind, OTHER), OTHER) is None


def test_what_was_measured_of_the_layer_alone_is_weighed_with_the_program_behind_both() -> None:
    alone = Question(WIDE)
    kernel = choose(alone, H200).kernel
    slower = Tuned(kernel.family, kernel.tile, milliseconds=1.1, pytorch_milliseconds=1.0, tried=2)
    behind = Question(with_program(WIDE, "max(y, 0)"))
    assert was_slower(alone, {alone: slower}, H200) == slower.why_pytorch()
    assert was_slower(behind, {alone: slower}, H200) is None
    assert was_slower(behind, {alone: replace(slower, milliseconds=9.0)}, H200)
    assert was_slower(alone, {}, H200) is None


def test_what_was_measured_with_the_program_comes_first() -> None:
    alone, behind = Question(WIDE), Question(with_program(WIDE, MISH))
    first, second = (kernel for kernel, _ in leading(alone, H200, 12)[:2])
    measured = {
        question: Tuned(kernel.family, kernel.tile, milliseconds=1.0, pytorch_milliseconds=0.9, tried=2)
        for question, kernel in ((alone, first), (behind, second))
    }
    assert choose(alone, H200, tuned=measured).kernel.tile == first.tile
    assert choose(behind, H200, tuned=measured).kernel.tile == second.tile
    assert choose(Question(with_program(WIDE, "max(y, 0)")), H200, tuned=measured).kernel.tile == first.tile
    into = replace(WIDE, layer=replace(WIDE.layer, epilogue=MISH), into=128)
    assert choose(Question(into), H200, tuned={behind: measured[behind]}).kernel.tile == second.tile
    # Its time holds the program's, and PyTorch's does not: a pass of some 1.2 ms.
    assert was_slower(behind, {behind: replace(measured[behind], milliseconds=1.9)}, H200) is None
    assert was_slower(behind, {behind: replace(measured[behind], milliseconds=2.3)}, H200)
