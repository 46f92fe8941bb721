"""What the tests of the rewriter share: model files of a test's own."""

from codegen_helpers import model_file

__all__ = ["model_file"]
