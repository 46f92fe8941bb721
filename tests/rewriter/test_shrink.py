"""The sizes at which the emulator runs a layer: small enough, the layer's own parameters, never impossible."""

from __future__ import annotations

import random

import pytest

from tconv.problem import Layer, Problem
from tconv.rewriter.shrink import BUDGET, describe_change, shrink


def test_what_fits_stays() -> None:
    problem = Problem(Layer(2, 4, 4, (1, 3, 3)), 2, (1, 9, 9))
    assert shrink(problem) == problem
    assert describe_change(problem, shrink(problem)) == ""


def test_the_batch_goes_first_then_the_longest_axis() -> None:
    full = Problem(Layer(2, 64, 64, (1, 3, 7)), 8, (1, 512, 512))
    small = shrink(full)
    assert small.layer == full.layer
    assert (small.batch, small.input_size) == (2, (1, 8, 16))
    assert describe_change(full, small) == "batch 8 → 2, 512x512 → 8x16"


@pytest.mark.parametrize(("width", "together"), [(512, 8), (500, 4), (306, 2), (333, 1)])
def test_rows_that_are_loaded_several_inputs_at_once_stay_so(width: int, together: int) -> None:
    small = shrink(Problem(Layer(2, 64, 64, (1, 3, 7)), 8, (1, 512, width)))
    assert small.input_size[2] < width and small.input_size[2] % together == 0


def test_sparse_layers_are_cut_by_their_outputs() -> None:
    full = Problem(Layer(2, 1, 1, (1, 1, 1), (1, 64, 64)), 1, (1, 512, 512))
    small = shrink(full)
    assert small.multiply_adds <= 512 and small.output_shape[2] * small.output_shape[3] <= 2_000_000


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_layer_comes_within_the_budget_or_to_one_point(dims: int) -> None:
    chosen = random.Random(dims)
    for _ in range(200):
        sizes = [1] * (3 - dims) + [chosen.choice([5, 40, 1000]) for _ in range(dims)]
        kernel = [1] * (3 - dims) + [chosen.choice([1, 3, 11]) for _ in range(dims)]
        padding = [0] * (3 - dims) + [chosen.choice([0, 1, 2]) for _ in range(dims)]
        channels = chosen.choice([1, 64, 2048])
        layer = Layer(dims, channels, channels, tuple(kernel), padding=tuple(padding))  # type: ignore[arg-type]
        full = Problem(layer, chosen.choice([1, 7, 300]), tuple(sizes))  # type: ignore[arg-type]
        small = shrink(full)
        assert small.layer == full.layer
        assert small.multiply_adds <= BUDGET or small.batch == 1
        assert min(small.output_size) >= 1
