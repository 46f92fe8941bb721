"""The errors that tconv itself raises. What PyTorch's operator refuses raises PyTorch's own error."""

from __future__ import annotations

from pathlib import Path


class TconvError(Exception):
    """The base of all errors that tconv itself raises."""


class Trouble(TconvError):
    """The user's or the machine's trouble, not tconv's: one line says what was found and what to do. Exit code 2."""


class OutOfMemory(Trouble):
    """A GPU has too little memory left; the message has torch's words for what was wanted."""


class CompileError(TconvError):
    """NVRTC does not compile a kernel. That is a bug in tconv, or this NVRTC does not know the GPU's arch.

    Args:
        message: says which kernel, for which arch, and where its source was saved.
        log: the compiler's own words.
        source_path: the file with the source; None if it could not be saved.
    """

    def __init__(self, message: str, log: str = "", source_path: Path | None = None) -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log
        self.source_path = source_path


class MissingToolchain(Trouble):
    """A package that compiles or launches kernels is absent, or is for another CUDA. The message has the remedy."""


class NotWarmedUp(TconvError):
    """A CUDA graph is being captured, and the kernel is not loaded yet. The message says what to call before."""


class InvalidProgram(TconvError, ValueError):
    """An epilogue has an operation that no kernel computes. The message names it, and says what is allowed."""


class Unsupported(TconvError):
    """The kernel family that was asked for, by ``family=``, cannot run this call. The message says why."""
