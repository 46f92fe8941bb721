"""Fills the memory that a call will get with garbage, so that elements which nobody writes can be seen."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tconv.sandbox.gpu_memory import release

#: The value of every byte of fresh memory. It makes a huge number in float32, bfloat16 and float64, NaN in float16.
_BYTE = 0x7F
#: mallopt's M_PERTURB: fresh memory is filled with the complement of this byte.
_PERTURB = -6
#: The number of blocks that are filled and freed: a caching allocator chooses among freed blocks. Of blocks from
#: `_LARGE_BYTES` on, one is filled.
_BLOCKS = 3
_LARGE_BYTES = 2**28
#: At most this number of blocks is filled.
_MOST_BLOCKS = 8


@contextmanager
def poisoned(device: torch.device, output_bytes: int) -> Iterator[None]:
    """Within the block, new memory for an output of this size is filled with garbage.

    On the CPU, glibc fills all memory that it allocates. Elsewhere, filled blocks of the size are freed, and the
    caching allocator hands them to the next caller.
    """
    perturb = _mallopt() if device.type == "cpu" else None
    if perturb is None:
        release(some=True)
        reserved, count = torch.cuda.memory_reserved(device), _BLOCKS if output_bytes < _LARGE_BYTES else 1
        blocks: list[Tensor] = []
        # Blocks that were freed before may be handed out first. They are filled, too, until the allocator needs more.
        while len(blocks) < count or (torch.cuda.memory_reserved(device) == reserved and len(blocks) < _MOST_BLOCKS):
            blocks.append(torch.full((output_bytes,), _BYTE, dtype=torch.uint8, device=device))
        del blocks
        yield
        return
    perturb(_PERTURB, _BYTE ^ 0xFF)
    try:
        yield
    finally:
        perturb(_PERTURB, 0)


def looks_unwritten(tensor: Tensor) -> Tensor:
    """True for elements that hold the garbage of `poisoned`, or are not finite."""
    garbage = torch.full((tensor.element_size(),), _BYTE, dtype=torch.uint8, device=tensor.device)
    return (tensor == garbage.view(tensor.dtype)) | ~tensor.isfinite()


def _mallopt() -> Any:
    """glibc's mallopt; None where the C library has none."""
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
