"""A model that is timed: on other values in each call, and with some of its calls kept for the judge."""

from __future__ import annotations

from random import SystemRandom
from typing import Any

import torch
from torch import Tensor, nn

from tconv.sandbox.exchange import tensors

#: A candidate that shortens a median must cheat in half of its calls; so many are drawn that seven in eight are caught.
_KEPT = 3
#: Inputs and outputs of one call beyond this many bytes: then one call is kept, since judging it takes as many again in
#: files and float64, many times over; and of that so many samples, where each is computed alone.
_LARGE_BYTES = 256 * 2**20


class TimedCall:
    """Calls a model without gradients on inputs of its own, which `renew` changes.

    On the same values each time, a program that remembers its last result would be the fastest of all. And what is
    returned while nobody looks need not be a result at all: so a few calls, of which nobody knows beforehand, are kept.

    Args:
        by_samples: inputs and outputs have their samples on the first axis, each computed alone.
    """

    def __init__(self, model: nn.Module, inputs: list[Any], by_samples: bool = False) -> None:
        self._model = model
        self._by_samples = by_samples
        self._inputs = [value.clone() if isinstance(value, Tensor) else value for value in inputs]
        # Seeds that the model sets do not matter to this one.
        self._chance = SystemRandom()
        self._seen = 0
        self._outputs: Any = None
        #: Inputs and outputs of each of the calls that are kept: any call is as likely to be among them as any other.
        self.kept: list[tuple[Any, Any]] = []

    def __call__(self) -> Any:
        with torch.no_grad():
            self._outputs = self._model(*self._inputs)
        return self._outputs

    def renew(self) -> None:
        """Before a call: perhaps keep the last one, then move every value one place on: none of them is new."""
        if self._outputs is not None:
            self._seen += 1
            size = _bytes([self._inputs, self._outputs])
            most = _KEPT if size <= _LARGE_BYTES else 1
            place = len(self.kept) if len(self.kept) < most else self._chance.randrange(self._seen)
            if place < most:
                # Copies, queued behind the call: they hold what it had done when it counted as done.
                part = self._some_samples(size) if self._by_samples and size > _LARGE_BYTES else slice(None)
                self.kept[place : place + 1] = [(_copied(self._inputs, part), _copied(self._outputs, part))]
        for value in self._inputs:
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1:
                value.copy_(value.roll(1))

    def _some_samples(self, size: int) -> slice:
        """As many as are not large, at random."""
        samples = next(len(value) for value in self._inputs if isinstance(value, Tensor))
        count = max(1, samples * _LARGE_BYTES // size)
        first = self._chance.randrange(samples - count + 1)
        return slice(first, first + count)


def _bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors(value))


def _copied(value: Any, part: slice = slice(None)) -> Any:
    """The tree with copies of its tensors, or of a part of each, and of nothing else."""
    if isinstance(value, Tensor):
        value = value[part] if value.dim() else value
        # Not clone(), which closes the gaps of a result that is a part of something larger.
        return value.new_empty_strided(value.shape, value.stride()).copy_(value)
    if isinstance(value, dict):
        return {key: _copied(item, part) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and any(True for _ in tensors(value)):
        return [_copied(item, part) for item in value]
    return value
