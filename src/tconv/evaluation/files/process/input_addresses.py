"""Where the inputs of a call lie: in tensors of an earlier call, or in new ones at the addresses of those."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

#: Of a GPU's memory so many pieces are asked for until one lies where the last tensor did.
_PIECES = 16


def into(old: Any, new: Any) -> Any:
    """`new`'s values in the tensor `old`, where that has the same form; else `new`."""
    if type(old) is not Tensor or type(new) is not Tensor:
        return new
    forms = [(value.shape, value.dtype, value.stride(), value.storage_offset()) for value in (old, new)]
    return old.copy_(new) if forms[0] == forms[1] else new


class ReusedMemory:
    """Memory of one tensor after another, as an allocator gives again what was given back.

    A program that knows a tensor by its address and version takes the next one for it. One that holds what it knows is
    right: as long as anybody does, the next one lies elsewhere.
    """

    def __init__(self) -> None:
        self._new_buffer(0)
        self._place = 0

    def hold(self, value: Any) -> Any:
        """A tensor's values in a new one there; anything else as it is."""
        if type(value) is not Tensor or not value.numel() or 0 in value.stride():
            return value
        copy = self._on_cpu(value) if value.device.type == "cpu" else self._on_gpu(value)
        copy.data.copy_(value)  # through another tensor: its version is that of one nobody has written to
        return copy

    def _on_cpu(self, value: Tensor) -> Tensor:
        reach = sum((length - 1) * step for length, step in zip(value.shape, value.stride(), strict=True)) + 1
        size = reach * value.element_size()
        if len(self._buffer) != size or sys.getrefcount(self._buffer) > self._unused:
            self._new_buffer(size)
        return torch.frombuffer(self._buffer, dtype=value.dtype).as_strided(value.shape, value.stride()).data

    def _new_buffer(self, size: int) -> None:
        self._buffer = bytearray(size)
        #: References to it while no tensor lies there.
        self._unused = sys.getrefcount(self._buffer)

    def _on_gpu(self, value: Tensor) -> Tensor:
        others: list[Tensor] = []
        copy = torch.empty_like(value)
        while copy.data_ptr() != self._place and len(others) < _PIECES:
            others.append(copy)  # held, so that the next one lies elsewhere
            copy = torch.empty_like(value)
        self._place = copy.data_ptr()
        return copy
