"""Tensors as kernels want them in memory."""

from __future__ import annotations

import torch

from tconv.memory import VECTOR_BYTES, aligned, laid_out, lies_last


def test_what_is_aligned_stays() -> None:
    tensor = torch.randn(8)
    assert aligned(tensor) is tensor


def test_what_is_not_is_copied_as_it_is() -> None:
    tensor = torch.randn(1 + 2 * 3 * 4 * 5)[1:].view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    shifted = torch.empty(tensor.numel() + 1)[1:].as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    assert shifted.data_ptr() % VECTOR_BYTES
    copy = aligned(shifted)
    assert copy.data_ptr() % VECTOR_BYTES == 0
    assert copy.stride() == shifted.stride() and torch.equal(copy, shifted)


def test_weights_lie_last_where_that_is_an_order_of_its_own() -> None:
    weight = torch.randn(4, 6, 3, 2)
    last = weight.to(memory_format=torch.channels_last)
    assert lies_last(last) and not lies_last(weight)
    assert lies_last(torch.randn(4, 6, 1, 3, 2).to(memory_format=torch.channels_last_3d))
    for both in (weight[:, :1], weight[..., :1, :1], torch.randn(4, 6, 3)):
        assert not lies_last(both.contiguous())
    assert not lies_last(weight.transpose(0, 1))
    assert laid_out(last, True) is last and laid_out(weight, False) is weight
    for given in (weight, last, weight.transpose(2, 3).contiguous().transpose(2, 3)):
        assert lies_last(laid_out(given, True)) and laid_out(given, False).is_contiguous()
        assert torch.equal(laid_out(given, True), weight)
