"""A forward pass on large inputs, a few samples at a time. In float64, all at once need twice the model's memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tconv.evaluation.files.process.module_copies import deep_copy
from tconv.sandbox.exchange import tensor_bytes, tensors
from tconv.sandbox.own_classes import Record, fields_of, record_of

#: Inputs of at most this many bytes run at once; larger inputs run in pieces of this many bytes.
_AT_ONCE_BYTES = 128 * 2**20
#: Relative differences up to this one are rounding, by another order of sums, or in 16 bits by the last rounding.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSEST = 1e-2

#: Runs a module on the values.
Run = Callable[[nn.Module, Sequence[Any]], Any]


def run_by_samples(run: Run, module: nn.Module, values: Sequence[Any], which: Sequence[int] = ()) -> Any:
    """The result of `run` for the values, a few samples at a time, in the host's memory.

    None if the values are not that large, if they share no axis of samples, or if two samples together give other
    results than each alone, as with a batch norm.

    Args:
        which: the numbers of the samples to run, in rising order; all if empty.
    """
    batch = _batch(values)
    step = max(1, batch * _AT_ONCE_BYTES // max(1, tensor_bytes(values)))
    if step >= batch or batch < 2:
        return None

    def part(module: nn.Module, first: int, count: int) -> Any:
        # Values are copied, and the trial has another module, as a forward may change inputs and state.
        samples = mapped(list(values), lambda tensor: tensor[first : first + count].clone())
        return mapped(run(module, samples), lambda tensor: tensor.cpu())

    trial = deep_copy(module)
    try:
        together, *alone = part(trial, 0, 2), part(trial, 0, 1), part(trial, 1, 1)
        if not _same(together, _joined(alone), 2):
            return None
    except Exception:  # the first axis is another one
        return None
    if which:
        return _joined([part(module, first, 1) for first in which])
    return _joined([part(module, first, min(step, batch - first)) for first in range(0, batch, step)])


def mapped(value: Any, change: Any) -> Any:
    """The tree with `change` applied to each tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        if (record := record_of(value)) is None:
            return {key: mapped(item, change) for key, item in value.items()}
        changed = record.changed(lambda item: mapped(item, change))
        return changed if isinstance(value, Record) else changed.made(type(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if (values := fields_of(value)) is not None:
        made = copy.copy(value)
        for name, item in values.items():
            object.__setattr__(made, name, mapped(item, change))
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return value


def some_samples(inputs: Sequence[Any], which: slice) -> list[Any] | None:
    """`samples_of`; None if there is no tensor, or the first one has a single sample."""
    return samples_of(inputs, which) if _first_length(inputs) > 1 else None


def samples_of(inputs: Sequence[Any], which: slice) -> list[Any]:
    """Views of the inputs with these samples only.

    Samples are on the first axis of the first tensor, and of all tensors whose first axis is as long.
    """
    batch = _first_length(inputs)
    return [
        value[which] if isinstance(value, Tensor) and value.dim() and len(value) == batch else value for value in inputs
    ]


def _first_length(inputs: Sequence[Any]) -> int:
    return next((len(value) for value in inputs if isinstance(value, Tensor) and value.dim()), 0)


def at_samples(value: Any, which: Sequence[int]) -> Any:
    """The tree with these samples of each tensor."""
    return mapped(value, lambda tensor: torch.stack([tensor[number] for number in which]))


def _batch(values: Sequence[Any]) -> int:
    """The length of the first axis that all tensors share; 0 if there is none."""
    lengths = {len(tensor) if tensor.dim() else 0 for _, tensor in tensors(list(values))}
    return lengths.pop() if len(lengths) == 1 else 0


def _joined(parts: Sequence[Any]) -> Any:
    """The tree of the first part, with the tensors of all parts concatenated; None if they do not fit."""
    pieces = [dict(tensors(part)) for part in parts]
    if any(of_part.keys() != pieces[0].keys() or not all(t.dim() for t in of_part.values()) for of_part in pieces):
        return None
    joined = iter([torch.cat([of_part[path] for of_part in pieces]) for path in pieces[0]])
    return mapped(parts[0], lambda tensor: next(joined))


def _same(one: Any, other: Any, samples: int) -> bool:
    """Whether both trees have the same outputs for this number of samples, up to rounding."""
    ours, theirs = dict(tensors(one)), dict(tensors(other))
    if ours.keys() != theirs.keys() or not ours:
        return False
    return all(len(tensor) == samples and _close(tensor, theirs[path]) for path, tensor in ours.items() if tensor.dim())


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    apart = torch.linalg.vector_norm((one - other).double())
    rounding = _ROUNDING.get(one.dtype, _COARSEST)
    return bool(apart <= rounding * max(float(torch.linalg.vector_norm(other.double())), math.ulp(0.0)))
