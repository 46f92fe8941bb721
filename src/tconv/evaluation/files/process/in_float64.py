"""Runs a model in float64, even if its own code names other types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    torch.complex64: torch.complex128,
}
#: Methods of tensors that name a type.
_CASTS = frozenset({"float", "half", "bfloat16"})
#: Functions whose random numbers depend on the type, with and without a tensor as a pattern.
_DRAWN, _DRAWN_LIKE = frozenset({"rand", "randn"}), frozenset({"rand_like", "randn_like"})


class _Widened(TorchFunctionMode):
    """Replaces narrower types in calls by float64. Random numbers are those of float32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _CASTS:
            return args[0].double()
        if name in _DRAWN or name in _DRAWN_LIKE:
            return func(*args, **{"dtype": torch.float32, **kwargs}).double()
        given = {name: _wide(value) for name, value in kwargs.items()}
        return func(*map(_wide, args), **given)


@contextmanager
def in_float64() -> Iterator[None]:
    """Within the block, tensors are made in float64, casts to narrower types do nothing, and autocast stays off."""
    enter, before = torch.autocast.__enter__, torch.get_default_dtype()

    def enter_without(self: Any) -> Any:
        self._enabled = False
        return enter(self)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = enter_without  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def _wide(value: Any) -> Any:
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value
