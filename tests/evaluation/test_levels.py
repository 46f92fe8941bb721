"""The list of what is looked at, and the documents that show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tconv.evaluation.files import levels
from tconv.evaluation.files.levels import LOOKS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("document", "level"), [("evaluation", "default"), ("strict", "strict")])
def test_the_documents_have_the_list(document: str, level: str) -> None:
    text = (ROOT / "docs" / f"{document}.md").read_text(encoding="utf-8")
    table = text.partition("<!-- levels -->\n")[2].partition("<!-- /levels -->")[0]
    rows = [f"| {look.name} | {look.finds} | {look.costs} |" for look in LOOKS if look.level == level]
    assert table.splitlines() == ["| | finds | costs |", "|---|---|---|", *rows]


def test_what_is_strict_alone_is_asked_for_somewhere() -> None:
    """Else it would be looked at by default, or never."""
    names = {name for name, value in vars(levels).items() if value in LOOKS and value.level == "strict"}
    files = [path for path in Path(levels.__file__).parent.rglob("*.py") if path.name != "levels.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert names and not [n for n in names if f"looks_at({n})" not in text and f"{n}.within(" not in text]


def test_strict_has_all_of_the_default() -> None:
    assert all(look.within("strict") for look in LOOKS)
    assert {look.within("default") for look in LOOKS} == {True, False}
