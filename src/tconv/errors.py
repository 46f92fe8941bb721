"""The errors that tconv itself raises. What PyTorch's operator refuses raises PyTorch's own error."""

from __future__ import annotations

from pathlib import Path


class TconvError(Exception):
    """Base of the errors below."""


class Trouble(TconvError):
    """The user's or the machine's trouble, not tconv's: one line says what was found and what to do. Exit code 2."""


class OutOfMemory(Trouble):
    """A GPU has too little memory left; the message has torch's words for what was wanted."""


class CompileError(TconvError):
    """NVRTC refused a kernel: a bug in tconv, or an arch that this NVRTC does not know.

    Args:
        message: what was compiled, for which arch, and where its source was saved.
        log: the compiler's own words.
        source_path: the saved source, or None when it could not be saved.
    """

    def __init__(self, message: str, log: str = "", source_path: Path | None = None) -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log
        self.source_path = source_path


class MissingToolchain(Trouble):
    """A package that compiling or launching needs is absent or of the wrong CUDA major; the message has the remedy."""


class NotWarmedUp(TconvError):
    """A CUDA graph is being captured and the kernel is not loaded yet; the message says what to call before."""


class InvalidProgram(TconvError, ValueError):
    """Arithmetic that the pointwise language does not have; the message says what was got, and what is allowed."""


class Unsupported(TconvError):
    """A kernel family was insisted on that cannot run this problem; the message says why."""
