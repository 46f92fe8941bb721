"""Tensors as kernels want them in memory."""

from __future__ import annotations

import torch

from tconv.memory import VECTOR_BYTES, aligned


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
