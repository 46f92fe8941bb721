"""How kernels want tensors to lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

#: The channels_last format, by the number of axes. Tensors of other numbers have none.
CHANNELS_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: What a kernel loads or stores at once, at most.
VECTOR_BYTES = 16


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that begins at a multiple of 16 bytes: kernels may read that many at once."""
    return tensor.clone() if tensor.data_ptr() % VECTOR_BYTES else tensor
