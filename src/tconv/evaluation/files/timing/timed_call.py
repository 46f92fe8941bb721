"""A model that is timed: on other values in each call, and with some of its calls kept for the judge."""

from __future__ import annotations

from random import SystemRandom
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tconv.evaluation.bits import contents
from tconv.evaluation.files.process.by_samples import mapped
from tconv.sandbox.exchange import tensor_bytes, tensors
from tconv.sandbox.own_classes import record_of

#: A candidate that shortens a median must cheat in half of its calls; so many are drawn that seven in eight are caught.
_KEPT = 3
#: Inputs and outputs of one call beyond this many bytes: then one call is kept, since judging it takes as many again in
#: files and float64, many times over; and of that so many samples, where each is computed alone.
_LARGE_BYTES = 256 * 2**20
#: Elements that are moved at once.
_PIECE = 2**24

Keeps = Literal["nothing", "calls", "samples"]


class TimedCall:
    """Calls a model on inputs of its own, which `renew` changes.

    On the same values each time, a program that remembers its last result would be the fastest of all. And what is
    returned while nobody looks need not be a result at all: so a few calls, of which nobody knows beforehand, are kept.

    Args:
        inputs: as `copied` gives them. Another call may have them too, if the two are never under way at once.
        keeps: "samples" of large calls, where inputs and outputs have them on the first axis, each computed alone.
        plain: as it is called where nobody says more; else without gradients.
    """

    def __init__(self, model: nn.Module, inputs: list[Any], keeps: Keeps = "calls", plain: bool = False) -> None:
        self._model = model
        self._keeps = keeps
        self._plain = plain
        self._inputs = inputs
        # Seeds that the model sets do not matter to this one.
        self._chance = SystemRandom()
        self._seen = 0
        self._outputs: Any = None
        self._contents = _contents(inputs)
        #: Inputs and outputs of each of the calls that are kept, on the host: any call is as likely to be among them as
        #: any other.
        self.kept: list[Any] = []

    def __call__(self) -> Any:
        self._outputs = None  # its memory may be what the next ones need
        if self._plain:
            self._outputs = self._model(*self._inputs)
        else:
            with torch.no_grad():
                self._outputs = self._model(*self._inputs)
        return self._outputs

    def changes_inputs(self) -> bool:
        """Whether the calls did more to the inputs than `renew`, which only moves their values."""
        return _contents(self._inputs) != self._contents

    @torch.no_grad()
    def renew(self) -> None:
        """Before a call: `settle` the last one, then move every value one place on: none of them is new."""
        self.settle()
        for value in self._inputs:
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1:
                _move_on(value)

    @torch.no_grad()
    def settle(self) -> None:
        """Perhaps keep the last call, while the inputs are what it was given; and forget what it returned."""
        if self._outputs is not None and self._keeps != "nothing":
            self._seen += 1
            size = tensor_bytes([self._inputs, self._outputs])
            most = _KEPT if size <= _LARGE_BYTES else 1
            place = len(self.kept) if len(self.kept) < most else self._chance.randrange(self._seen)
            if place < most:
                # Copies, queued behind the call: they hold what it had done when it counted as done. On the host, since
                # the GPU may have no room for them; whoever reads them waits for the device before.
                part = self._some_samples(size) if self._keeps == "samples" and size > _LARGE_BYTES else slice(None)
                old = self.kept[place] if place < len(self.kept) else None
                self.kept[place : place + 1] = [_copied([self._inputs, self._outputs], part, old)]
        self._outputs = None

    def _some_samples(self, size: int) -> slice:
        """As many as are not large, at random."""
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
    """Whether there had better be one copy of them."""
    return tensor_bytes(inputs) > _LARGE_BYTES


def _contents(inputs: list[Any]) -> list[int]:
    return [contents(tensor) for _, tensor in tensors(inputs)]


def _move_on(tensor: Tensor) -> None:
    """Every value takes the place of the next in memory, the last one that of the first, a piece at a time."""
    flat = tensor.as_strided((tensor.numel(),), (1,))  # copies have no gaps
    last = flat[-1].clone()
    for end in range(flat.numel(), 1, -_PIECE):
        start = max(1, end - _PIECE)
        flat[start:end] = flat[start - 1 : end - 1].clone()
    flat[0] = last


def _copied(value: Any, part: slice, into: Any) -> Any:
    """The tree with copies of its tensors, or of a part of each, and of nothing else.

    They take the memory of the tree `into` where that fits: page-locked memory takes long to get.
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
    """On the host, with the gaps that a result has which is a part of something larger."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype
