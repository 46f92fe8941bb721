"""The kernel cache: what was written comes back, and whatever the disk does, a kernel comes out."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tconv.jit import cache as caching
from tconv.jit.cache import CacheInfo, KernelCache, cache_key

_KEY, _OTHER_KEY = b"one kernel", b"another kernel"
_CUBIN = b"\x7fELF" + bytes(range(256)) * 8


def _entry(directory: Path) -> Path:
    (entry,) = (path for path in (directory / "kernels" / "entries").rglob("*") if path.is_file())
    return entry


@pytest.fixture
def filled(tmp_path: Path) -> KernelCache:
    cache = KernelCache(tmp_path / "cache")
    cache.put(_KEY, _CUBIN)
    return cache


def test_what_is_put_comes_back(filled: KernelCache) -> None:
    assert filled.directory is not None
    assert filled.get(_KEY) == _CUBIN
    assert KernelCache(filled.directory).get(_KEY) == _CUBIN
    assert filled.get(_OTHER_KEY) is None


def test_tools_that_read_cubins_can_read_an_entry(filled: KernelCache) -> None:
    assert filled.directory is not None
    assert _entry(filled.directory).read_bytes().startswith(_CUBIN)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", _CUBIN, _CUBIN[:-1] + b"x" * 33, b"\0" * 5000], ids=len)
def test_a_damaged_entry_is_a_miss_and_heals(filled: KernelCache, content: bytes) -> None:
    assert filled.directory is not None
    _entry(filled.directory).write_bytes(content)
    assert filled.get(_KEY) is None
    filled.put(_KEY, _CUBIN)
    assert filled.get(_KEY) == _CUBIN


def test_a_truncated_entry_is_a_miss(filled: KernelCache) -> None:
    assert filled.directory is not None
    entry = _entry(filled.directory)
    whole = entry.read_bytes()
    for length in range(0, len(whole), 97):
        entry.write_bytes(whole[:length])
        assert filled.get(_KEY) is None


def test_the_entry_of_another_kernel_is_a_miss(filled: KernelCache) -> None:
    assert filled.directory is not None
    ours = _entry(filled.directory)
    foreign = ours.read_bytes()
    filled.put(_OTHER_KEY, _CUBIN[::-1])
    (theirs,) = (p for p in (filled.directory / "kernels" / "entries").rglob("*") if p.is_file() and p != ours)
    theirs.write_bytes(foreign)
    assert filled.get(_OTHER_KEY) is None
    assert filled.get(_KEY) == _CUBIN


def test_a_directory_in_place_of_an_entry_is_a_miss(filled: KernelCache) -> None:
    assert filled.directory is not None
    entry = _entry(filled.directory)
    entry.unlink()
    entry.mkdir()
    assert filled.get(_KEY) is None
    filled.put(_KEY, _CUBIN)


def test_nothing_is_created_before_the_first_use(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    assert cache.info() == CacheInfo(tmp_path / "cache", 0, 0)
    assert not (tmp_path / "cache").exists()


def test_no_directory_keeps_nothing() -> None:
    cache = KernelCache(None)
    cache.put(_KEY, _CUBIN)
    assert cache.get(_KEY) is None
    assert cache.info() == cache.clear() == CacheInfo(None, 0, 0)


def test_a_directory_that_cannot_be_made_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING, "tconv"):
        for _ in range(3):
            cache.put(_KEY, _CUBIN)
            assert cache.get(_KEY) is None
    (record,) = caplog.records
    assert "TCONV_CACHE_DIR" in record.getMessage() and str(tmp_path) in record.getMessage()


@pytest.fixture
def read_only() -> Iterator[KernelCache]:
    """A cache with one entry in a directory that the process may read and not write."""
    with tempfile.TemporaryDirectory() as name:  # not under tmp_path, which only its owner may enter
        directory = Path(name) / "cache"
        KernelCache(directory).put(_KEY, _CUBIN)
        folders = [Path(name), directory, *(path for path in directory.rglob("*") if path.is_dir())]
        _entry(directory).chmod(0o444)
        for folder in folders:
            folder.chmod(0o555)
        superuser = os.geteuid() == 0
        if superuser:  # permissions do not bind the superuser: be somebody else for a while
            os.seteuid(65534)
        yield KernelCache(directory)
        if superuser:
            os.seteuid(0)
        for folder in folders:
            folder.chmod(0o755)


def test_a_read_only_directory_is_read(read_only: KernelCache, caplog: pytest.LogCaptureFixture) -> None:
    assert read_only.get(_KEY) == _CUBIN
    assert not caplog.records
    read_only.put(_OTHER_KEY, _CUBIN)
    assert read_only.get(_OTHER_KEY) is None
    assert read_only.get(_KEY) == _CUBIN
    assert "Permission denied" in caplog.text


def test_a_full_disk(filled: KernelCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING, "tconv"):
        filled.put(_OTHER_KEY, _CUBIN)
    assert "No space left on device" in caplog.text
    assert filled.get(_OTHER_KEY) is None
    assert filled.get(_KEY) == _CUBIN


def test_the_least_recently_read_entries_go(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, most_bytes=4 * len(_CUBIN))
    for number in range(10):
        cache.put(str(number).encode(), _CUBIN)
        assert cache.get(b"0") == _CUBIN  # read each time: it stays
    assert cache.info().bytes <= 4 * len(_CUBIN)
    assert cache.get(b"1") is None
    assert cache.get(b"9") == _CUBIN


def test_info_and_clear(cache_directory: Path) -> None:
    assert caching.info() == CacheInfo(cache_directory, 0, 0)
    caching.default_cache().put(_KEY, _CUBIN)
    caching.default_cache().put(_OTHER_KEY, _CUBIN)
    (cache_directory / "failed").mkdir()
    size = 2 * (len(_CUBIN) + 32)
    assert caching.info() == CacheInfo(cache_directory, 2, size)
    assert caching.clear() == CacheInfo(cache_directory, 2, size)
    assert caching.info() == CacheInfo(cache_directory, 0, 0)
    assert not (cache_directory / "failed").exists()
    caching.default_cache().put(_KEY, _CUBIN)  # the same object still works
    assert caching.default_cache().get(_KEY) == _CUBIN


def test_the_key_holds_all_that_makes_a_cubin(scale_source: str) -> None:
    base = {
        "source": scale_source,
        "arch": "sm_80",
        "name": "scale",
        "headers": Path("/headers"),
        "header_digest": "aa",
    }
    changed = [{"source": scale_source + "\n"}, {"arch": "sm_90"}, {"name": "other"}, {"header_digest": "ab"}]

    def key(arguments: dict[str, object]) -> bytes:
        return cache_key(arguments.pop("source"), arguments.pop("arch"), **arguments)  # type: ignore[arg-type]

    assert key(dict(base)) == key(dict(base))
    assert len({key(dict(base)), *(key(base | change) for change in changed)}) == 1 + len(changed)


_RACE = """
import sys
import tempfile
from pathlib import Path
from tconv.jit.cache import KernelCache
cache, mine = KernelCache(Path(sys.argv[1])), bytes([int(sys.argv[2])]) * 100_000
for turn in range(40):
    cache.put(b"shared", mine)
    got = cache.get(b"shared")
    assert got is not None and len(got) == 100_000 and len(set(got)) == 1, turn
"""


def test_processes_that_write_the_same_entry(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", _RACE, str(tmp_path), str(n)], stderr=subprocess.PIPE) for n in (1, 2)
    ]
    for racer in racers:
        _, errors = racer.communicate(timeout=120)
        assert racer.returncode == 0, errors.decode()
    assert KernelCache(tmp_path).info().entries == 1
