"""The documents say what is there: links lead somewhere, and every command and option is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from tconv.cli.app import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def broken_links(document: Path) -> list[str]:
    """The targets of a document's links that lead to no file, or to no heading of a document."""
    links = re.findall(r"\]\(([^)\s]+)", without_code(document.read_text(encoding="utf-8")))
    return [link for link in links if "://" not in link and not leads_somewhere(document, *link.partition("#")[::2])]


def leads_somewhere(document: Path, target: str, anchor: str) -> bool:
    path = document.parent / target if target else document
    if anchor and path.suffix == ".md":
        return path.exists() and anchor in anchors(path.read_text(encoding="utf-8"))
    return path.exists()


def anchors(text: str) -> set[str]:
    """What GitHub calls a document's headings."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_code(text), re.MULTILINE):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)  # a link has its text
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        times = found[name] = found.get(name, -1) + 1
        if times:
            found[f"{name}-{times}"] = 0
    return set(found)


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(ROOT / document) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    document, other = tmp_path / "one.md", tmp_path / "docs" / "other.md"
    other.parent.mkdir()
    other.write_text("# `a.b` and [c](d)\n## Two times\n## Two times\n```sh\n# no heading\n```\n")
    right = ["docs/other.md", "docs", "#own", "https://a.b/c#d", "docs/other.md#ab-and-c", "docs/other.md#two-times-1"]
    wrong = ["other.md", "#two-times", "docs/other.md#no-heading", "docs/other.md#two-times-2", "no.md#own"]
    links = "\n".join(f"[x]({link})" for link in [*right, *wrong])
    document.write_text(f"# Own\n{links}\n```python\nx[0](y)\n```\n")
    assert broken_links(document) == wrong


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
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (quoted,) = (block for block in blocks if "class ModelNew" in block)
    written = (ROOT / "examples" / "generated" / "strided_dilated_new.py").read_text(encoding="utf-8")
    lines = [line for line in quoted.splitlines() if line.strip() != "..."]
    assert len(lines) >= 5
    assert all(line in written.splitlines() for line in lines)
