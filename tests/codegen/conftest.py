"""Model files of a test's own, and the files generated from them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from codegen_helpers import Namespace, executed, generated_text

from tconv.evaluation.precision import Wanted
from tconv.sandbox.emulated import install
from tconv.sandbox.model_file import load


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a model file from its (indented) text."""

    def write(text: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write


@pytest.fixture
def both(model_file: Callable[[str], Path]) -> Callable[..., tuple[Namespace, Namespace]]:
    """Globals of a model file and of the file generated from it, the latter running in the emulator."""

    def make(text: str, wanted: Wanted = "fp32") -> tuple[Namespace, Namespace]:
        path = model_file(text)
        candidate = executed(generated_text(path, wanted))
        install(candidate)
        return vars(load(path).namespace), candidate

    return make
