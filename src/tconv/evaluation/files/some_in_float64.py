"""Of large results a few samples beside float64, and all others beside those: float64 of all takes tens of seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tconv.evaluation.comparison import square
from tconv.evaluation.files.pair import Pair
from tconv.evaluation.files.samples import at_samples
from tconv.evaluation.files.side import Outcome
from tconv.evaluation.verdict import Check, Verdict
from tconv.sandbox.exchange import tensor_bytes, tensors

#: Results of fewer bytes are compared as a whole, and so many bytes of larger ones.
_LARGE_BYTES, _SOME_BYTES = 2**28, 2**28
_FEWEST, _MOST = 2, 4
#: Other samples may be this many times as far from PyTorch's as the furthest of those.
_TIMES = 2.0
#: Elements that are compared at once.
_PIECE = 2**24


def check_some_in_float64(
    pair: Pair, got: Any, plain: Outcome, state: dict[str, Tensor], seed: int
) -> list[Check] | None:
    """The rules for whole models on some samples of the last call's results.

    None where these are not large, where samples hang on each other, or where the rules do not hold: then all of it is
    to be looked at.
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
    """The numbers of those samples, the first and the last among them; none where all are to be looked at."""
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
        apart = [_apart(*rows, device) for rows in zip(tensor, theirs[path], strict=True)]
        of_some = [apart[number] for number in which]
        for of_measure in range(2):
            limit = _TIMES * max(each[of_measure] for each in of_some)
            # A number that is none is as near as nothing.
            if not all(each[of_measure] <= limit for each in apart):
                return False
    return True


def _apart(one: Tensor, other: Tensor, device: torch.device) -> tuple[float, float]:
    """How far one sample is from another, pooled relative to that, and in the worst element."""
    total = size = worst = 0.0
    for ours, theirs in zip(_pieces(one, device), _pieces(other, device), strict=True):
        difference = ours - theirs
        total, size = total + square(difference), size + square(theirs)
        worst = max(worst, float(difference.abs().max())) if not math.isnan(total) else math.nan
    return math.sqrt(total / size) if size else total, worst


def _pieces(tensor: Tensor, device: torch.device) -> Iterator[Tensor]:
    flat = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.flatten()
    for first in range(0, len(flat), _PIECE):
        piece = flat[first : first + _PIECE].to(device)
        yield piece if piece.dtype in (torch.float32, torch.float64) else piece.double()
