"""Directories that cannot be written, are full, or vanish: a kernel comes out all the same, and one line says why."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tconv.jit import loader
from tconv.jit.cache import CacheInfo, KernelCache
from tconv.planner import Kernel

_KEY, _OTHER_KEY = b"one kernel", b"another kernel"
_CUBIN = b"\x7fELF" + bytes(range(256)) * 8


@pytest.fixture
def filled(tmp_path: Path) -> KernelCache:
    cache = KernelCache(tmp_path / "cache")
    cache.put(_KEY, _CUBIN)
    return cache


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Not under tmp_path, which only its owner may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def closed(open_path: Path) -> Iterator[Callable[[Path, int], None]]:
    """Gives a directory and its subdirectories a mode, which binds the superuser too, until the test ends."""
    folders: list[Path] = []
    superuser = os.geteuid() == 0

    def close(directory: Path, mode: int) -> None:
        inside = [path for path in directory.rglob("*") if path.is_dir()]
        folders.extend([directory, *inside])
        for file in (path for path in directory.rglob("*") if path.is_file()):
            file.chmod(0o444)
        for folder in [*inside, directory]:
            folder.chmod(mode)
        if superuser:  # permissions do not bind the superuser: be somebody else for a while
            os.seteuid(65534)

    yield close
    if superuser:
        os.seteuid(0)
    for folder in folders:
        folder.chmod(0o755)


def test_a_directory_that_cannot_be_made_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING, "tconv"):
        for _ in range(3):
            cache.put(_KEY, _CUBIN)
            assert cache.get(_KEY) is None
    (record,) = caplog.records
    assert "TCONV_CACHE_DIR" in record.getMessage() and str(tmp_path) in record.getMessage()


def test_a_directory_that_can_be_made_later_is_used(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    assert cache.get(_KEY) is None
    (tmp_path / "cache").unlink()
    cache.put(_KEY, _CUBIN)
    assert cache.get(_KEY) == _CUBIN


def test_a_read_only_directory_is_read(
    open_path: Path, closed: Callable[[Path, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    KernelCache(open_path).put(_KEY, _CUBIN)
    closed(open_path, 0o555)
    read_only = KernelCache(open_path)
    assert read_only.get(_KEY) == _CUBIN
    assert not caplog.records
    read_only.put(_OTHER_KEY, _CUBIN)
    assert read_only.get(_OTHER_KEY) is None
    assert read_only.get(_KEY) == _CUBIN
    assert "Permission denied" in caplog.text


def test_a_directory_that_may_not_be_entered(open_path: Path, closed: Callable[[Path, int], None]) -> None:
    KernelCache(open_path / "cache").put(_KEY, _CUBIN)
    closed(open_path, 0o000)
    cache = KernelCache(open_path / "cache")
    cache.put(_KEY, _CUBIN)
    assert cache.get(_KEY) is None
    assert cache.info() == cache.clear() == CacheInfo(open_path / "cache", 0, 0)


def test_a_full_disk(filled: KernelCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING, "tconv"):
        filled.put(_OTHER_KEY, _CUBIN)
    assert "No space left on device" in caplog.text
    assert filled.get(_OTHER_KEY) is None
    assert filled.get(_KEY) == _CUBIN


_TOO_LITTLE_ROOM = """
import resource, sys
from pathlib import Path
from tconv.jit.cache import KernelCache
cache = KernelCache(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
cache.put(b"small", b"1" * 10_000)
cache.put(b"too large", b"2" * 100_000)
assert cache.get(b"too large") is None
assert cache.get(b"small") == b"1" * 10_000
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_write_that_stops_half_way_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TOO_LITTLE_ROOM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stderr
    files = [path for path in (tmp_path / "kernels").rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in files] == [10_032]


def test_a_directory_that_is_removed_between_calls(filled: KernelCache, caplog: pytest.LogCaptureFixture) -> None:
    assert filled.directory is not None
    shutil.rmtree(filled.directory)
    assert filled.get(_KEY) is None
    assert filled.info().entries == 0
    filled.put(_KEY, _CUBIN)
    assert filled.get(_KEY) == _CUBIN
    assert not caplog.records


def test_a_directory_that_becomes_a_file(filled: KernelCache, caplog: pytest.LogCaptureFixture) -> None:
    assert filled.directory is not None
    shutil.rmtree(filled.directory)
    filled.directory.write_text("not a directory")
    for _ in range(3):
        assert filled.get(_KEY) is None
        filled.put(_KEY, _CUBIN)
        assert filled.info().entries == filled.clear().entries == 0
    assert len(caplog.records) == 1
    assert filled.directory.read_text() == "not a directory"
    filled.directory.unlink()
    filled.put(_KEY, _CUBIN)
    assert filled.get(_KEY) == _CUBIN


def test_a_directory_that_is_removed_during_a_write(
    filled: KernelCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: shutil.rmtree(filled.directory or ""))
        filled.put(_OTHER_KEY, _CUBIN)
    assert len(caplog.records) == 1
    assert filled.get(_OTHER_KEY) is None
    filled.put(_OTHER_KEY, _CUBIN)
    assert filled.get(_OTHER_KEY) == _CUBIN


def test_a_directory_that_is_removed_during_a_read(filled: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes = Path.read_bytes

    def remove_and_read(path: Path) -> bytes:
        shutil.rmtree(filled.directory or "")
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", remove_and_read)
        assert filled.get(_KEY) is None
    filled.put(_KEY, _CUBIN)
    assert filled.get(_KEY) == _CUBIN


def _read_only(directory: Path, closed: Any) -> None:
    directory.mkdir()
    closed(directory, 0o555)


@pytest.mark.parametrize(
    "spoil",
    [lambda directory, _: directory.write_text("a file"), _read_only, lambda directory, _: directory.symlink_to("x/y")],
    ids=["file", "read only", "dangling link"],
)
def test_a_kernel_is_built_without_a_directory(
    spoil: Callable[[Path, Any], Any],
    kernel: Kernel,
    open_path: Path,
    closed: Callable[[Path, int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spoil(open_path / "cache", closed)
    cache = KernelCache(open_path / "cache")
    monkeypatch.setattr(loader, "default_cache", lambda: cache)
    for _ in range(2):
        assert loader.build(kernel, "sm_80").cubin.startswith(b"\x7fELF")
    assert [record.levelname for record in caplog.records if "cannot be used" in record.getMessage()] == ["WARNING"]
    assert cache.info().entries == 0
