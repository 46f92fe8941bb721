"""What the tests of the sandbox share: one process to fork workers from, and model files of a test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from codegen_helpers import model_file

from tconv.sandbox.worker import Workshop

__all__ = ["model_file", "workshop"]


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        # Workers find the targets of this folder.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        shop = Workshop()
    with shop:
        yield shop
