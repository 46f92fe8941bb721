from __future__ import annotations

from pathlib import Path

import pytest

from tconv.settings import Settings, settings


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"TCONV_CACHE_DIR": "/kept/here"}, Path("/kept/here")),
        ({"TCONV_CACHE_DIR": "/kept/here", "XDG_CACHE_HOME": "/xdg"}, Path("/kept/here")),
        ({"TCONV_CACHE_DIR": "", "XDG_CACHE_HOME": "/xdg"}, Path("/xdg/tconv")),
        ({"XDG_CACHE_HOME": "not/absolute"}, Path.home() / ".cache" / "tconv"),
        ({}, Path.home() / ".cache" / "tconv"),
        ({"TCONV_CACHE_DIR": "here"}, Path.cwd() / "here"),
    ],
)
def test_cache_directory(environment: dict[str, str], directory: Path) -> None:
    assert Settings.of(environment).cache_directory == directory


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert Settings.of({}).cache_directory is None


def test_a_directory_that_cannot_be_named_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.of({"TCONV_CACHE_DIR": "~nobody-of-that-name/cache"}).cache_directory is None
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert Settings.of({"TCONV_CACHE_DIR": "here"}).cache_directory is None
    assert Settings.of({"TCONV_CACHE_DIR": "/kept/here"}).cache_directory == Path("/kept/here")


@pytest.mark.parametrize(("value", "disabled"), [("1", True), ("yes", True), ("0", False), ("", False), ("Off", False)])
def test_disabled(value: str, disabled: bool) -> None:
    assert Settings.of({"TCONV_DISABLE": value}).disabled is disabled
    assert Settings.of({"TCONV_INSIST": value}).insists is disabled


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings()
    monkeypatch.setenv("TCONV_DISABLE", "1")
    assert settings() is before
