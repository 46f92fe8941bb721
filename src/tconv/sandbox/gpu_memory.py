"""What says that a GPU's memory is used up: the machine's trouble, and nobody's mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tconv.errors import OutOfMemory

#: In errors that are not of torch's own class for it.
_WORDS = (
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
#: Of a GPU's memory a process may keep so much between calls, and this part at most.
_LITTLE_BYTES, _LITTLE_PART = 2**30, 100
#: Tensors of fewer bytes lie on the host, and others where the GPU has not room for so many.
_LARGE_BYTES, _ROOM = 2**26, 32
#: Torch says first what was wanted and what is free, and then what might help its own allocator.
_SENTENCES = 3


def shortage(error: BaseException | None) -> str | None:
    """What an error, or one that it was raised from, says of memory that a GPU does not have; None if nothing."""
    while error is not None:
        words = " ".join(str(error).split())
        if isinstance(error, torch.OutOfMemoryError) or any(known in words for known in _WORDS):
            return ". ".join(words.split(". ")[:_SENTENCES]).rstrip(".")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def release(*, some: bool = False) -> None:
    """Hands back what torch's allocator keeps for later: it may be all that another process needs.

    Args:
        some: not what is little beside the GPU's memory. Who hands that back in each call asks for it in the next.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if not some or kept > min(_LITTLE_BYTES, total // _LITTLE_PART):
        torch.cuda.empty_cache()


def place_for(size: int, device: torch.device) -> torch.device:
    """Where tensors of so many bytes had better stay: on the GPU, where they are large and it has room for many.

    The host takes a second for each gigabyte that it is given anew.
    """
    if device.type != "cuda" or size < _LARGE_BYTES:
        return torch.device("cpu")
    free, _ = torch.cuda.mem_get_info(device)
    return device if free > _ROOM * size else torch.device("cpu")


@contextmanager
def naming_shortage(doing: Callable[[], str]) -> Iterator[None]:
    """Turns what is raised for want of the GPU's memory, here or in a worker, into one line.

    Args:
        doing: what is going on.

    Raises:
        OutOfMemory: what was going on, what was wanted, and what to do.
    """
    try:
        yield
    except Exception as error:
        words = str(error) if isinstance(error, OutOfMemory) else shortage(error)
        if words is None:
            raise
        remedy = "end other programs on this GPU, or make the inputs of get_inputs() smaller"
        raise OutOfMemory(f"out of GPU memory while {doing()}: {words}; {remedy}") from error
