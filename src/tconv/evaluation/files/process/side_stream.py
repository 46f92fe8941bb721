"""A side stream of CUDA, on which inputs get their values late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tconv.sandbox.exchange import tensors

#: Cycles of a sleep that is longer than a call takes on the host. A slower clock makes it longer.
_CYCLES = 10**8


@contextmanager
def on_side_stream(values: Any) -> Iterator[None]:
    """Within the block, a side stream is current. Tensors are zero, the stream sleeps, and then it sets their values. A
    candidate that launches on the default stream reads the zeros."""
    held = [tensor.data for _, tensor in tensors(list(values)) if 0 not in tensor.stride()]
    known = [tensor.clone() for tensor in held]
    for tensor in held:
        tensor.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]
        for tensor, value in zip(held, known, strict=True):
            tensor.copy_(value)
        yield
    stream.synchronize()
