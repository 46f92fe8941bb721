"""Compares a few samples of large results with float64, and the others by their distance from PyTorch's.

Float64 for all samples would take tens of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tconv.evaluation.comparison import apart, as_near
from tconv.evaluation.files.process.by_samples import at_samples
from tconv.evaluation.files.sides.file_process import Outcome
from tconv.evaluation.files.sides.model_and_candidate import Pair
from tconv.evaluation.verdict import Check, Verdict
from tconv.sandbox.exchange import tensor_bytes, tensors

#: Results of fewer bytes are compared as a whole; of larger results, this many bytes.
_LARGE_BYTES, _SOME_BYTES = 2**28, 2**28
_FEWEST, _MOST = 2, 4


def check_some_in_float64(
    pair: Pair, got: Any, plain: Outcome, state: dict[str, Tensor], seed: int
) -> list[Check] | None:
    """The rules for whole models on some samples of the last call's results.

    None if the results are not large, if samples depend on each other, or if a rule is broken: all samples must then be
    compared.
    """
    which = some_of(plain.outputs)
    if not which or any(name.startswith("input") for name in plain.changed):
        return None
    found = pair.finer_of(which, plain, state, seed)
    if found is None or not _others_are_as_near(got, plain.outputs, which, pair.device):
        return None
    comparisons = pair.comparisons()
    comparisons.add(at_samples(got, which), at_samples(plain.outputs, which), *found)
    checks = comparisons.checks()
    return checks if Verdict(tuple(checks)).equal else None


def some_of(outputs: Any) -> tuple[int, ...]:
    """The numbers of these samples, with the first and the last; empty if all are to be compared."""
    lengths = {len(tensor) if tensor.dim() else 0 for _, tensor in tensors(outputs)}
    size = tensor_bytes(outputs)
    batch = lengths.pop() if len(lengths) == 1 else 0
    if size < _LARGE_BYTES or batch <= _MOST:
        return ()
    count = min(_MOST, max(_FEWEST, _SOME_BYTES * batch // size))
    return tuple(number * (batch - 1) // (count - 1) for number in range(count))


def _others_are_as_near(got: Any, pytorch: Any, which: Sequence[int], device: torch.device) -> bool:
    """Whether no sample is much further from PyTorch's than those, by all its elements and by the worst of them."""
    theirs = dict(tensors(pytorch))
    for path, tensor in tensors(got):
        distances = [apart(ours.to(device), other) for ours, other in zip(tensor, theirs[path], strict=True)]
        of_some = [distances[number] for number in which]
        if not all(as_near(each, of_some) for each in distances):
            return False
    return True
