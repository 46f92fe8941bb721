"""Memory that a call gets is filled with garbage beforehand, so that elements which nobody writes show."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tconv.sandbox.gpu_memory import release

#: Every byte of fresh memory. A huge number in float32, bfloat16 and float64, NaN in float16.
_BYTE = 0x7F
#: mallopt's M_PERTURB: fresh memory is filled with the complement of this byte.
_PERTURB = -6
#: Caching allocators hand freed blocks back in an order of their own, so more than one is left behind, of large ones
#: no more than that.
_BLOCKS = 3
_LARGE_BYTES = 2**28
#: No more are looked for.
_MOST_BLOCKS = 8


@contextmanager
def poisoned(device: torch.device, output_bytes: int) -> Iterator[None]:
    """Within the block, memory for an output of that size comes filled with garbage.

    On the CPU, glibc fills everything that is allocated; elsewhere freed blocks of the size are left to the
    caching allocator, which hands them to whoever asks next.
    """
    perturb = _mallopt() if device.type == "cpu" else None
    if perturb is None:
        release(some=True)
        reserved, count = torch.cuda.memory_reserved(device), _BLOCKS if output_bytes < _LARGE_BYTES else 1
        blocks: list[Tensor] = []
        # What was freed before, and would be handed out first, is filled as well: until new memory is asked for.
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
    """True where an element is the garbage of `poisoned`, or not finite."""
    garbage = torch.full((tensor.element_size(),), _BYTE, dtype=torch.uint8, device=tensor.device)
    return (tensor == garbage.view(tensor.dtype)) | ~tensor.isfinite()


def _mallopt() -> Any:
    """glibc's mallopt, None where the C library has none."""
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
