"""Whether bytes are those that were written, as told by a number that travels another way than they do."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

#: Up to so many are hashed. Of more, products with random numbers take a fraction of that time on a GPU, and no copy.
SHORT_BYTES = 2**20
#: So many words have random numbers of their own: drawing those takes longer than all else. And rows of words that are
#: multiplied at once.
_ROW, _ROWS = 2**16, 2**2


def digest(plain: Tensor, seed: int) -> int:
    """A number that other bytes give with a probability of at most 2^-32, to whoever does not know the seed.

    It is the same on every device: of few bytes a hash, of more the sum of all words of 32 bits, each times a random
    number, modulo 2^64.

    Args:
        plain: bytes, of dtype uint8, without gaps.
    """
    if plain.numel() <= SHORT_BYTES:
        return hashed(plain, seed)
    if plain.storage_offset() % 4:
        plain = plain.clone()
    whole = plain.numel() // 4 * 4
    generator = torch.Generator().manual_seed(seed)
    words = weighted(plain[:whole].view(torch.int32), generator)
    return int(words + weighted(plain[whole:], generator))


def hashed(plain: Tensor, seed: int) -> int:
    """64 bits of a cryptographic hash of the seed and the tensor's bytes, which lie without gaps."""
    with torch._C.DisableTorchFunction():  # modes that a program has entered cost more than all else here
        found = hashlib.sha256(plain.cpu().numpy(), usedforsecurity=False)  # type: ignore[arg-type]
    found.update(seed.to_bytes(8, "little"))
    return int.from_bytes(found.digest()[:8], "little")


def weighted(words: Tensor, generator: torch.Generator) -> Tensor:
    """The sum of all integers, each times an odd number at random, modulo 2^64: one element, where the words are.

    One word that is another one always gives another sum.
    """
    factors = _numbers(min(_ROW, words.numel()), generator, words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    whole = words.numel() // _ROW * _ROW
    rows = words[:whole].view(-1, _ROW)
    for start in range(0, len(rows), _ROWS):
        sums = (rows[start : start + _ROWS] * factors).sum(1)
        # With the same factors in each row two of them could change places.
        total += (sums * _numbers(len(sums), generator, words.device)).sum()
    rest = words[whole:]
    return total + (rest * factors[: len(rest)]).sum() * _numbers(1, generator, words.device)[0]


def _numbers(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Odd ones at random."""
    low, high = -(2**63), 2**63 - 1
    drawn = torch.randint(low, high, (count,), generator=generator, device=generator.device, dtype=torch.int64)
    return drawn.to(device) | 1
