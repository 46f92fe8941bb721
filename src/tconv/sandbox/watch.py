"""Which parts of PyTorch, of Python and of this package somebody's program has put something else in place of.

A candidate that patches them changes the program of whoever uses it, and means to change what judges and times it.
The comparison is made elsewhere, so nothing depends on noticing; a program that wants to hide it can.
"""

from __future__ import annotations

import builtins
import json
import pickle
import random
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from tconv.precision import allows_tf32

#: Where PyTorch and Python keep what programs call; and classes whose methods are looked up at each call.
_MODULES = (builtins, json, time, torch, torch.cuda, torch.testing, nn, nn.functional, nn.init, nn.utils)
_LAYERS = tuple(value for value in vars(nn).values() if isinstance(value, type) and issubclass(value, nn.Module))
_OPTIMIZERS = tuple(value for value in vars(torch.optim).values() if isinstance(value, type))
_CLASSES = (torch.Tensor, torch.cuda.Event, torch.cuda.Stream, *_LAYERS, *_OPTIMIZERS)
_HOOKS = "_global_"
#: Dispatch keys under which operators compute.
_COMPUTING = {
    *("CPU", "CUDA", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "BackendSelect", "ADInplaceOrView"),
    *("Autograd", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA", "Python"),
}
_PACKAGE = "tconv."
#: What PyTorch itself puts elsewhere when a flag changes: here the class of the default type.
_FOLLOWS_A_FLAG = ("torch.Storage",)
#: A number that is zero where denormal ones are.
_DENORMAL = 1e-310


class Watch:
    """Remembers what is where; `rebound` tells what is no longer."""

    def __init__(self) -> None:
        self._implementations, self._hooks = _implementations(), _hooks()
        self._places = [
            _Place(prefix, names, known, inherited)
            for prefix, names, constants_too, inherited in _watched()
            for known in [{name: value for name, value in names.items() if constants_too or callable(value)}]
        ]

    def rebound(self) -> list[str]:
        """Dotted names that are gone or now mean something else, but for what PyTorch itself wraps later on."""
        found = [name for place in self._places for name in place.rebound()]
        return [*found, *sorted(_implementations() - self._implementations), *sorted(_hooks() - self._hooks)]


class _Place(NamedTuple):
    """A module or class: its dotted name, its names as they are at each look and as they were, and what it inherits.

    It is looked at after each call, so each name is looked up once, where it is defined.
    """

    dotted: str
    names: Mapping[str, Any]
    known: Mapping[str, Any]
    inherited: frozenset[str]

    def rebound(self) -> list[str]:
        names = self.names
        others = [name for name, value in self.known.items() if names.get(name) is not value]
        if not self.inherited.isdisjoint(names):  # a method of its own now comes before one that it inherits
            others += sorted(self.inherited.intersection(names))
        dotted = [(f"{self.dotted}.{name}", names.get(name)) for name in others]
        return [name for name, value in dotted if not _is_pytorchs(value) and name not in _FOLLOWS_A_FLAG]


def modes() -> dict[str, Any]:
    """What a call may change for whoever runs after it, by what it is called."""
    return {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled(),
        "torch.is_autocast_enabled()": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "the hooks on saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "the modes of torch.overrides": torch._C._len_torch_function_stack(),
        "the modes of torch.utils._python_dispatch": torch._C._len_torch_dispatch_stack(),
    }


def flags() -> dict[str, Any]:
    """Flags of PyTorch."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return {
        "torch.backends.cudnn.enabled": torch._C._get_cudnn_enabled(),
        "torch.backends.cudnn.benchmark": torch._C._get_cudnn_benchmark(),
        "torch.backends.cudnn.deterministic": torch._C._get_cudnn_deterministic(),
        "torch.backends.cudnn.allow_tf32": allows_tf32(),
        "torch.backends.cuda.matmul.allow_tf32": newer("cuda", "matmul")
        if newer
        else torch._C._get_cublas_allow_tf32(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "torch.set_flush_denormal()": not bool(torch.full((), _DENORMAL, dtype=torch.float64) * 1.0),
    }


def traces() -> dict[str, Any]:
    """Flags and states of random numbers, which a call leaves as they were unless `Model`'s changes them."""
    found = {
        **flags(),
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "Python's random state": random.getstate(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["torch's random state on the GPU"] = torch.cuda.get_rng_state().numpy().tobytes()
    if numpy := sys.modules.get("numpy"):
        found["NumPy's random state"] = pickle.dumps(numpy.random.get_state(legacy=False))
    return found


def left_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of what has another value afterwards; what was not there before is nobody's."""
    return [name for name, value in before.items() if after[name] != value]


def _implementations() -> set[str]:
    """PyTorch's own operators with an implementation that Python has registered: ``aten::relu on CPU``."""
    keys = (key.split("/") for key in getattr(torch.library, "_impls", ()))
    # Others, of shapes alone or for vmap, PyTorch registers when they are first needed.
    return {f"aten::{key[1]} on {key[-1]}" for key in keys if key[0] == "aten" and key[-1] in _COMPUTING}


def _hooks() -> set[str]:
    """The lists of hooks on every module, and on every optimizer, that are not empty."""
    owners = (nn.modules.module, sys.modules[torch.optim.Optimizer.__module__])
    named = ((owner.__name__, name, hooks) for owner in owners for name, hooks in vars(owner).items())
    return {f"{owner}.{name}" for owner, name, hooks in named if name.startswith(_HOOKS) and hooks}


def _watched() -> Iterator[tuple[str, Mapping[str, Any], bool, frozenset[str]]]:
    """Dotted prefix, names with values, whether constants count (those of this package do), and methods inherited."""
    for theirs in _MODULES:
        yield theirs.__name__, vars(theirs), False, frozenset()
    for owner in dict.fromkeys(base for each in _CLASSES for base in each.__mro__):
        methods = {name for base in owner.__mro__[1:] for name, value in vars(base).items() if callable(value)}
        yield f"{owner.__module__}.{owner.__name__}", vars(owner), False, frozenset(methods.difference(vars(owner)))
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE):
            yield name, vars(module), True, frozenset()
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{value.__name__}", vars(value), False, frozenset()


def _is_pytorchs(value: Any) -> bool:
    """torch.compile wraps a few functions of PyTorch when it is first used."""
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(torch.__path__[0])
