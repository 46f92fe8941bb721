"""The documents say what is there: links lead somewhere, and every command and option is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from tconv.cli.app import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT) for pattern in ("*.md", "docs/*.md", "examples/*.md") for path in ROOT.glob(pattern)
)
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    broken = [t for t in targets if "://" not in t and not (ROOT / document.parent / t).exists()]
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_files_that_are_named_exist(document: Path) -> None:
    """Paths in backticks that begin with a folder of the repository."""
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|docs|examples|benchmarks|tests)/[\w/.*-]+)`", text)
    assert [name for name in named if not list(ROOT.glob(name))] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_described(name: str) -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    section = re.search(rf"^## tconv {name}\b.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    # Those for model files are described once, for all commands.
    shared = re.search(r"^## Model files$.*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert section is not None and shared is not None
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("-")]
    assert [option for option in options if option not in section[0] + shared[0]] == []
    for subcommand in getattr(COMMANDS[name], "commands", ()):
        assert f"tconv {name} {subcommand}" in section[0]


def test_the_readme_quotes_a_written_file() -> None:
    quoted = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    written = (ROOT / "examples" / "generated" / "strided_dilated_new.py").read_text(encoding="utf-8")
    assert quoted is not None
    lines = [line for line in quoted[1].splitlines() if line.strip() != "..."]
    assert len(lines) >= 5
    assert all(line in written.splitlines() for line in lines)
