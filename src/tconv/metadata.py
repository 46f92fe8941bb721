"""Tensors like others, recognised by one call: reading what they are takes longer than a launch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def alike(*tensors: Tensor) -> Callable[..., bool]:
    """A function that says of as many tensors whether each has the metadata of its counterpart among these.

    That is its type, shape, strides, dtype, device, `requires_grad`, and whether it is negated lazily. True can be
    relied on. False may be a mistake: so it is if a tensor is given twice, in a mode that was not on before, or where
    PyTorch has no such guards.
    """
    try:
        guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    except (AttributeError, TypeError):
        return never
    return guards.check


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own: not the wrapper of a transform of torch.func, though that has ended."""
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def never(*tensors: Tensor) -> bool:
    """Says that no tensors are like others."""
    return False
