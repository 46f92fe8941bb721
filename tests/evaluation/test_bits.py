"""Fingerprints tell tensors apart as a comparison of their bytes does, however many pieces they are read in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tconv.evaluation import bits
from tconv.evaluation.bits import contents, fingerprint, same_bytes


def drawn(dtype: torch.dtype) -> Tensor:
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)


TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex128]


@pytest.fixture(params=[{"cpu": 0}, bits._HASHED_BYTES], ids=["weighted", "hashed"])
def hashed_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_HASHED_BYTES", request.param)


@pytest.mark.usefixtures("hashed_bytes")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("piece", [1, 6, 35, 100])
def test_one_changed_element_gives_another(dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_PIECE", piece)
    tensor = drawn(dtype)
    before = fingerprint(tensor)
    assert before == fingerprint(tensor.clone()) == fingerprint(tensor.t().contiguous().t())
    assert same_bytes(tensor, tensor.t().contiguous().t())
    for place in range(tensor.numel()):
        other = tensor.clone().flatten()
        other[place] = not other[place] if dtype == torch.bool else other[place] + 1
        assert fingerprint(other.view(5, 7)) != before
        assert not same_bytes(other.view(5, 7), tensor)


@pytest.mark.usefixtures("hashed_bytes")
def test_elements_that_change_places_give_another() -> None:
    tensor = drawn(torch.float32)
    assert fingerprint(tensor.flip(0)) != fingerprint(tensor)
    assert fingerprint(tensor.roll(1)) != fingerprint(tensor)
    assert fingerprint(-tensor) != fingerprint(tensor)


@pytest.mark.usefixtures("hashed_bytes")
def test_shape_and_type_count() -> None:
    zeros = torch.zeros(4)
    assert len({fingerprint(each) for each in (zeros, zeros.view(2, 2), zeros.int(), torch.zeros(0))}) == 4
    assert not same_bytes(zeros, zeros.int()) and not same_bytes(zeros, zeros.view(2, 2))


@pytest.mark.usefixtures("hashed_bytes")
def test_bits_count_and_not_values() -> None:
    nan, zero = torch.full((3,), torch.nan), torch.zeros(3)
    assert same_bytes(nan, nan.clone()) and fingerprint(nan) == fingerprint(nan.clone())
    assert not same_bytes(zero, -zero) and fingerprint(zero) != fingerprint(-zero)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("piece", [1, 6, 100])
def test_contents_do_not_know_the_order(dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_PIECE", piece)
    tensor = drawn(dtype)
    assert contents(tensor) == contents(tensor.flip(0)) == contents(tensor.flatten().roll(3))
    if dtype != torch.bool:
        other = tensor.clone()
        other[3, 2] = other[3, 2] + 1
        assert contents(other) != contents(tensor)
        assert contents(torch.zeros_like(tensor)) != contents(tensor)
