"""Python's syntax trees: what a statement binds, deletes and evaluates, and in which order."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class WithoutAnnotations(ast.NodeTransformer):
    """Takes ``name: annotation = value`` for ``name = value``."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign | ast.Assign:
        if node.value is None or not isinstance(node.target, ast.Name):
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """The function's statements that stand in a row, without those of functions and classes in it."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value
            for child in value if isinstance(value, list) else [value]:
                inner = ast.stmt | ast.ExceptHandler | getattr(ast, "match_case", ast.ExceptHandler)
                if isinstance(child, inner) and not isinstance(child, ast.FunctionDef | ast.ClassDef):
                    waiting.append(child)


def within(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement, without those of functions in it."""
    waiting = [child for child in ast.iter_child_nodes(statement)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield node
        own = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        if not isinstance(node, own):
            waiting += ast.iter_child_nodes(node)


def changed(node: ast.expr) -> str | None:
    """The name whose tensor methods change in place, one behind another; None for other expressions."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        node = node.func.value
        if isinstance(node, ast.Name):
            return node.id
    return None


def evaluates(around: ast.AST, inner: ast.AST) -> bool:
    """Whether evaluating `around` evaluates `inner`, in any case and once."""
    if isinstance(around, ast.IfExp):
        return inner is around.test
    if isinstance(around, ast.BoolOp):
        return inner is around.values[0]
    if isinstance(around, ast.Compare):
        return inner in (around.left, around.comparators[0])
    # Positions in f-strings are wrong before Python 3.12.
    return not isinstance(around, ast.Lambda | ast.comprehension | ast.JoinedStr | _COMPREHENSIONS)


def stands_before(node: ast.AST, other: ast.AST) -> bool:
    place = [(getattr(each, "lineno", 0), getattr(each, "col_offset", 0)) for each in (node, other)]
    return place[0] < place[1]


def target_of(statement: ast.stmt) -> ast.Name | None:
    """The name that a statement binds, or adds to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    target = statement.target if isinstance(statement, ast.AugAssign) else targets[0] if targets else None
    return target if isinstance(target, ast.Name) else None


def deleted(statement: ast.stmt) -> frozenset[str]:
    """The names that a statement deletes; none where it deletes anything else."""
    targets = statement.targets if isinstance(statement, ast.Delete) else []
    names = frozenset(target.id for target in targets if isinstance(target, ast.Name))
    return names if len(names) == len(targets) else frozenset()


def are_copies(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements give values other names, and do nothing else."""
    return all(isinstance(each, ast.Assign) and isinstance(each.value, ast.Name) for each in statements)


def arguments_of(function: ast.FunctionDef) -> list[ast.arg]:
    of = function.args
    return [*of.posonlyargs, *of.args, *of.kwonlyargs, *(a for a in (of.vararg, of.kwarg) if a is not None)]


def free_name(name: str, used: Collection[str]) -> str:
    """A name that is not used yet."""
    names = [name, *(f"{name}_{number}" for number in range(len(used)))]
    return next(each for each in names if each not in used)
