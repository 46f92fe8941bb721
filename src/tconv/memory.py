"""How kernels want tensors to lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

#: The channels_last format, by the number of axes. Tensors of other numbers have none.
CHANNELS_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: What a kernel loads or stores at once, at most.
VECTOR_BYTES = 16


def lies_last(weight: Tensor) -> bool:
    """Whether a layer's weights lie in channels_last, and not also contiguously."""
    if weight.is_contiguous() or weight.dim() not in CHANNELS_LAST_FORMATS:
        return False
    return weight.is_contiguous(memory_format=CHANNELS_LAST_FORMATS[weight.dim()])


def memory_format(dims: int, channels_last: bool) -> torch.memory_format:
    """Of tensors with so many axes, batch and channels among them."""
    return CHANNELS_LAST_FORMATS[dims] if channels_last else torch.contiguous_format


def laid_out(tensor: Tensor, last: bool) -> Tensor:
    """The tensor, or a copy, in channels_last if `last`, else contiguous."""
    return tensor.contiguous(memory_format=memory_format(tensor.dim(), last))


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that begins at a multiple of 16 bytes: kernels may read that many at once."""
    return tensor.clone() if tensor.data_ptr() % VECTOR_BYTES else tensor
