"""What a model file does while it is loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: Builtins that reach what a file defines without naming it.
_REFLECTIVE = {"globals", "locals", "vars", "eval", "exec", "getattr", "__import__"}


def calls_its_own(text: str) -> bool:
    """Whether loading calls something in a statement that mentions what the file defines: so it may build its model."""
    tree = ast.parse(text)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)} | _REFLECTIVE
    stars = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    return any(
        any(isinstance(node, ast.Call) for node in nodes)
        and (stars or any(isinstance(node, ast.Name) and node.id in own for node in nodes))
        for nodes in map(list, map(_evaluated, _statements(tree.body)))
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that loading executes, classes' own among them."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.ClassDef):
            yield from _statements(statement.body)


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """What is evaluated when `node` is; of functions their decorators and defaults, not their bodies."""
    yield node
    for name, value in ast.iter_fields(node):
        bodies = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        if not (name == "body" and isinstance(node, bodies)):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _evaluated(child)
