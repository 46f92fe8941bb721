"""The guides say what works: all of their code runs, in order, in a process with an empty working directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import guides
import pytest

import tconv

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
LONGEST, WIDEST = 50, 130


def run(guide: Path, folder: Path, *options: str, path: Path | None = None) -> str:
    """What a guide's code prints; fails with it where the code does.

    Args:
        path: where it finds further modules.
    """
    tools = folder / "tools"
    tools.mkdir()
    command = tools / "tconv"  # of the tree under test, also where it is not installed
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tconv "$@"\n')
    command.chmod(0o755)
    empty = folder / "empty"
    empty.mkdir()
    places = [Path(tconv.__file__).parent.parent, path, os.environ.get("PYTHONPATH")]
    ended = subprocess.run(
        [sys.executable, guides.__file__, str(guide), *options],
        cwd=empty,
        env={
            **os.environ,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(str(place) for place in places if place),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if ended.returncode != 0:
        pytest.fail(f"exit code {ended.returncode}\n{ended.stdout}", pytrace=False)
    return ended.stdout


def blocks(guide: Path) -> list[guides.Block]:
    return list(guides.blocks(guide.read_text(encoding="utf-8")))


def needing_gpu(guide: Path) -> int:
    return sum(block.needs_gpu for block in blocks(guide))


def without_gpu(guide: Path) -> str:
    return f"{guide.stem}-{len(blocks(guide)) - needing_gpu(guide)}_blocks"


def with_gpu(guide: Path) -> str:
    return f"{guide.stem}-{needing_gpu(guide)}_of_{len(blocks(guide))}_blocks_need_a_GPU"


@pytest.mark.rotates(12)
@pytest.mark.parametrize("guide", GUIDES, ids=without_gpu)
def test_code_that_needs_no_gpu_runs(guide: Path, tmp_path: Path) -> None:
    run(guide, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("guide", list(filter(needing_gpu, GUIDES)), ids=with_gpu)
def test_all_code_runs_on_a_gpu(guide: Path, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None and any("tconv verify" in block.code for block in blocks(guide)):
        pytest.skip("needs nvcc, which builds a written file")
    run(guide, tmp_path, "--with-gpu")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_is_short_and_the_readme_leads_there(guide: Path) -> None:
    lines = guide.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert [line for line in lines if len(line) > WIDEST and not line.startswith("|")] == []
    assert f"](docs/guides/{guide.name})" in (ROOT / "README.md").read_text(encoding="utf-8")


# ---- what runs them: tests/guides.py ---------------------------------------------------------------------------------

GUIDE = """# A guide

```python
x = 1
```

```python other.py
y = 2
```

    tconv --version

```sh
test -f other.py
```

```python gpu
raise AssertionError("this block needs a GPU")
```

```mermaid
flowchart LR
```

```python
import other
print(x, y, other.y)
```
"""


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    written = tmp_path / "guide.md"
    written.write_text(GUIDE)
    return written


def test_blocks_are_found_where_they_begin() -> None:
    found = [(b.line, b.language, b.needs_gpu, b.file, b.code) for b in guides.blocks(GUIDE)]
    assert found == [
        (4, "python", False, "", "x = 1"),
        (8, "python", False, "other.py", "y = 2"),
        (11, "sh", False, "", "tconv --version"),
        (14, "sh", False, "", "test -f other.py"),
        (18, "python", True, "", 'raise AssertionError("this block needs a GPU")'),
        (26, "python", False, "", "import other\nprint(x, y, other.y)"),
    ]


@pytest.mark.parametrize("words", ["", "bash", "python skip", "sh model.py", "python one.py two.py"])
def test_a_block_that_nobody_would_run_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="line 1: got"):
        list(guides.blocks(f"```{words}\n```\n"))


def test_a_block_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: the block does not end"):
        list(guides.blocks("```python\nx = 1\n"))


def test_blocks_run_in_order_in_one_namespace(guide: Path, tmp_path: Path) -> None:
    printed = [line for line in run(guide, tmp_path).splitlines() if not line.startswith("----")]
    assert printed == [f"tconv {tconv.__version__}", "1 2 2"]


def test_what_fails_is_named_by_its_line(guide: Path, tmp_path: Path) -> None:
    guide.write_text(GUIDE.replace("print(x", "print(z"))
    with pytest.raises(pytest.fail.Exception, match=r'guide\.md", line 27'):
        run(guide, tmp_path)


def test_a_command_that_fails_fails_the_guide(guide: Path, tmp_path: Path) -> None:
    guide.write_text("```sh\nfalse\ntrue\n```\n")
    with pytest.raises(pytest.fail.Exception, match="CalledProcessError"):
        run(guide, tmp_path)


def test_code_for_a_gpu_runs_where_it_is_asked_for(guide: Path, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="this block needs a GPU"):
        run(guide, tmp_path, "--with-gpu")


def test_the_backend_has_its_name_where_tconv_is_not_installed(guide: Path, tmp_path: Path) -> None:
    hidden = "import guides\nguides.entry_points = lambda **_: ()\nguides._register_backend()\n"
    guide.write_text(f"```python\n{hidden}import torch\nprint(torch._dynamo.lookup_backend('tconv'))\n```\n")
    assert "function backend" in run(guide, tmp_path, path=ROOT / "tests")
