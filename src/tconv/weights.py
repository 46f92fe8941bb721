"""The weights of a frozen layer, kept in the order in which its kernels load them.

Prepared weights are a copy, and nothing tells when what they were copied from is written in place. So they are kept
only for layers whose owner said that this does not happen: `tconv.optimize(model, freeze=True)`, or Inductor's option
`freezing`.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tconv.memory import aligned, laid_out
from tconv.planner import Plan


class Preparing(Protocol):
    """What is needed here of a `tconv.jit.loader.Launcher`."""

    @property
    def preparing(self) -> Any: ...
    @property
    def weights_last(self) -> bool: ...

    def prepare(self, weight: int, memory: Tensor | None = None) -> Tensor: ...


def layout_of(plan: Plan) -> str:
    """Names the order in which the plan's kernel takes its weights: two that differ may not share prepared ones.

    Empty where it takes them as they are.
    """
    if plan.preparation is None:
        return ""
    # How they lay before makes no difference.
    kernel = replace(plan.kernel, layer=replace(plan.kernel.layer, weights_last=False))
    return hashlib.sha256(repr(kernel).encode()).hexdigest()[:16]


def prepare(launcher: Preparing, weight: Tensor, memory: Tensor | None = None) -> Tensor:
    """The bytes that the launcher's kernel takes for these weights. Every stream may read them from now on.

    Args:
        memory: what an earlier call gave, to be written anew; by default memory is allocated.
    """
    device = weight.device
    weight = aligned(laid_out(weight, launcher.weights_last))  # held until it was read
    if memory is not None:
        torch.cuda.synchronize(device)  # nobody still reads what is written anew
    memory = launcher.prepare(weight.data_ptr(), memory)
    torch.cuda.synchronize(device)  # readers need not know which stream wrote it
    return memory


@dataclass(frozen=True, eq=False)
class PreparedCopy:
    """Prepared weights, and what they were prepared from.

    Args:
        memory: their bytes.
        address: where those are.
        storage: of the weights; held, for an address that is free becomes another tensor's.
        source: address, strides and type of the weights in it.
    """

    memory: Tensor
    address: int
    storage: torch.UntypedStorage
    source: tuple[int, tuple[int, ...], torch.dtype]


class FrozenWeights:
    """The prepared copies of one layer's weights, one for each kernel that ran them; made when first needed.

    Any number of threads and streams may share it. A pickle or a deep copy is frozen as well, and holds no copies yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By what prepares them. The memory outlives a copy that is forgotten: captured graphs may read it.
        self._copies: dict[Any, PreparedCopy] = {}
        self._memory: dict[Any, Tensor] = {}

    def __reduce__(self) -> tuple[type[FrozenWeights], tuple[()]]:
        return FrozenWeights, ()

    def copy(self, launcher: Preparing, parameter: Tensor, weight: Tensor) -> PreparedCopy | None:
        """The copy for this call; None if it takes the weights as they are.

        It does where the kernel has no order of its own, where the weights are no parameter but computed for each call,
        and where a gradient of theirs is asked for: whoever trains writes them in place, so all copies are forgotten.
        While a CUDA graph is captured, a copy that is missing is not made: its memory would be the graph's.

        Args:
            launcher: of the call's plan.
            parameter: the layer's weights, by which a copy is recognised.
            weight: the same in the type that the kernel takes.
        """
        if not is_kept(parameter):
            return None
        if parameter.requires_grad and torch.is_grad_enabled():
            self.forget()
            return None
        key = launcher.preparing
        if key is None:
            return None
        source = parameter.data_ptr(), parameter.stride(), parameter.dtype
        found = self._copies.get(key)
        if found is not None and found.source == source:
            return found
        if torch.cuda.is_current_stream_capturing():
            return None
        with self._lock:
            found = self._copies.get(key)
            if found is None or found.source != source:
                self._copies.pop(key, None)
                memory = self._memory[key] = prepare(launcher, weight, self._memory.get(key))
                found = PreparedCopy(memory, memory.data_ptr(), parameter.untyped_storage(), source)
                self._copies[key] = found
        return found

    def forget(self) -> None:
        """The weights have changed: each copy is made anew, in the same memory, when it is needed next."""
        with self._lock:
            self._copies.clear()

    def release(self) -> None:
        """Gives the memory back, as soon as the GPU has done with it."""
        with self._lock:
            for device in {memory.device for memory in self._memory.values()}:
                torch.cuda.synchronize(device)
            self._copies.clear()
            self._memory.clear()


def is_kept(weight: Tensor) -> bool:
    """Whether prepared copies of it are kept while it is frozen: a parameter, nothing computed for one call."""
    return type(weight) is torch.nn.Parameter
