"""Model files of a test's own, and the files generated from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from codegen_helpers import Namespace, executed, generated_text, model_file

from tconv.evaluation.precision import Wanted
from tconv.sandbox.emulated import install
from tconv.sandbox.model_file import load

__all__ = ["both", "model_file"]


@pytest.fixture
def both(model_file: Callable[[str], Path]) -> Callable[..., tuple[Namespace, Namespace]]:
    """Globals of a model file and of the file generated from it, the latter running in the emulator."""

    def make(text: str, wanted: Wanted = "fp32") -> tuple[Namespace, Namespace]:
        path = model_file(text)
        candidate = executed(generated_text(path, wanted))
        install(candidate)
        return vars(load(path).namespace), candidate

    return make
