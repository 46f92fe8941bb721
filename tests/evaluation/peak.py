"""How much memory PyTorch's tensors take at once while something runs."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """Counts the bytes of storages that are made while it is entered; `bytes` is the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._now = 0
        self._living: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count((args, kwargs), new=False)
        result = func(*args, **(kwargs or {}))
        self._count(result, new=True)
        return result

    def _count(self, tree: Any, new: bool) -> None:
        for tensor in tree_leaves(tree):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self._living:
                self._living[storage._cdata] = storage.nbytes() if new else 0
                weakref.finalize(storage, self._gone, storage._cdata)
                self._now += self._living[storage._cdata]
        self.bytes = max(self.bytes, self._now)

    def _gone(self, key: int) -> None:
        self._now -= self._living.pop(key)
