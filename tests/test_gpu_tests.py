"""The script behind `make test-gpu`, on tests that need no GPU: what it counts, keeps, and does the next time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
FEW = """
import os, pytest
pytestmark = pytest.mark.gpu
def test_passes(): assert os.path.isabs(os.environ["PYTHONPATH"])
def test_fails(): assert False
def test_skips(): pytest.skip("so")
@pytest.mark.parametrize("n", [])
def test_of_nothing(n): pass
"""
MANY = """
import os, pytest
@pytest.mark.gpu
@pytest.mark.parametrize("n", range(70))
def test_number(n):
    if n == 66:
        os._exit(3)  # as a lost device ends a process
def test_without_a_gpu(): raise AssertionError
"""
BROKEN = "import a_package_that_is_not_here"


@pytest.fixture
def gpu_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    import gpu_tests
    import results

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(gpu_tests, "environment", lambda: {"gpu": "NVIDIA X"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, text in (("test_few", FEW), ("test_many", MANY)):
        path = tmp_path / "tests" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    yield gpu_tests
    for name in set(sys.modules) - before:
        if name in ("gpu_tests", "results"):
            del sys.modules[name]


def test_other_code_is_another_tree(gpu_tests: ModuleType, tmp_path: Path) -> None:
    before = gpu_tests.tree()
    assert gpu_tests.tree() == before
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "new.py").write_text("one = 1")
    assert len(before) == 12
    assert gpu_tests.tree() != before


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    return lambda: json.loads((tmp_path / "results" / "gpu_tests.json").read_text())


def test_every_test_counts_once(
    gpu_tests: ModuleType, kept: Callable[[], dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tests" / "test_broken.py").write_text(BROKEN)
    assert gpu_tests.main(["--workers", "2", "--commit", "abc"]) == 1
    found = kept()
    assert (found["environment"], found["tree"], found["commit"]) == ({"gpu": "NVIDIA X"}, gpu_tests.tree(), "abc")
    parts = found["parts"]
    assert list(parts) == [*(f"tests/test_many.py {n}/2" for n in (1, 2)), "tests/test_few.py 1/1"]
    assert parts["tests/test_many.py 1/2"]["counts"] == {"passed": 64}
    assert parts["tests/test_many.py 2/2"]["counts"] == {"failed": 6}
    assert parts["tests/test_many.py 2/2"]["failed"][0].startswith("6 tests did not run to their end: ")
    assert parts["tests/test_few.py 1/1"]["counts"] == {"passed": 1, "failed": 1, "skipped": 2}
    assert parts["tests/test_few.py 1/1"]["failed"] == ["tests.test_few.test_fails"]
    assert found["total"] == {"passed": 65, "failed": 7, "skipped": 2}
    assert "all: 7 failed, 65 passed, 2 skipped" in capsys.readouterr().out


def test_a_run_goes_on_where_one_stopped(gpu_tests: ModuleType, kept: Callable[[], dict[str, Any]]) -> None:
    assert gpu_tests.main(["tests/test_few.py", "--budget", "0"]) == 1
    assert gpu_tests.load("gpu_tests") is None
    gpu_tests.main(["tests/test_few.py"])
    before = kept()
    gpu_tests.main(["tests/test_few.py"])
    assert kept() == before, "nothing was run again"


def test_other_trees_and_machines_start_anew(
    gpu_tests: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_tests.main(["tests/test_few.py"])
    monkeypatch.setattr(gpu_tests, "tree", lambda: "another")
    assert gpu_tests.main(["tests/test_few.py"]) == 2
    assert "start anew with --fresh" in capsys.readouterr().err


def test_a_file_with_tests_for_gpus_must_be_readable(gpu_tests: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tests" / "test_broken.py").write_text(BROKEN + "\nimport pytest\npytestmark = pytest.mark.gpu\n")
    with pytest.raises(SystemExit, match=r"these cannot be collected: tests/test_broken\.py"):
        gpu_tests.main([])


def test_without_a_gpu_it_says_so(
    gpu_tests: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_tests.main([]) == 2
    assert "need a GPU" in capsys.readouterr().err
