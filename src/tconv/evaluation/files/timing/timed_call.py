"""A model that is timed. Each call gets new values, and some calls are kept for the judge."""

from __future__ import annotations

from random import SystemRandom
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tconv.evaluation.bits import contents
from tconv.evaluation.files.process.by_samples import mapped
from tconv.sandbox.exchange import tensor_bytes, tensors
from tconv.sandbox.own_classes import record_of

#: To shorten a median, a candidate must cheat in half of its calls. This many kept calls catch seven in eight of such.
_KEPT = 3
#: If inputs and outputs of a call have more bytes, one call is kept: to judge it takes many times this memory, in files
#: and float64. Of that call this many samples are kept, if each is computed alone.
_LARGE_BYTES = 256 * 2**20
#: Elements that are moved at once.
_PIECE = 2**24

Keeps = Literal["nothing", "calls", "samples"]


class TimedCall:
    """Calls a model on its own inputs, which `renew` changes.

    On equal values a candidate could return its last result and be the fastest. And it could return garbage in calls
    that nobody checks. So values change with each call, and a few calls, drawn at random, are kept for the judge.

    Args:
        inputs: copies of inputs, by `copied`. Another TimedCall may share them if the two never run at the same time.
        keeps: "samples" keeps samples of large calls, if each sample on the first axis is computed alone.
        plain: whether gradients stay as they are set; else they are disabled.
    """

    def __init__(self, model: nn.Module, inputs: list[Any], keeps: Keeps = "calls", plain: bool = False) -> None:
        self._model = model
        self._keeps = keeps
        self._plain = plain
        self._inputs = inputs
        # A generator of its own, which no seed that the model sets reaches.
        self._chance = SystemRandom()
        self._seen = 0
        self._outputs: Any = None
        self._contents = _contents(inputs)
        #: Inputs and outputs of the kept calls, on the host. All calls are equally likely to be kept.
        self.kept: list[Any] = []

    def __call__(self) -> Any:
        self._outputs = None  # frees memory for the next outputs
        if self._plain:
            self._outputs = self._model(*self._inputs)
        else:
            with torch.no_grad():
                self._outputs = self._model(*self._inputs)
        return self._outputs

    def changes_inputs(self) -> bool:
        """Whether calls changed the inputs. `renew` only moves their values."""
        return _contents(self._inputs) != self._contents

    @torch.no_grad()
    def renew(self) -> None:
        """Called before a call: `settle` the last one, then move every value of the inputs one place on."""
        self.settle()
        for value in self._inputs:
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1:
                _move_on(value)

    @torch.no_grad()
    def settle(self) -> None:
        """Keep the last call, if it is drawn, while its inputs are unchanged; then free its outputs."""
        if self._outputs is not None and self._keeps != "nothing":
            self._seen += 1
            size = tensor_bytes([self._inputs, self._outputs])
            most = _KEPT if size <= _LARGE_BYTES else 1
            place = len(self.kept) if len(self.kept) < most else self._chance.randrange(self._seen)
            if place < most:
                # The copies are queued after the call, so they hold its results when it counts as done. They lie on the
                # host, as the GPU may have no room. A reader must wait for the device first.
                part = self._some_samples(size) if self._keeps == "samples" and size > _LARGE_BYTES else slice(None)
                old = self.kept[place] if place < len(self.kept) else None
                self.kept[place : place + 1] = [_copied([self._inputs, self._outputs], part, old)]
        self._outputs = None

    def _some_samples(self, size: int) -> slice:
        """A random slice of samples that is not large."""
        samples = next(len(value) for value in self._inputs if isinstance(value, Tensor))
        count = max(1, samples * _LARGE_BYTES // size)
        first = self._chance.randrange(samples - count + 1)
        return slice(first, first + count)


def copied(inputs: list[Any], device: str) -> list[Any]:
    """Inputs whose tensors are copies on that device, without gaps."""

    def copy(tensor: Tensor) -> Tensor:
        there = tensor.to(device, copy=True)
        return there if there.untyped_storage().nbytes() == there.nbytes else there.contiguous()

    found: list[Any] = mapped(inputs, copy)
    return found


def are_large(inputs: list[Any]) -> bool:
    """Whether the inputs are so large that there should be only one copy."""
    return tensor_bytes(inputs) > _LARGE_BYTES


def _contents(inputs: list[Any]) -> list[int]:
    return [contents(tensor) for _, tensor in tensors(inputs)]


def _move_on(tensor: Tensor) -> None:
    """Move every value to the next place in memory, and the last value to the first place, in pieces."""
    flat = tensor.as_strided((tensor.numel(),), (1,))  # copies have no gaps
    last = flat[-1].clone()
    for end in range(flat.numel(), 1, -_PIECE):
        start = max(1, end - _PIECE)
        flat[start:end] = flat[start - 1 : end - 1].clone()
    flat[0] = last


def _copied(value: Any, part: slice, into: Any) -> Any:
    """The tree with copies of its tensors, or of a part of each.

    Copies reuse the memory of the tree `into` if it fits, as page-locked memory takes long to allocate.
    """
    if isinstance(value, Tensor):
        value = value[part] if value.dim() else value
        fits = isinstance(into, Tensor) and _form(into) == _form(value)
        return (into if fits else _room_for(value)).copy_(value, non_blocking=True)
    if type(value) is dict:
        there = into if isinstance(into, dict) else {}
        return {key: _copied(item, part, there.get(key)) for key, item in value.items()}
    if (record := record_of(value)) is not None:
        old = iter([into.get(key) for key in record] if isinstance(into, dict) else [])
        return record.changed(lambda item: _copied(item, part, next(old, None)))
    if isinstance(value, (list, tuple)) and any(True for _ in tensors(value)):
        fits = isinstance(into, list) and len(into) == len(value)
        return [_copied(item, part, into[place] if fits else None) for place, item in enumerate(value)]
    return value


def _room_for(tensor: Tensor) -> Tensor:
    """Memory on the host with the strides of a tensor, with gaps if it is a part of a larger one."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype
