"""What the tests of the sandbox share: model files of a test's own."""

from __future__ import annotations

from codegen_helpers import model_file

__all__ = ["model_file"]
