"""The ways in which other weights reach a module that has run before."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from tconv.evaluation.files.process.module_copies import set_buffers
from tconv.memory import CHANNELS_LAST_FORMATS
from tconv.sandbox.other_attributes import TOGETHER, Attribute, change_layers

#: In order: an optimizer's step; a load into a deep copy; a saved file loaded into a new module; a load after a cast; a
#: load after a cast on the CPU, then a cast back; a load into a deep copy with weights in channels_last; deep copies
#: whose transposed convolutions have another padding and no bias, or one of the two.
WeightChange = Literal["step", "copy", "file", "cast", "back", "format", "attributes", "padding", "bias"]

WEIGHT_CHANGES: dict[WeightChange, str] = {
    "step": "an optimizer's step",
    "copy": "copy.deepcopy, with other weights",
    "file": "torch.save and load_state_dict of a new module",
    "cast": "a cast to another type",
    "back": "a cast to another type and back, with other weights",
    "format": "copy.deepcopy, with other weights in channels_last",
    "attributes": "a change of its layers' padding, and of their bias to None",
    "padding": "a change of its layers' padding",
    "bias": "a change of its layers' bias to None",
}
#: The changes that set attributes of layers.
ATTRIBUTES: dict[WeightChange, tuple[Attribute, ...]] = {
    "attributes": TOGETHER,
    **{each: (each,) for each in TOGETHER},
}
#: Types that a module is cast to and back from.
OTHER_TYPE = {torch.float32: torch.float16, torch.float16: torch.float32}
#: Types that a module is cast to and called in, and the fewer types for files that compile kernels for each.
TYPES = (torch.float16, torch.bfloat16, torch.float64, torch.float32)
COMPILED_TYPES = tuple(OTHER_TYPE)


def taken(
    weight_change: WeightChange,
    module: nn.Module,
    state: Mapping[str, Tensor] | None,
    build: Callable[[], nn.Module],
    outside: Mapping[str, Tensor],
) -> nn.Module:
    """The module with the new state: the same module or another. Without a state it keeps that of `module`.

    Args:
        state: for a step, its difference from the current state must be exact; for a cast, it has the type of the cast.
        build: makes another module of the same class and arguments.
        outside: the values as built of buffers outside the state_dict. A cast rounds them, and no state restores them.
    """
    if weight_change in ("copy", "format", *ATTRIBUTES):
        module = copy.deepcopy(module)
        if weight_change in ATTRIBUTES:  # the state has what is taken away
            module.load_state_dict(state or {})
            change_layers(module, ATTRIBUTES[weight_change])
            return module
        for parameter in module.parameters() if weight_change == "format" else ():
            memory_format = CHANNELS_LAST_FORMATS.get(parameter.dim(), torch.contiguous_format)
            parameter.data = parameter.data.contiguous(memory_format=memory_format)
    elif weight_change == "file":
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        state, training, module = torch.load(file, weights_only=True), module.training, build()
        module.train(training)
    elif weight_change == "step":
        _step(module, state or {})
        return module
    elif weight_change == "cast" and state is not None:
        set_buffers(module, outside)
        module.to(type_of(state))
    elif weight_change == "back" and state is not None:
        narrow = type_of(state)
        device = next(module.parameters()).device
        module.cpu().to(narrow).load_state_dict(state)
        module.to(device, OTHER_TYPE[narrow])
        set_buffers(module, outside)
        return module
    if state is not None:
        module.load_state_dict(state)
    return module


def _step(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """A step of SGD with learning rate one. The gradient is the difference to the new state."""
    # In place like torch.optim.SGD, whose import takes seconds.
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and not torch.equal(parameter, state[name]):
                parameter.sub_(parameter - state[name])


def type_of(state: Mapping[str, Tensor]) -> torch.dtype:
    """The type of a state's floating-point numbers."""
    return next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
