"""Tensors bit by bit, a piece at a time: they may be as large as half of the memory."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from tconv.sandbox.digest import SHORT_BYTES, hashed, weighted

#: Words that are compared at once.
_PIECE = 2**22
#: Up to so many are hashed: where processors have instructions for that, it is far faster than products.
_HASHED_BYTES = {"cpu": math.inf}
#: What elements of so many bytes are read as.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class Fingerprint(NamedTuple):
    """What tells a tensor's bits from others in the same process; it takes no memory beside the tensor's."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    total: int


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Equal shape, dtype and bits, wherever the elements lie in storage."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return all(torch.equal(*pieces) for pieces in zip(_pieces(one), _pieces(other), strict=True))


def fingerprint(tensor: Tensor) -> Fingerprint:
    """The fingerprint of shape, dtype and bits; one changed element, or bit, always gives another.

    The total is a hash of bytes on the host, and of few anywhere; else that of all words, each times an odd number of
    its own, modulo 2^64.
    """
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if tensor.numel() * tensor.element_size() <= _HASHED_BYTES.get(tensor.device.type, SHORT_BYTES):
        with torch._C.DisableTorchFunction():
            return Fingerprint(shape, dtype, hashed(_words(tensor), _seed()))
    generator = torch.Generator(tensor.device).manual_seed(_seed())
    return Fingerprint(shape, dtype, int(weighted(_words(tensor), generator)) % 2**64)


def contents(tensor: Tensor) -> int:
    """A number that tells a tensor's elements from others in the same process, but not their order in memory."""
    generator = torch.Generator(tensor.device).manual_seed(_seed())
    square, single = torch.randint(-(2**63), 2**63 - 1, (2,), generator=generator, device=tensor.device) | 1
    pieces = (words.long() for words in _pieces(tensor))
    return sum(int((words * words * square + words * single).sum()) for words in pieces) % 2**64


@cache
def _seed() -> int:
    """One a process. Nobody can choose bits that give the same sum: he would have to know this."""
    return secrets.randbits(63)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    words = _words(tensor)
    for start in range(0, words.numel(), _PIECE):
        yield words[start : start + _PIECE]


def _words(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(_WORDS.get(tensor.element_size(), torch.int64))
