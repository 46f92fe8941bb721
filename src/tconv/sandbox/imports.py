"""Where the imports of a model file are found that lie beside it, or in the package that it is part of.

A file is loaded by its path, as a script is: of its folder Python knows, of a package around that it does not.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: So many folders around a file are looked at for what it imports.
_ANCESTORS = 6


@dataclass(frozen=True)
class Place:
    """A file among those that it imports.

    Args:
        package: the dotted name of the package whose relative imports it has; "" for none.
        before, behind: the folders in which imports are looked for, before all others and behind them.
    """

    package: str
    before: tuple[Path, ...]
    behind: tuple[Path, ...] = ()

    def enter(self) -> None:
        """Has Python look there, for good."""
        for folder in reversed(self.before):
            sys.path.insert(0, str(folder))
        sys.path += map(str, self.behind)

    def finds(self, name: str) -> bool:
        """Whether a module or package of that name lies in one of the folders."""
        return any(_holds(folder, name) for folder in (*self.before, *self.behind))


def place_of(path: Path, source: str) -> Place:
    """Where a file's imports are found.

    In a package the folder around it comes first, and the file's own folder last, since a neighbour may bear the name
    of one of Python's modules; it comes first, too, where the file imports from it by a plain name.

    Args:
        source: the file's text.
    """
    names, folder = imported(source), path.parent
    level = max(map(_level, _nodes(source)), default=0)
    parts = _package(folder, level)
    root = folder.parents[len(parts) - 1] if parts else folder
    within = folder.parents[: len(parts) - 1] if parts else ()
    plain = [name for name in names if _holds(folder, name)]
    before = [root, *([folder] if parts and any(not _holds(root, name) for name in plain) else [])]
    for name in names:
        if any(_holds(there, name) for there in before):
            continue
        around = next((each for each in (*within, *_around(root)) if _holds(each, name)), None)
        # Of a folder that the file lies in the name is its own, whatever else is installed under it.
        if around is not None and (around / name in path.parents or not _is_installed(name)):
            before.append(around)
    return Place(".".join(parts), tuple(before), (folder,) if folder not in before else ())


def lies_around(path: Path, name: str) -> Path | None:
    """The folder or file of a top-level name beside a file, or around it; None for none."""
    for folder in (path.parent, *_around(path.parent)):
        if _holds(folder, name):
            return folder / name if (folder / name).is_dir() else folder / f"{name}.py"
    return None


def relative_imports(source: str) -> list[str]:
    """What a text imports by relative names: ``.blocks``, also where it writes ``from . import blocks``."""
    nodes = (node for node in _nodes(source) if isinstance(node, ast.ImportFrom) and node.level)
    return [f"{'.' * node.level}{node.module or node.names[0].name}" for node in nodes]


def imported(source: str) -> list[str]:
    """The first parts of what a text imports by absolute names, but for Python's own."""
    names: list[str] = []
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.append(node.module)
    first = dict.fromkeys(name.partition(".")[0] for name in names)
    return [name for name in first if name not in sys.stdlib_module_names]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # of a module that is there without saying where from
        return True


def _nodes(source: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return  # said where the file is run


def _level(node: ast.AST) -> int:
    return node.level if isinstance(node, ast.ImportFrom) else 0


def _package(folder: Path, level: int) -> Sequence[str]:
    """The names of the folders that make the package around a file: those with an ``__init__.py``, and as many as its
    relative imports go up."""
    parts: list[str] = []
    while folder.name.isidentifier() and ((folder / "__init__.py").is_file() or len(parts) < level):
        parts.insert(0, folder.name)
        folder = folder.parent
    return parts


def _around(folder: Path) -> Sequence[Path]:
    return folder.parents[:_ANCESTORS]


def _holds(folder: Path, name: str) -> bool:
    """Whether a folder has a module or a package of that name; any folder of Python files is one."""
    inner = folder / name
    return (folder / f"{name}.py").is_file() or (inner.is_dir() and any(inner.rglob("*.py")))
