"""The API reference: each public name has a docstring with what a caller needs, and pdoc makes a page of them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tconv

PUBLIC: dict[str, Any] = {name: getattr(tconv, name) for name in tconv.__all__ if name != "__version__"}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
ERRORS = {name: value for name, value in CLASSES.items() if issubclass(value, Exception)}
LAYERS = {name: value for name, value in CLASSES.items() if issubclass(value, torch.nn.Module)}
#: What tells in words that a number is one of a unit, or counts.
_UNITS = r"\b(bytes|seconds|operations|how many)\b"


def sections(docstring: str | None) -> dict[str, str]:
    """The text under each heading of a docstring; what comes before is "summary"."""
    _, *parts = re.split(r"^(\w+):$", f"\n{inspect.cleandoc(docstring or '')}", flags=re.MULTILINE)
    return {"summary": inspect.cleandoc(docstring or ""), **dict(zip(parts[::2], parts[1::2], strict=True))}


def described(text: str) -> set[str]:
    """The names that a section of arguments, or of errors, has something to say of."""
    names = re.findall(r"^    ((?:\w+, )*\w+):", text, re.MULTILINE)
    return {name for listed in names for name in listed.split(", ")}


def arguments(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    listed = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return {*listed} - {"self"}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself."""
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring_of_its_own(name: str) -> None:
    summary = sections(PUBLIC[name].__doc__)["summary"].partition("\n\n")[0]
    assert summary[:1].isupper() and summary.endswith(".")
    if name in CLASSES:
        assert [method for method, function in members(PUBLIC[name]) if not function.__doc__] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_arguments_result_and_errors(name: str) -> None:
    found = sections(FUNCTIONS[name].__doc__)
    assert arguments(FUNCTIONS[name]) - described(found["Args"]) == set()
    assert {"Returns", "Raises"} <= set(found)


@pytest.mark.parametrize("name", [name for name in CLASSES if "__init__" in vars(CLASSES[name])])
def test_a_class_says_what_it_is_made_of(name: str) -> None:
    assert arguments(CLASSES[name].__init__) - described(sections(CLASSES[name].__doc__)["Args"]) == set()


@pytest.mark.parametrize("name", [*(name for name in FUNCTIONS if name.startswith("conv_")), *LAYERS])
def test_tensors_have_shapes(name: str) -> None:
    found = sections(PUBLIC[name].__doc__)
    of_result = found["summary"] if name in LAYERS else found["Returns"]
    assert "(N, " in of_result and "(N, in_channels, " in found["summary"] + found.get("Args", "")
    assert name in LAYERS or "(in_channels, out_channels / groups, " in found["Args"]


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if dataclasses.is_dataclass(kind)])
def test_numbers_have_units(name: str) -> None:
    text, fields = sections(CLASSES[name].__doc__)["Args"], dataclasses.fields(CLASSES[name])
    for number in (field.name for field in fields if re.search(r"\b(int|float)\b", str(field.type))):
        (about,) = re.findall(rf"^    {number}: ((?:.+\n?)(?:     .+\n?)*)", text, re.MULTILINE)
        assert re.search(_UNITS, about), f"{number}: {about}"


def test_each_error_is_one_that_a_function_raises() -> None:
    raised = set[str]().union(*(described(sections(value.__doc__)["Raises"]) for value in FUNCTIONS.values()))
    assert set(ERRORS) - raised == {"TconvError"}


def test_what_is_missing_is_noticed() -> None:
    arguments = "Args:\n    x, y: two.\n    z: one,\n        further: not an argument."
    found = sections(f"Does.\n\n{arguments}\n\nRaises:\n    E: so.")
    assert described(found["Args"]) == {"x", "y", "z"} and described(found["Raises"]) == {"E"}
    assert sections(None) == {"summary": ""}


def test_pdoc_makes_a_page_of_them(tmp_path: Path) -> None:
    """As `make docs` does."""
    pytest.importorskip("pdoc")
    command = [sys.executable, "-m", "pdoc", "--docformat", "google", "--output-directory", str(tmp_path), "tconv"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0 and "Warn" not in ended.stderr, ended.stderr
    page = (tmp_path / "tconv.html").read_text(encoding="utf-8")
    assert [name for name in tconv.__all__ if f'<section id="{name}"' not in page] == []
