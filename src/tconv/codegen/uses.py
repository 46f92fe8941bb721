"""Who else uses the names of statements that move into a function of their own: there, nobody sees them any more.

A use is whatever the text does with a name: reading it, deleting it, adding to it, and declaring that it is another
function's or the module's. What is not certain is a use.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from tconv.codegen.names import Names

#: Functions that may read any name of the function that calls them.
_READ_ALL = frozenset({"dir", "eval", "exec", "locals", "vars"})
#: So may who calls these, of functions that called him.
_FRAMES = frozenset({"_getframe", "currentframe", "getouterframes"})
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
#: They leave a block before its end.
_LEAVES_BLOCK = (ast.Break, ast.Continue)
_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))


class Uses:
    """Of the names of one function.

    Args:
        names: those of its file.
        frames: what in the file may look at functions that are running, as `reader_of_frames` tells it.
    """

    def __init__(self, function: ast.FunctionDef, names: Names, frames: str | None = None) -> None:
        self._names, self._frames = names, frames
        self._nodes = list(ast.walk(function))
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self._order: dict[ast.AST, int] = {}
        for number, statement in enumerate(_statements(function)):
            # Positions in f-strings are wrong before Python 3.12: a node stands where its statement does.
            for node in _own_nodes(statement):
                self._order[node] = number
        self._declared = {
            name for node in self._nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
        }

    def of_all_names(self) -> str | None:
        """What may read any name of the function: a clause; None for nothing."""
        for node in self._nodes:
            if isinstance(node, ast.Name) and node.id in _READ_ALL and self._names.is_builtin(node):
                return f"{node.id} in line {node.lineno} may read any name"
        return self._frames

    def hiding(
        self, bound: ast.Name, inside: Collection[ast.AST], first: ast.stmt, behind: Sequence[ast.stmt] | None
    ) -> str | None:
        """Who would miss what a name is bound to in statements that stand in a row.

        Args:
            bound: one binding of the name there.
            inside: the nodes of these statements, of which `first` is the first.
            behind: the statements behind them in their block; None where they return.

        Returns:
            A clause such as ``y is used in line 12, too``; None for nobody.
        """
        name = bound.id
        if name in self._declared or not self._names.is_of_function(bound):
            return f"{name} is no variable of this function alone"
        in_loop = any(isinstance(node, _LOOPS) for node in self._around(first))
        missing: list[ast.Name] = []
        for use, later in self._names.uses(bound):
            if use in inside or (not later and self._only_binds(use)):
                continue
            if later:
                return f"{name} is used in line {use.lineno}, by what may run at another time"
            if behind is not None and (in_loop or self._order[use] >= self._order[first]):
                missing.append(use)
        if not missing or _bound_anew(name, missing, behind or ()):
            return None
        return f"{name} is used in line {missing[0].lineno}, too"

    def seen_in_part(self, first: ast.stmt, bound: Collection[str]) -> str | None:
        """Who may see names bound by some of the statements that move, but not by all, because one of them raises."""
        inner: ast.AST = first
        for node in self._around(first):
            if isinstance(node, _TRIES):
                if inner in node.body and node.handlers:
                    return f"it stands in the `try` of line {node.lineno}"
                reads = (n for each in node.finalbody for n in ast.walk(each) if isinstance(n, ast.Name))
                if inner not in node.finalbody and any(n.id in bound for n in reads):
                    return f"it stands in the `try` of line {node.lineno}"
            elif isinstance(node, ast.With) and any(self._suppresses(item.context_expr) for item in node.items):
                return f"what it raises is suppressed by the `with` of line {node.lineno}"
            inner = node
        return None

    def _suppresses(self, context: ast.expr) -> bool:
        return isinstance(context, ast.Call) and self._names.dotted(context.func) == "contextlib.suppress"

    def _only_binds(self, use: ast.Name) -> bool:
        added = isinstance(self._parents[use], ast.AugAssign)
        return isinstance(use.ctx, ast.Store) and not added

    def _around(self, statement: ast.stmt) -> Iterator[ast.AST]:
        """What a statement stands in, up to the function."""
        node: ast.AST | None = self._parents.get(statement)
        while node is not None:
            yield node
            node = self._parents.get(node)


def _bound_anew(name: str, uses: Sequence[ast.Name], behind: Sequence[ast.stmt]) -> bool:
    """Whether one of these statements binds the name, before any of the uses and on every way to them."""
    for statement in behind:
        own = set(ast.walk(statement))
        if any(use in own for use in uses):
            return False
        if isinstance(statement, ast.Assign) and name in bound_names(statement):
            return True
        if any(isinstance(node, _LEAVES_BLOCK) for node in own):
            return False
    return False


def reader_of_frames(tree: ast.Module) -> str | None:
    """What in a file may look at the names of functions that are running: a clause; None for nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _FRAMES:
            return f"{node.attr} in line {node.lineno} may read any name"
    return None


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that an assignment binds, each by itself."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node, in the order of the text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        yield from _statements(child)


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement and what stands in it, but for further statements."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))
