"""Memory for what kernels write."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


#: A new tensor on the current CUDA device, by shape, strides and dtype: as compiled code allocates, in half the time.
empty: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor] = getattr(
    torch._C._dynamo.guards, "_empty_strided_cuda", _empty
)
