"""What the tests of the evaluation share: single-threaded arithmetic, and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def single_threaded() -> Iterator[None]:
    """The tensors are tiny: several threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Writes a file of that name and text into a folder of the test's own and returns its path."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
