"""A forward pass as PyTorch would run it on operands rounded to TF32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tconv.evaluation.reference import rounded_tf32
from tconv.sandbox.recording import CONVOLUTIONS, Mode, decomposed


class RoundedConvolutions(Mode):
    """While this mode is entered, transposed float32 convolutions take operands rounded to TF32.

    Convolutions whose number, among all convolutions, is in `exempt` take them as they are.
    """

    def __init__(self, exempt: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._exempt = set(exempt)
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if (parts := decomposed(self, func, args, kwargs)) is not NotImplemented:
            return parts
        if func in CONVOLUTIONS:
            transposed = args[6]
            if transposed and self._count not in self._exempt and args[0].dtype == torch.float32:
                args = (rounded_tf32(args[0]), rounded_tf32(args[1]), *args[2:])
            self._count += 1
        return func(*args, **(kwargs or {}))
