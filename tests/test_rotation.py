"""What `make test` leaves out: each time another part, counted and listed; and nothing without `--rotate`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rotation import AREAS, ROOT, area_digests, area_of, runs, shards_of

TESTS = """
import pytest

@pytest.mark.rotates(4, by="name", always={"n3"})
@pytest.mark.parametrize("name", [f"n{i}" for i in range(40)])
def test_some(name, shard): print(f"[{name} of {shard}]")

@pytest.mark.slow
def test_slow(): print("[slow]")

@pytest.mark.compat
def test_compat(): print("[compat]")

def test_each_time(): print("[each]")
"""
INI = "[pytest]\nmarkers =\n rotates(parts)\n slow\n compat\n"


def ran(folder: Path, *options: str, ini: str = INI, **environment: str) -> tuple[set[str], list[str]]:
    """What ran, and the lines from the list of what was left out on."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(ini)
    kept = {name: value for name, value in os.environ.items() if name not in ("SHARD", "PYTEST_ADDOPTS")}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "rotation", "-p", "xdist", "-rP", *options],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    epilogue = result.stdout.partition(" left out this time ")[2].splitlines()[1:]
    return set(re.findall(r"^\[((?!gw)\w+)", result.stdout, re.MULTILINE)), epilogue


def test_each_shard_runs_another_part_and_all_of_them_everything(tmp_path: Path) -> None:
    parts = [ran(tmp_path, "--rotate", f"--shard={shard}")[0] - {"each", "n3"} for shard in range(4)]
    assert all(len(part) > 3 for part in parts)
    assert sum(map(len, parts)) == 39 and set.union(*parts) == {f"n{i}" for i in range(40)} - {"n3"}
    assert ran(tmp_path, "--rotate", "--shard=5")[0] - {"each", "n3"} == parts[1]


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_what_is_left_out_is_listed_and_counted_above_the_closing_line(tmp_path: Path, workers: tuple[str]) -> None:
    found, lines = ran(tmp_path, "--rotate", *workers, SHARD="7")
    assert found >= {"each", "n3"} and not found & {"slow", "compat"}
    cases = 41 - len(found)
    assert lines[:3] == [
        f"{cases:6} of    43  test_it.py: one case in 4 runs",
        "     1 of    43  test_it.py: other compilers",
        "     1 of    43  test_it.py: slow",
    ]
    assert f"make test SHARD={','.join(f'{area}=7' for area in AREAS)}`" in lines[3] and "make test-all" in lines[4]
    assert re.fullmatch(rf"=+ {len(found)} passed, {cases + 2} deselected in .*", lines[-1])


def test_without_rotation_everything_runs(tmp_path: Path) -> None:
    found, lines = ran(tmp_path)
    assert len(found) == 43 and lines == []


def test_a_case_stays_in_its_part_whatever_else_there_is() -> None:
    assert [shard for shard in range(8) if runs("a case", 4, shard)] == [3, 7]


def test_the_digests_are_those_of_the_code(tmp_path: Path) -> None:
    source = tmp_path / "src" / "tconv" / "planner" / "module.py"
    source.parent.mkdir(parents=True)
    source.write_text('"""Says."""\nx = 1  # said')
    first = area_digests(tmp_path)
    for other in ("src/tconv/__pycache__/module.pyc", "src/tconv.egg-info/PKG-INFO", "build/module.py"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("left by tools")
    source.write_text('"""Says more."""\nx = 1')
    assert area_digests(tmp_path) == first, "no code is another"
    source.write_text("x = 2")
    changed = area_digests(tmp_path)
    assert {area for area in AREAS if changed[area] != first[area]} == {"kernels"}
    source.rename(source.with_name("renamed.py"))
    assert area_digests(tmp_path)["kernels"] not in (first["kernels"], changed["kernels"])


def test_every_folder_has_the_area_of_what_it_tests() -> None:
    assert area_of("src/tconv/planner/mma/shape.py") == area_of("tests/test_planner_mma.py") == "kernels"
    assert area_of("src/tconv/rewriter/run.py") == area_of("tests/codegen/test_headers.py") == "codegen"
    assert area_of("src/tconv/sandbox/cut.py") == area_of("tests/evaluation/test_judge.py") == "judge"
    assert area_of("src/tconv/ops.py") == area_of("tests/library/test_on_gpu.py") == "library"
    named = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "_."}
    assert {name for name in named if area_of(f"tests/{name}/x.py") == "library"} == {"data", "library", "tuning"}


def test_shards_that_are_asked_for() -> None:
    assert shards_of("7") == dict.fromkeys(AREAS, 7)
    one = shards_of("judge=3")
    assert one == {**shards_of(None), "judge": 3}
    for wrong in ("x", "judge=x", "others=3", "7,8"):
        with pytest.raises(pytest.UsageError, match="allowed are"):
            shards_of(wrong)


def test_what_needs_a_gpu_is_left_out_and_counted_in_one_line(tmp_path: Path) -> None:
    cuda = tmp_path / "torch" / "cuda.py"  # in torch's place, which takes seconds to import in each process
    cuda.parent.mkdir()
    cuda.write_text("def is_available(): return False\n")
    (cuda.parent / "__init__.py").write_text("from torch import cuda\n")
    (tmp_path / "test_gpu.py").write_text(
        "import pytest\n@pytest.mark.gpu\n@pytest.mark.parametrize('n', range(3))\ndef test_on_gpu(n): print('[gpu]')\n"
    )
    for options in ((), ("--rotate", "-n", "2", "--shard=1")):
        found, lines = ran(tmp_path, *options, ini=INI + " gpu\n")
        assert "gpu" not in found and "each" in found
        assert "     3 tests need a CUDA device: make test-gpu runs them" in lines
