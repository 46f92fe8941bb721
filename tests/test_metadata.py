"""Tensors are recognised by what decides how a call runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tconv.metadata import alike

X, BIAS = torch.randn(2, 8, 4, 4), torch.randn(6)
WEIGHT = nn.Parameter(torch.randn(8, 6, 3, 3))


class Subclass(torch.Tensor):
    pass


def test_other_values_at_other_places_are_alike() -> None:
    same = alike(X, WEIGHT, BIAS)
    assert same(X, WEIGHT, BIAS)
    assert same(X + 1, nn.Parameter(WEIGHT + 1), BIAS.clone())


@pytest.mark.parametrize(
    "other",
    [
        X[:1],
        X[..., :3],
        X.to(memory_format=torch.channels_last),
        X.transpose(2, 3),
        X.half(),
        X.to("meta"),
        X.to_sparse(),
        torch._neg_view(X),
        X.clone().requires_grad_(),
        X.as_subclass(Subclass),
        nn.Parameter(X),
        None,
        2,
    ],
)
def test_others_are_not(other: object) -> None:
    same = alike(X, WEIGHT)
    assert same(X, WEIGHT)
    assert not same(other, WEIGHT)
    assert not same(WEIGHT, other)


def test_a_weight_that_changes_in_place_of_its_data() -> None:
    weight = nn.Parameter(WEIGHT.detach().clone())
    same = alike(X, weight)
    weight.data = weight.data + 1
    assert same(X, weight)
    weight.data = weight.data.half()
    assert not same(X, weight)
    weight.data = WEIGHT.data
    assert same(X, weight)
    weight.requires_grad_(False)
    assert not same(X, weight)


def test_without_guards_nothing_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*tensors: torch.Tensor) -> object:
        raise TypeError("it takes other arguments")

    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", other)
    assert not alike(X)(X)
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    assert not alike(X)(X)
