"""Whether bytes are those that were written, as told by a number that travels another way than they do."""

from __future__ import annotations

import torch
from torch import Tensor

#: Words that are multiplied at once.
_PIECE = 2**20


def digest(plain: Tensor, seed: int) -> int:
    """A number that other bytes give with a probability of at most 2^-32, to whoever does not know the seed.

    The sum of all words of 32 bits, each times a random number, modulo 2^64. It is the same on every device, and takes
    a fraction of the time of a cryptographic one.

    Args:
        plain: bytes, of dtype uint8, without gaps.
    """
    if plain.storage_offset() % 4:
        plain = plain.clone()
    whole = plain.numel() // 4 * 4
    words = plain[:whole].view(torch.int32)
    generator = torch.Generator().manual_seed(seed)
    factors = _numbers(min(_PIECE, words.numel()), generator).to(plain.device)
    total = torch.zeros((), dtype=torch.int64, device=plain.device)
    for start in range(0, words.numel(), _PIECE):
        piece = words[start : start + _PIECE]
        # With the same factors in each piece two of them could change places.
        total += (piece * factors[: piece.numel()]).sum() * int(_numbers(1, generator))
    rest = plain[whole:].long()
    return int(total + (rest * _numbers(rest.numel(), generator).to(plain.device)).sum())


def _numbers(count: int, generator: torch.Generator) -> Tensor:
    """Odd ones at random."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator, dtype=torch.int64) | 1
