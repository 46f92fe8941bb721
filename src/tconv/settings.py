"""The environment variables that tconv reads, once, at first use.

- ``TCONV_CACHE_DIR``: where compiled kernels and measurements are kept. Default: ``$XDG_CACHE_HOME/tconv``, or
  ``~/.cache/tconv`` (``%LOCALAPPDATA%\\tconv`` on Windows).
- ``TCONV_DISABLE``: ``1`` hands every call of the library to PyTorch's own operator.
- ``TCONV_INSIST``: ``1`` takes tconv's kernels wherever there is one, also where PyTorch's operator was measured or is
  predicted to be faster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Args:
        cache_directory: None where neither a home nor TCONV_CACHE_DIR leads to a path; then nothing is kept on disk.
        disabled: every call goes to PyTorch's own operator.
        insists: calls that have a kernel take it, however fast PyTorch's operator is.
    """

    cache_directory: Path | None
    disabled: bool = False
    insists: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        def is_on(variable: str) -> bool:
            return environment.get(variable, "").strip().lower() not in _OFF

        return cls(_cache_directory(environment), is_on("TCONV_DISABLE"), is_on("TCONV_INSIST"))


@cache
def settings() -> Settings:
    """The settings of this process. Later changes of the environment do not show."""
    return Settings.of(os.environ)


def _cache_directory(environment: Mapping[str, str]) -> Path | None:
    chosen = environment.get("TCONV_CACHE_DIR")
    root = environment.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        if os.path.isabs(root):  # the XDG specification wants relative paths ignored
            return Path(root) / "tconv"
        return Path.home() / ".cache" / "tconv"
    except (OSError, RuntimeError):  # a user without a home, as in some containers; a working directory that is gone
        return None
