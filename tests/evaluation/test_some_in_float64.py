"""Of large results a few samples are beside float64; whatever is wrong in the others is found all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_equality import DENSE, failed  # type: ignore[import-not-found]
from test_judging_by_slices import CASE  # type: ignore[import-not-found]
from torch import Tensor

from tconv.evaluation import equality
from tconv.evaluation.comparison import Comparison, apart, as_near
from tconv.evaluation.equality import check_layer
from tconv.evaluation.files.process.by_samples import at_samples
from tconv.evaluation.files.results import some_samples
from tconv.evaluation.files.results.some_samples import check_some_in_float64, some_of
from tconv.evaluation.files.sides.candidate_calls import Calls
from tconv.evaluation.files.sides.file_process import Outcome
from tconv.evaluation.files.sides.model_and_candidate import Pair
from tconv.evaluation.reference import conv_transpose
from tconv.sandbox.model_file import ModelFileError

SAMPLES = 16
LAYER = replace(DENSE, batch=6)
Change = Callable[[Tensor], Any]


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_samples, "_LARGE_BYTES", 1)
    monkeypatch.setattr(equality, "_SLICE_BYTES", 1)


def draw() -> Tensor:
    return torch.randn(SAMPLES, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Side:
    """A model whose float32 results are rounded ones of `exact`."""

    def __init__(self, exact: Tensor, samples_hang_on_each_other: bool = False) -> None:
        self.exact, self.refuses = exact, samples_hang_on_each_other
        self.samples_apart = False

    def forward(self, inputs: Any, state: Any, *, samples: Any, **options: Any) -> Outcome:
        if self.refuses:
            raise ModelFileError("samples hang on each other")
        return Outcome(at_samples(self.exact, samples), (), (), (), True)


def pair_of(model: Side) -> Pair:
    side: Any = model
    return Pair(CASE, side, "match", torch.device("cpu"), "default", calls=Calls(side))


def test_which_samples() -> None:
    assert some_of(draw()) == (0, 5, 10, 15)
    assert some_of([draw(), torch.zeros(SAMPLES)]) == (0, 5, 10, 15)
    assert some_of([draw(), torch.zeros(3)]) == some_of(torch.zeros(())) == some_of(torch.zeros(4, 9)) == ()


def test_which_samples_of_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_samples, "_SOME_BYTES", 1)
    assert some_of(draw()) == (0, 15)
    monkeypatch.setattr(some_samples, "_LARGE_BYTES", 2**28)
    assert some_of(draw()) == ()


def element(tensor: Tensor) -> None:
    tensor[7, 3, 2] += 0.1


def number(tensor: Tensor) -> None:
    tensor[7, 3, 2] = math.nan


def infinite(tensor: Tensor) -> None:
    tensor[7, 3, 2] = math.inf


def sample(tensor: Tensor) -> None:
    tensor[8] *= 1 + 1e-5


def first(tensor: Tensor) -> None:
    tensor[0] *= 1 + 1e-3


def nothing(tensor: Tensor) -> None:
    pass


@pytest.mark.parametrize("change", [element, number, infinite, sample, first])
def test_what_is_wrong_in_any_sample_is_left_to_the_rules_for_all(change: Change) -> None:
    exact = draw()
    got = exact.float()
    change(got)
    plain = Outcome((exact * (1 + 1e-7)).float(), (), (), ())
    assert check_some_in_float64(pair_of(Side(exact)), got, plain, {}, 0) is None


def test_what_is_right_is_accepted() -> None:
    exact = draw()
    plain = Outcome((exact * (1 + 1e-7)).float(), (), (), ())
    model = Side(exact)
    checks = check_some_in_float64(pair_of(model), exact.float(), plain, {}, 0)
    assert checks and all(check.passed for check in checks) and model.samples_apart


def test_where_samples_hang_on_each_other_or_inputs_change_all_are_looked_at() -> None:
    exact = draw()
    got = exact.float()
    plain = Outcome(got, (), (), ())
    assert check_some_in_float64(pair_of(Side(exact, True)), got, plain, {}, 0) is None
    assert check_some_in_float64(pair_of(Side(exact)), got, Outcome(got, ("input[0]",), (), ()), {}, 0) is None


def test_distances() -> None:
    ones = torch.ones(4, 6)
    other = ones.clone()
    other[2, 3] += 0.5
    pooled, worst = apart(other, ones)
    assert (pooled, worst) == (pytest.approx(0.5 / math.sqrt(24)), 0.5)
    assert all(map(math.isnan, apart(torch.full((3,), math.nan), torch.ones(3))))
    assert as_near((2.0, 2.0), [(0.5, 1.0), (1.0, 0.0)]) and as_near((0.0, 0.0), [(0.0, 0.0)])
    assert not as_near((2.1, 0.0), [(1.0, 1.0)]) and not as_near((0.0, 2.1), [(1.0, 1.0)])
    assert not as_near((math.nan, math.nan), [(1.0, 1.0)])


def right(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return conv_transpose(x, weight, bias, replace(LAYER, batch=len(x)))


@pytest.mark.parametrize("where", range(LAYER.batch))
def test_of_a_layer_what_is_wrong_in_any_sample_is_found(where: int) -> None:
    def wrong(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = right(x, weight, bias)
        if len(x) > where:
            y[where, -1, -1, -1] += 1
        return y

    verdict = check_layer(wrong, LAYER, "fp32", draw_count=1, awkward=False, all_samples=False)
    assert "every element" in failed(verdict)


def test_of_a_layer_few_samples_are_beside_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    add = Comparison.add

    def counting(self: Comparison, got: Tensor, *arguments: Any, **options: Any) -> None:
        counted.append(len(got))
        add(self, got, *arguments, **options)

    monkeypatch.setattr(Comparison, "add", counting)
    monkeypatch.setattr(equality, "_SOME_SLICES", 2)
    assert LAYER.batch > 2
    for all_samples, expected in ((True, LAYER.batch), (False, 2)):
        counted.clear()
        verdict = check_layer(right, LAYER, "fp32", draw_count=1, awkward=False, all_samples=all_samples)
        assert verdict.equal and sum(counted) == expected
