"""The ways on which other weights reach a module that has run before."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from tconv.evaluation.files.process.module_copies import set_buffers
from tconv.sandbox.other_attributes import TOGETHER, Attribute, change_layers

#: An optimizer's step; into a deep copy; by a file of the state into a module built anew; into the module cast to
#: another type; into that on the CPU, and from there back again; into a deep copy with weights in channels_last; into
#: one whose transposed convolutions have another padding, no bias, or both.
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
#: What such a change takes from layers, or gives them.
ATTRIBUTES: dict[WeightChange, tuple[Attribute, ...]] = {
    "attributes": TOGETHER,
    **{each: (each,) for each in TOGETHER},
}
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
#: What a module is cast to, and back from; others are not.
OTHER_TYPE = {torch.float32: torch.float16, torch.float16: torch.float32}
#: The types in which a module is called, and those of them where each costs a compilation.
TYPES = (torch.float16, torch.bfloat16, torch.float64, torch.float32)
COMPILED_TYPES = tuple(OTHER_TYPE)


def taken(
    weight_change: WeightChange,
    module: nn.Module,
    state: Mapping[str, Tensor] | None,
    build: Callable[[], nn.Module],
    outside: Mapping[str, Tensor],
) -> nn.Module:
    """The module that has the state, the same one or another; without a state it has that of the given one.

    Args:
        state: by a step, differs from the present one by what floating-point numbers can tell exactly; by a cast it is
            in the type that the module is cast to.
        build: another module of the same class and arguments.
        outside: what buffers that are no part of the state were built with. A cast rounds them, and no state brings
            them back.
    """
    if weight_change in ("copy", "format", *ATTRIBUTES):
        module = copy.deepcopy(module)
        if weight_change in ATTRIBUTES:  # the state has what is taken away
            module.load_state_dict(state or {})
            change_layers(module, ATTRIBUTES[weight_change])
            return module
        for parameter in module.parameters() if weight_change == "format" else ():
            memory_format = _LAST.get(parameter.dim(), torch.contiguous_format)
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
    """SGD with the learning rate one, and what is to go as the gradient."""
    # In place, as torch.optim.SGD does it: PyTorch's first optimizer imports for seconds.
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and not torch.equal(parameter, state[name]):
                parameter.sub_(parameter - state[name])


def type_of(state: Mapping[str, Tensor]) -> torch.dtype:
    """That of its floating-point numbers."""
    return next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
