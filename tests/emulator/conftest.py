"""A cache of one test's own, and a compiler of its own."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tconv.emulator import program
from tconv.settings import settings


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory that nothing else uses; the engine lies in it, as far as anything was built before."""
    engine = program._engine("plain", "native")
    directory = tmp_path / "cache" / "emulator"
    directory.mkdir(parents=True)
    shutil.copy2(engine, directory)
    monkeypatch.setenv("TCONV_CACHE_DIR", str(directory.parent))
    settings.cache_clear()
    yield directory
    settings.cache_clear()


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """No compiler is found any more; what it returns makes this shell script the compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    _forget_compiler()

    def write(text: str) -> None:
        path = folder / "g++"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    yield write
    _forget_compiler()


def _forget_compiler() -> None:
    program._compiler.cache_clear()
    program._compiler_version.cache_clear()
