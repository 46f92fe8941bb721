"""Compares tensors bit by bit, in pieces, since a tensor may take half of the memory."""

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
#: Bytes up to which a device's tensors are hashed. CPUs have instructions for hashes, which are faster than products.
_HASHED_BYTES = {"cpu": math.inf}
#: The type that elements are read as, by their bytes.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class Fingerprint(NamedTuple):
    """Identifies a tensor's bits within one process, in a few bytes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    total: int


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Equal shape, dtype and bits, wherever the elements lie in storage."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return all(torch.equal(*pieces) for pieces in zip(_pieces(one), _pieces(other), strict=True))


def fingerprint(tensor: Tensor) -> Fingerprint:
    """The fingerprint of shape, dtype and bits. If one element or bit changes, the fingerprint always changes.

    The total of short tensors, and of all on the host, is a hash of their bytes. For others it is the sum of all words,
    each times a random odd number of its own, modulo 2^64.
    """
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if tensor.numel() * tensor.element_size() <= _HASHED_BYTES.get(tensor.device.type, SHORT_BYTES):
        with torch._C.DisableTorchFunction():
            return Fingerprint(shape, dtype, hashed(_words(tensor), _seed()))
    generator = torch.Generator(tensor.device).manual_seed(_seed())
    return Fingerprint(shape, dtype, int(weighted(_words(tensor), generator)) % 2**64)


def contents(tensor: Tensor) -> int:
    """A number that identifies a tensor's elements within one process, without their order in memory."""
    generator = torch.Generator(tensor.device).manual_seed(_seed())
    square, single = torch.randint(-(2**63), 2**63 - 1, (2,), generator=generator, device=tensor.device) | 1
    pieces = (words.long() for words in _pieces(tensor))
    return sum(int((words * words * square + words * single).sum()) for words in pieces) % 2**64


@cache
def _seed() -> int:
    """The secret seed of this process. Nobody can choose bits with the same sum without knowing it."""
    return secrets.randbits(63)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    words = _words(tensor)
    for start in range(0, words.numel(), _PIECE):
        yield words[start : start + _PIECE]


def _words(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(_WORDS.get(tensor.element_size(), torch.int64))
