"""Running a model in float64 that names other types itself."""

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
#: Whose random numbers depend on the type, with and without a tensor to be like.
_DRAWN, _DRAWN_LIKE = frozenset({"rand", "randn"}), frozenset({"rand_like", "randn_like"})


class _Widened(TorchFunctionMode):
    """Takes float64 for every narrower type that an operation is asked for; random numbers are those of float32."""

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
    """Within the block tensors are made in float64 and cast to nothing narrower, and autocast stays switched off."""
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
