"""Compiled kernels on disk, shared by processes. An entry that is not whole is no entry.

The store is `cuda.core`'s: one file an entry, written aside and renamed, the least recently read ones dropped above a
size. It returns what the file holds, so an entry of ours is the cubin with its report, followed by a checksum over its
key and itself: a truncated, overwritten or misplaced file is a miss, and the next write heals it. (Tools that read
cubins do not mind the bytes behind.)
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tconv.jit.compile import program_options
from tconv.jit.toolchain import program_cache
from tconv.settings import settings

_log = logging.getLogger("tconv")
_MOST_BYTES = 512 * 2**20
#: Part of every key: entries of another format are not found.
_FORMAT = "with a report"
_CHECKSUM_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class CacheInfo:
    """What lies in the cache; `directory` is None where nothing can be kept on disk."""

    directory: Path | None
    entries: int
    bytes: int


class KernelCache:
    """Cubins, with what follows them, by key in one directory.

    Nothing is created before the first use, and no error of the disk gets out.

    Args:
        directory: None keeps nothing.
        most_bytes: above this size the least recently read entries go.
    """

    def __init__(self, directory: Path | None, most_bytes: int = _MOST_BYTES) -> None:
        self.directory = directory
        self._most_bytes = most_bytes
        self._complained = False

    @cached_property
    def _store(self) -> Any:
        """Raises OSError, and is asked for anew the next time, while its directory can be neither made nor read."""
        return program_cache().FileStreamProgramCache(self._kernels, max_size_bytes=self._most_bytes)

    @property
    def _kernels(self) -> Path:
        return Path(self.directory or "") / "kernels"

    def get(self, key: bytes) -> bytes | None:
        """The cubin under `key`, or None."""
        if self.directory is None:
            return None
        try:
            entry = self._store.get(key)
        except OSError as error:
            self._complain(error)
            return None
        if entry is None:
            return None
        cubin, checksum = entry[:-_CHECKSUM_BYTES], entry[-_CHECKSUM_BYTES:]
        if checksum != _checksum(key, cubin):
            _log.debug("an entry of the kernel cache in %s is damaged; compiling anew", self.directory)
            return None
        return cubin

    def put(self, key: bytes, cubin: bytes) -> None:
        """Keeps `cubin` under `key`, if the disk allows it."""
        if self.directory is None:
            return
        try:
            self._store[key] = cubin + _checksum(key, cubin)
        except OSError as error:
            self._complain(error)

    def info(self) -> CacheInfo:
        sizes = list(self._sizes()) if self.directory is not None else []
        return CacheInfo(self.directory, len(sizes), sum(sizes))

    def clear(self) -> CacheInfo:
        """Removes every kernel and every source kept of a failed compilation; returns what was there."""
        before = self.info()
        if self.directory is not None:
            shutil.rmtree(self._kernels, ignore_errors=True)
            shutil.rmtree(self.directory / "failed", ignore_errors=True)
        return before

    def _sizes(self) -> Iterator[int]:
        for folder, _, names in os.walk(self._kernels / "entries"):  # which passes over what it cannot read
            for name in names:
                with suppress(OSError):  # another process removed it
                    yield os.path.getsize(os.path.join(folder, name))

    def _complain(self, error: OSError) -> None:
        if self._complained:
            return
        self._complained = True
        _log.warning(
            "the kernel cache %s cannot be used (%s): kernels are compiled anew in every process. "
            "Set TCONV_CACHE_DIR to a directory that can be written",
            self.directory,
            error,
        )


@cache
def default_cache() -> KernelCache:
    """The cache of this process, in the directory that the settings name."""
    return KernelCache(settings().cache_directory)


def info() -> CacheInfo:
    """Where the cache is and how much it holds."""
    return default_cache().info()


def clear() -> CacheInfo:
    """Empties the cache; returns what it held."""
    return default_cache().clear()


def cache_key(source: str, arch: str, *, name: str, header_digest: str) -> bytes:
    """Key of a compilation: source, options, arch, NVRTC's version, and the content of every header it may include.

    Not where the headers lie: another copy of them gives the same.
    """
    return bytes(
        program_cache().make_program_cache_key(
            code=source,
            code_type="c++",
            options=program_options(arch, name, headers=None),
            target_type="cubin",
            extra_digest=f"{_FORMAT} {header_digest}".encode(),
        )
    )


def _checksum(key: bytes, cubin: bytes) -> bytes:
    return hashlib.sha256(key + cubin).digest()
