"""What is raised for want of a GPU's memory is told as that, wherever it happens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tconv.errors import OutOfMemory
from tconv.sandbox.gpu_memory import naming_shortage, shortage
from tconv.sandbox.model_file import ModelFileError, blamed

TOLD = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.00 GiB is free"
)
WHOLE = f"{TOLD}. Process 7 has 78.11 GiB memory in use. If reserved but unallocated memory is large try setting this."


def forward_failed() -> Exception:
    error = RuntimeError("forward failed")
    error.__cause__ = torch.OutOfMemoryError(WHOLE)
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError(WHOLE), TOLD),
        (forward_failed(), TOLD),
        (RuntimeError("CUDA error: out of memory\nlaunch blocking"), "CUDA error: out of memory launch blocking"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), None),
        (MemoryError(), None),
        (None, None),
    ],
)
def test_which_errors_it_is(error: Exception | None, says: str | None) -> None:
    assert shortage(error) == says


def test_also_behind_the_blame_of_a_file() -> None:
    with pytest.raises(ModelFileError) as caught, blamed(Path("model.py"), "forward"):
        raise torch.OutOfMemoryError(WHOLE)
    assert shortage(caught.value) == TOLD


def test_not_where_it_was_dealt_with() -> None:
    try:
        raise torch.OutOfMemoryError(WHOLE)
    except torch.OutOfMemoryError:
        try:
            raise ValueError("something else") from None
        except ValueError as other:
            assert shortage(other) is None


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(WHOLE), OutOfMemory(TOLD)])
def test_the_line_says_what_was_going_on_and_what_to_do(error: Exception) -> None:
    with pytest.raises(OutOfMemory) as caught, naming_shortage(lambda: "planning"):
        raise error
    assert str(caught.value) == (
        f"out of GPU memory while planning: {TOLD}; end other programs on this GPU, or make the inputs of "
        "get_inputs() smaller"
    )


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(KeyError), naming_shortage(lambda: "planning"):
        raise KeyError("x")
