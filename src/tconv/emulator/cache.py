"""What g++ built, on disk, shared by processes. An entry that is not whole is no entry.

An entry is one file, made aside and renamed. Its name has the key and a digest of what it holds: a truncated or
overwritten file is a miss. Above a size the least recently used ones go.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tconv.settings import settings

#: A program has 0.1 to 1 MB.
_MOST_BYTES = 2 * 2**30
#: As long after its last use somebody may still be about to start an entry, or to end building one.
_IN_USE_S = 3600


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def built(key: str, name: str, build: Callable[[Path], None]) -> Path:
    """The file `name` that `build` makes in the directory that it is given, or the one that is kept under `key`.

    Where nothing can be kept it lies in a temporary directory, as long as this process lasts.

    Raises:
        OSError: also a temporary file cannot be written.
    """
    try:
        return _kept(_directory(), key, name, build)
    except OSError:  # the disk is full, or the directory was removed meanwhile
        return _kept(_temporary_directory(), key, name, build)


def _kept(directory: Path, key: str, name: str, build: Callable[[Path], None]) -> Path:
    for entry in directory.glob(f"{key}-*-{name}"):
        with suppress(OSError):
            if entry.name == _entry_name(key, entry, name):
                os.utime(entry)
                return entry
    # Another process never sees half a file.
    with tempfile.TemporaryDirectory(dir=directory, prefix="building-", ignore_cleanup_errors=True) as building:
        build(Path(building))
        made = Path(building, name)
        entry = directory / _entry_name(key, made, name)
        os.replace(made, entry)
    _remove_unused(directory)
    return entry


def _entry_name(key: str, content: Path, name: str) -> str:
    return f"{key}-{digest(content.read_bytes())}-{name}"


def _remove_unused(directory: Path) -> None:
    found = []
    for path in directory.iterdir():
        with suppress(OSError):  # another process removed it
            state = path.stat()
            found.append((state.st_mtime, state.st_size, path))
    total = 0
    for used, size, path in sorted(found, reverse=True):
        total += size
        if used > time.time() - _IN_USE_S:
            continue
        if path.is_dir():  # its process was killed while it built
            shutil.rmtree(path, ignore_errors=True)
        elif total > _MOST_BYTES:
            with suppress(OSError):
                path.unlink()


def _directory() -> Path:
    root = settings().cache_directory
    if root is None:
        return _temporary_directory()
    directory = root / "emulator"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_directory()
    return directory if os.access(directory, os.W_OK) else _temporary_directory()


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """For this process alone; it goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="tconv-emulator-")


def _temporary_directory() -> Path:
    return Path(_temporary().name)
