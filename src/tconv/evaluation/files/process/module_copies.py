"""Deep copies of a candidate's module, and its buffers outside the state_dict."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class _WithoutGraphs(TorchFunctionMode):
    """Lets deepcopy copy tensors that were computed with gradients, which PyTorch refuses. Copies have no graph."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, known = args
            known[id(tensor)] = copied = tensor.detach().clone()
            return copied
        return func(*args, **(kwargs or {}))


def deep_copy(module: nn.Module) -> nn.Module:
    """``copy.deepcopy``, which also copies tensors that a module caches from its last call."""
    with _WithoutGraphs():
        copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        if not parameter.is_leaf:  # parameters of a scripted module keep a graph to the originals
            parameter.detach_().requires_grad_()
    return copied


def buffers_outside(module: nn.Module) -> dict[str, Tensor]:
    """The values of the module's buffers that its state_dict leaves out."""
    state = module.state_dict()
    return {name: buffer.clone() for name, buffer in module.named_buffers() if name not in state}


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set buffers to these values, in the values' types. Names that are no buffers any more are skipped."""
    for name, value in values.items():
        prefix, _, own = name.rpartition(".")
        owner = module.get_submodule(prefix)
        if own in owner._buffers:
            owner._buffers[own] = value.clone()
