"""On a machine without a GPU, model files that say "cuda" mean the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _device


class CudaMeansCpu(TorchFunctionMode):
    """While it is entered, ``.cuda()``, ``.to("cuda")`` and ``device="cuda"`` give CPU tensors."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cuda or func is Tensor.pin_memory:
            return args[0]
        if kwargs.get("device") is not None:
            kwargs["device"] = _on_cpu(kwargs["device"])
        elif _on_cpu(_device.CURRENT_DEVICE) != _device.CURRENT_DEVICE and func in _device._device_constructors():
            # A default device fills this in only after us.
            kwargs["device"] = torch.device("cpu")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func is Tensor.to:
            args = (args[0], *map(_on_cpu, args[1:]))
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    """The CPU for anything that names a CUDA device; everything else unchanged. An index alone means CUDA, too."""
    named = isinstance(value, str) and value.partition(":")[0] == "cuda"
    indexed = isinstance(value, int) and not isinstance(value, bool)
    if named or indexed or (isinstance(value, torch.device) and value.type == "cuda"):
        return torch.device("cpu")
    return value


def autocast_dtype() -> torch.dtype | None:
    """The type that the CPU's autocast gives operands, which stands for CUDA's; None where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
