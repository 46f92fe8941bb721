"""Pieces of tconv's own modules as text for a generated file, so that both follow one rule.

A piece is a function, constant or class with everything of its module that it uses. It loses what Python 3.8 does not
understand, annotations above all, and its names gain an underscore, since other names in the file are the user's.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType

#: Words that checkers of generated files look for in the raw text: a comment with one of them stays behind.
_UNWELCOME = re.compile(r"\b(try|except|pass)\b")

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def excerpt(modules: Sequence[ModuleType], wanted: Sequence[str], renamed: Mapping[str, str], prefix: str = "_") -> str:
    """The definitions `wanted` of `modules` and those that they use, constants first, in the order of the modules.

    Of a class those methods are there that something uses, by their names.

    Args:
        modules: read as text; functions, constants and classes without bases can be wanted. A constant of several
            modules is one.
        renamed: names that the generated file has already, and what they are called there.
        prefix: what their own names gain there, but for an underscore that they begin with; those of classes gain an
            underscore alone.

    Raises:
        KeyError: a wanted name is not defined in the modules.
        ValueError: two modules define one name differently.
    """
    definitions: dict[str, tuple[str, Definition]] = {}
    for module in modules:
        source = inspect.getsource(module)
        for name, node in _definitions(ast.parse(source)):
            if name in renamed:
                continue
            if name in definitions and ast.dump(definitions[name][1]) != ast.dump(node):
                raise ValueError(f"{name} is defined twice, and {module.__name__} defines it differently")
            definitions.setdefault(name, (source, node))
    members = {
        f"{name}.{method.name}": method
        for name, (_, node) in definitions.items()
        if isinstance(node, ast.ClassDef)
        for method in _methods(node)
    }
    chosen, attributes = set(wanted), {"__init__"}
    read: set[str] = set()
    while unread := (chosen | {m for m in members if _is_used(m, chosen, attributes)}) - read:
        for name in unread:
            node = members[name] if name in members else definitions[name][1]
            if not isinstance(node, ast.ClassDef):
                chosen.update(used for used in _names_in_body(node) if used in definitions)
                attributes.update(child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute))
        read |= unread
    names = dict(renamed)
    for name in chosen:
        before = "_" if isinstance(definitions[name][1], ast.ClassDef) else prefix
        names[name] = before.rstrip("_") + name if name.startswith("_") else before + name
    constants, rest = "", []
    for name, (source, node) in definitions.items():
        if name not in chosen:
            continue
        if isinstance(node, ast.ClassDef):
            used = [m for m in _methods(node) if _is_used(f"{name}.{m.name}", chosen, attributes)]
            pieces = [_piece(source, method, {**names, method.name: method.name}) for method in used]
            rest.append(f"class {names[name]}:\n" + "\n".join(pieces))
        elif isinstance(node, ast.FunctionDef):
            rest.append(_piece(source, node, names))
        else:
            constants += _piece(source, node, names)
    return "\n\n".join([constants, *rest]).lstrip("\n")


def _is_used(member: str, chosen: Collection[str], attributes: Collection[str]) -> bool:
    name, _, method = member.partition(".")
    return name in chosen and method in attributes


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [child for child in node.body if isinstance(child, ast.FunctionDef)]


def methods(
    module: ModuleType,
    class_name: str,
    wanted: Collection[str],
    renamed: Mapping[str, str] | None = None,
    there: Collection[str] = (),
) -> str:
    """Those methods of a class that are `wanted`, and those that they use, but for those that are `there` already.

    Words that are no method do not matter.
    """
    source = inspect.getsource(module)
    found = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    functions = {method.name: method for method in _methods(found) if method.name not in there}
    chosen: set[str] = set()
    waiting = [name for name in functions if name in wanted]
    while waiting:
        name = waiting.pop()
        if name not in chosen:
            chosen.add(name)
            attributes = (child for child in ast.walk(functions[name]) if isinstance(child, ast.Attribute))
            waiting += [child.attr for child in attributes if child.attr in functions]
    names = {**(renamed or {}), **{name: name for name in functions}}
    return "\n".join(_piece(source, functions[name], names) for name in functions if name in chosen)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node


def _names_in_body(node: ast.FunctionDef | ast.Assign | ast.AnnAssign) -> Iterator[str]:
    for part in node.body if isinstance(node, ast.FunctionDef) else [node.value]:
        if part is not None:
            yield from (child.id for child in ast.walk(part) if isinstance(child, ast.Name))


def _piece(source: str, node: Definition, names: Mapping[str, str]) -> str:
    """The text of one definition with its decorators and the comments right above it."""
    lines = source.encode().splitlines(keepends=True)
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
    above = first
    while above and lines[above - 1].startswith(b"#"):
        above -= 1
    if not _UNWELCOME.search(b"".join(lines[above:first]).decode()):
        first = above
    text = [bytearray(line) for line in lines[first : node.end_lineno]]
    for line, start, end, new in sorted(_edits(node, names), reverse=True):
        text[line - 1 - first][start:end] = new.encode()
    return b"".join(text).decode().replace("#: ", "# ")


def _edits(node: Definition, names: Mapping[str, str]) -> Iterator[tuple[int, int, int, str]]:
    """(line, start column, end column, new text); no edit spans lines."""
    gone: set[ast.AST] = set()
    if isinstance(node, ast.FunctionDef):
        for argument, default in zip(node.args.args[::-1], node.args.defaults[::-1], strict=False):
            if argument.annotation is not None:  # what stands around "=" goes with it
                end = argument.col_offset + len(argument.arg)
                yield default.lineno, end, default.col_offset, "="
                gone.update(ast.walk(argument.annotation), [argument])
    for child in ast.walk(node):
        if child in gone:
            continue
        for start, last in _needless(child):
            yield last.lineno, start, last.end_col_offset or start, ""
            gone.update(ast.walk(last))
    if isinstance(node, ast.FunctionDef):
        start = node.col_offset + len("def ")
        yield node.lineno, start, start + len(node.name), names[node.name]
    for child in ast.walk(node):
        # Positions inside an f-string are right from Python 3.12 on only: what is renamed must not stand in one.
        if isinstance(child, ast.Name) and child not in gone and names.get(child.id, child.id) != child.id:
            yield child.lineno, child.col_offset, child.col_offset + len(child.id), names[child.id]


def _needless(node: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """What Python 3.8 does not understand: the start column of each piece, and the expression that ends it."""
    if isinstance(node, ast.arg) and node.annotation is not None:
        yield node.col_offset + len(node.arg), node.annotation
    elif isinstance(node, ast.FunctionDef) and node.returns is not None:
        yield node.returns.col_offset - len(" -> "), node.returns
    elif isinstance(node, ast.AnnAssign):
        yield node.target.end_col_offset or 0, node.annotation
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "strict":
                yield (node.args[-1].end_col_offset or 0), keyword.value
