"""Copies of somebody's module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class _WithoutGraphs(TorchFunctionMode):
    """Copies of tensors that were computed with gradients, which have none in PyTorch, are cut off from these."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, known = args
            known[id(tensor)] = copied = tensor.detach().clone()
            return copied
        return func(*args, **(kwargs or {}))


def deep_copy(module: nn.Module) -> nn.Module:
    """``copy.deepcopy``, also of what a module remembers from its last call, wherever it keeps that."""
    with _WithoutGraphs():
        copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        if not parameter.is_leaf:  # a scripted module's remember what they were copied from
            parameter.detach_().requires_grad_()
    return copied


def buffers_outside(module: nn.Module) -> dict[str, Tensor]:
    """The values of buffers that its state_dict leaves out."""
    state = module.state_dict()
    return {name: buffer.clone() for name, buffer in module.named_buffers() if name not in state}


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Gives buffers these values again, in the values' types; what is no buffer any more stays as it is."""
    for name, value in values.items():
        prefix, _, own = name.rpartition(".")
        owner = module.get_submodule(prefix)
        if own in owner._buffers:
            owner._buffers[own] = value.clone()
