"""What the tests of the evaluation share: one process to fork workers from, and single-threaded arithmetic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tconv.sandbox.worker import Workshop


@pytest.fixture(autouse=True)
def single_threaded() -> Iterator[None]:
    """The tensors are tiny: several threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        # Workers find the targets of this folder.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        shop = Workshop()
    with shop:
        yield shop


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Writes a file of that name and text into a folder of the test's own and returns its path."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
