"""`tconv cache info` and `tconv cache clear`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tconv.cli.console import results

if TYPE_CHECKING:
    from tconv.jit.cache import CacheInfo

#: Below the cache's directory: programs of the emulator.
_EMULATOR = "emulator"


def info() -> None:
    """Say where compiled kernels are kept, how many there are, and how much room they take."""
    from tconv.jit import cache

    results().print(describe(cache.info()), markup=False, soft_wrap=True)


def clear() -> None:
    """Remove everything compiled. The next call of a layer compiles again, in about a second."""
    from tconv.jit import cache

    removed = describe(cache.info())
    held = cache.clear()
    if held.directory is not None:
        shutil.rmtree(held.directory / _EMULATOR, ignore_errors=True)
    results().print(f"removed: {removed}", markup=False, soft_wrap=True)


def describe(held: CacheInfo) -> str:
    """One line: how many kernels and emulator programs, their size, and where."""
    if held.directory is None:
        return "no kernels are kept: there is no home directory; set TCONV_CACHE_DIR to an absolute path"
    parts = [_amount(held.entries, "kernel", held.bytes)]
    programs = _sizes(held.directory / _EMULATOR)
    if programs:
        parts.append(_amount(len(programs), "emulator program", sum(programs)))
    return f"{', '.join(parts)}, in {held.directory}"


def _sizes(directory: Path) -> list[int]:
    try:
        return [path.stat().st_size for path in directory.iterdir() if path.is_file()]
    except OSError:
        return []


def _amount(count: int, what: str, size: int) -> str:
    return f"{count} {what}{'' if count == 1 else 's'} of {size / 2**20:.1f} MiB"
