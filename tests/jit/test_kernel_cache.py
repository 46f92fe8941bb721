"""The kernel cache: what was written comes back, and what is not whole does not."""

from __future__ import annotations

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
    base = {"source": scale_source, "arch": "sm_80", "name": "scale", "header_digest": "aa"}
    changed = [{"source": scale_source + "\n"}, {"arch": "sm_90"}, {"name": "other"}, {"header_digest": "ab"}]

    def key(arguments: dict[str, object]) -> bytes:
        return cache_key(arguments.pop("source"), arguments.pop("arch"), **arguments)  # type: ignore[arg-type]

    assert key(dict(base)) == key(dict(base))
    assert len({key(dict(base)), *(key(base | change) for change in changed)}) == 1 + len(changed)
