"""The package's rooms import what CONTRIBUTING draws, and nothing else: neither upwards nor hidden in a string."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "tconv").rglob("*.py")
}
#: Who import by a name that is computed: the public names, each imported for the type checker, too; the class that
#: `Workshop.start` was given; what a model file imports, to see whether it is there; the parts of cuda-core.
BY_NAME = {"tconv", "tconv.sandbox.worker_process", "tconv.sandbox.imports", "tconv.jit.toolchain"}


@cache
def text_of(module: str) -> str:
    return MODULES[module].read_text(encoding="utf-8")


@cache
def section() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition("## Where things are\n")[2].partition("\n## ")[0]


@cache
def arrows() -> dict[str, set[str]]:
    """From each room of the drawing, the rooms that its arrows lead to."""
    drawing = re.search(r"```mermaid\n(.*?)```", section(), re.DOTALL)
    assert drawing is not None
    drawn: dict[str, set[str]] = {}
    for line in drawing[1].splitlines()[1:]:
        upper, lower = (re.findall(r"\w+", side) for side in line.split("-->"))
        for room in upper:
            drawn.setdefault(room, set()).update(lower)
        for room in lower:
            drawn.setdefault(room, set())
    return drawn


@cache
def table() -> dict[str, tuple[list[str], set[str]]]:
    """The folders and files of each room, without ``.py``, and the packages of others that it imports."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section().splitlines() if "|" in line]
    return {
        room: ([path.removesuffix(".py") for path in _quoted(paths)], set(_quoted(takes)))
        for room, paths, _, takes in cells[2:]
    }


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([\w/.]+)`", cell)


@cache
def reach(room: str) -> set[str]:
    """The rooms that may be imported: those that arrows lead to, directly or through others."""
    found: set[str] = set()
    waiting = list(arrows()[room])
    while waiting:
        if (lower := waiting.pop()) not in found:
            found.add(lower)
            waiting += arrows()[lower]
    return found


@cache
def room_of(module: str) -> str:
    """The room whose row names the module, or the deepest of its folders."""
    path = MODULES[module].relative_to(SOURCE / "tconv").with_suffix("").as_posix()
    named = {place: room for room, (places, _) in table().items() for place in places}
    fitting = [place for place in named if path == place or (place.endswith("/") and path.startswith(place))]
    assert fitting, f"{module} has no place in CONTRIBUTING's table"
    return named[max(fitting, key=len)]


def imports(text: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that is imported anywhere in a module, and of modules that a string names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: write the whole name"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield node.lineno, name if name in MODULES else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"(tconv(?:\.\w+)+)(?::\w+)?", node.value)
            # Of a class or function, too: the longest part that is a module.
            while named is not None and (name := named[1]) not in MODULES and "." in name:
                named = re.fullmatch(r"(.*)\.\w+()", name)
            if named is not None and named[1] != "tconv":
                yield node.lineno, named[1]


def wrong_imports(module: str, text: str) -> list[str]:
    """The imports of tconv's own that no arrow allows."""
    room = room_of(module)
    return [
        f"{module}, line {line}: {room} imports {name}, of {room_of(name)}"
        for line, name in imports(text)
        if name in MODULES and room_of(name) not in {room, *reach(room)}
    ]


def test_the_drawing_and_the_table_have_the_same_rooms() -> None:
    assert set(arrows()) == set(table())
    places = [place for folders, _ in table().values() for place in folders]
    assert [place for place in places if not list((SOURCE / "tconv").glob(f"{place.rstrip('/')}*"))] == []
    assert len(set(places)) == len(places)


def test_no_circle_is_drawn() -> None:
    assert [room for room in arrows() if room in reach(room)] == []


def test_no_import_goes_up() -> None:
    assert [wrong for module in MODULES for wrong in wrong_imports(module, text_of(module))] == []


def test_every_arrow_is_an_import() -> None:
    made = {
        (room_of(module), room_of(name))
        for module in MODULES
        for _, name in imports(text_of(module))
        if name in MODULES
    }
    drawn = {(upper, lower) for upper, rooms in arrows().items() for lower in rooms}
    assert drawn - made == set()
    # None says what others say together.
    assert [(a, c) for a, c in drawn if any(c in reach(b) for b in arrows()[a] - {c})] == []


@pytest.mark.parametrize("room", table())
def test_packages_of_others(room: str) -> None:
    """What the table quotes as taken is what the room imports."""
    imported = {
        name.partition(".")[0] for module in MODULES if room_of(module) == room for _, name in imports(text_of(module))
    }
    assert imported - sys.stdlib_module_names - {"tconv"} == table()[room][1]


def test_only_these_import_by_name() -> None:
    calls = re.compile(r"\b(import_module|__import__|run_module|find_spec)\(")
    assert {module for module in MODULES if calls.search(text_of(module))} == BY_NAME


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("tconv.planner.plan", "def f():\n    from tconv.jit import loader\n"),
        ("tconv.codegen.generate", "import tconv.evaluation.rules\n"),
        ("tconv.evaluation.rules", "from tconv.evaluation.files.judge import judge\n"),
        ("tconv.evaluation.timing", "if TYPE_CHECKING:\n    from tconv.tuning.jobs import Job\n"),
        ("tconv.sandbox.worker", "start('tconv.evaluation.files.process.answers:Subject')\n"),
        ("tconv.sandbox.worker", "run('tconv.evaluation.files.judge.judge')\n"),
        ("tconv.ops", "from tconv import sandbox\n"),
    ],
)
def test_planted_imports_are_found(module: str, text: str) -> None:
    assert len(wrong_imports(module, text)) == 1
