"""Puts the inputs of a call into tensors of an earlier call, or into new tensors at the same addresses."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

#: The most pieces of a GPU's memory that are allocated to find one at the last tensor's address.
_PIECES = 16


def into(old: Any, new: Any) -> Any:
    """The tensor `old` with `new`'s values if both have the same form; else `new`."""
    if type(old) is not Tensor or type(new) is not Tensor:
        return new
    forms = [(value.shape, value.dtype, value.stride(), value.storage_offset()) for value in (old, new)]
    return old.copy_(new) if forms[0] == forms[1] else new


class ReusedMemory:
    """Gives one tensor after another the same memory, like an allocator that reuses freed memory.

    A candidate that caches by address and version mistakes the next tensor for the last one. A candidate that holds the
    tensors it caches is right: while anybody holds the last tensor, the next one lies elsewhere.
    """

    def __init__(self) -> None:
        self._new_buffer(0)
        self._place = 0

    def hold(self, value: Any) -> Any:
        """A new tensor in this memory with a tensor's values; other values unchanged."""
        if type(value) is not Tensor or not value.numel() or 0 in value.stride():
            return value
        copy = self._on_cpu(value) if value.device.type == "cpu" else self._on_gpu(value)
        copy.data.copy_(value)  # .data keeps the version of a tensor that nobody has written to
        return copy

    def _on_cpu(self, value: Tensor) -> Tensor:
        reach = sum((length - 1) * step for length, step in zip(value.shape, value.stride(), strict=True)) + 1
        size = reach * value.element_size()
        if len(self._buffer) != size or sys.getrefcount(self._buffer) > self._unused:
            self._new_buffer(size)
        return torch.frombuffer(self._buffer, dtype=value.dtype).as_strided(value.shape, value.stride()).data

    def _new_buffer(self, size: int) -> None:
        self._buffer = bytearray(size)
        #: The buffer's references while no tensor lies in it.
        self._unused = sys.getrefcount(self._buffer)

    def _on_gpu(self, value: Tensor) -> Tensor:
        others: list[Tensor] = []
        copy = torch.empty_like(value)
        while copy.data_ptr() != self._place and len(others) < _PIECES:
            others.append(copy)  # held, so that the next one lies elsewhere
            copy = torch.empty_like(value)
        self._place = copy.data_ptr()
        return copy
