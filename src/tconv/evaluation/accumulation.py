"""Convolutions in 16 bits on a CPU, computed as GPUs compute them: sums in float32, rounded once.

PyTorch's convolutions there sum in float32 or in 16 bits, depending on the CPU's instructions. No verdict may depend on
the CPU, so model and candidate both run with float32 sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tconv.sandbox.recording import CONVOLUTIONS, Mode, decomposed

_OPERATORS = (*CONVOLUTIONS, torch.ops.aten.convolution_backward.default)


def in_float32(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function, in float32 if its first argument is a tensor of 16 bits on a CPU.

    All arguments of 16 bits are then widened, and results are rounded to the type of the first argument.
    """
    first = args[0]
    if not is_narrow(first):
        return function(*args, **kwargs)
    found = function(*map(_widened, args), **{name: _widened(value) for name, value in kwargs.items()})
    if isinstance(found, Tensor):
        return found.to(first.dtype)
    return tuple(None if each is None else each.to(first.dtype) for each in found)


def is_narrow(value: Any) -> bool:
    """Whether the value is a tensor of 16 bits on a CPU."""
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) and value.device.type == "cpu"


class Float32Accumulation(Mode):
    """While this mode is entered, all convolutions in 16 bits sum in float32, gradients included.

    Modules under torch.compile run uncompiled then: PyTorch calls the module itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if (parts := decomposed(self, func, args, kwargs)) is not NotImplemented:
            return parts
        if func in _OPERATORS:
            return in_float32(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _widened(value: Any) -> Any:
    return value.float() if is_narrow(value) else value
