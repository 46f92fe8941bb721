"""The wheel holds every file of the package, and works where nothing else of the repository is; the sdist holds all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Files and folders that packages are built from.
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "src")
#: What the sdist has besides.
REST = (
    ".ci",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "benchmarks",
    "constraints.txt",
    "docs",
    "examples",
    "tests",
)
#: One layer for each family.
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.few = nn.ConvTranspose2d(3, 32, 2)
        self.dense = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)

    def forward(self, x):
        return self.dense(self.few(x))

def get_inputs():
    return [torch.rand(1, 3, 15, 15)]
"""


def run(*command: str | Path, **options: object) -> str:
    words = list(map(str, command))
    result = subprocess.run(words, capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload]
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


def copied(names: Iterable[str], folder: Path) -> list[Path]:
    """Files and folders of the repository, since building leaves folders behind. The files, from the repository on."""
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, folder)
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    copied(SOURCES, folder)
    alone = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", "-q", *alone, "-w", folder / "dist", folder)
    (built,) = (folder / "dist").glob("tconv-*.whl")
    return built


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tconv/")}
    files = (path for path in (ROOT / "src" / "tconv").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {path.relative_to(ROOT / "src").as_posix() for path in files}


def test_the_sdist_holds_every_file_of_the_repository(tmp_path: Path) -> None:
    files = copied((*SOURCES, *REST), tmp_path)
    run(sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('dist')", cwd=tmp_path)
    (built,) = (tmp_path / "dist").glob("tconv-*.tar.gz")
    with tarfile.open(built) as packed:
        assert {path.as_posix() for path in files} <= {name.partition("/")[2] for name in packed.getnames()}


@pytest.mark.slow
def test_it_works_alone(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, to which torch and the other requirements are lent."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel)
    purelib = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for lent in Path(sysconfig.get_path("purelib")).iterdir():
        if not lent.name.startswith(("tconv", "__")):
            (purelib / lent.name).symlink_to(lent)
    (tmp_path / "model.py").write_text(MODEL)
    alone = {"cwd": tmp_path, "env": {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}}
    assert Path(run(python, "-c", "import tconv; print(tconv.__file__)", **alone).strip()).parent == purelib / "tconv"
    run(python.with_name("tconv"), "optimize", "model.py", "-o", "new.py", "--no-bench", **alone)
    head = (tmp_path / "new.py").read_text().split("\n\n")[0]
    assert " direct: " in head and " mma: " in head
