"""What the names in a Python source stand for: which of them mean something of torch, which one is `Model`.

Static and conservative, by Python's scoping rules: a name stands for ``torch.nn.ConvTranspose2d`` only where the one
binding of it in its scope says so, or all are the same import. ``F = nn.functional`` says so, too.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Scope:
    """One namespace of a source: the module, a class body, a function, a comprehension.

    Args:
        runs_later: not where it stands, or not only there: a function, a generator expression.
    """

    def __init__(self, parent: Scope | None, is_class: bool = False, runs_later: bool = False) -> None:
        self.parent = parent
        self.is_class = is_class
        self.runs_later = runs_later
        #: Per name, what its bindings import (``"torch.nn"``), or the name or attribute that they assign; else None.
        self.origins: dict[str, set[str | ast.expr | None]] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()

    @property
    def module(self) -> Scope:
        return self if self.parent is None else self.parent.module

    def owner(self, name: str) -> Scope | None:
        """The scope whose binding `name` means when used here; None for builtins and unknown names."""
        if name in self.globals:
            return self.module if name in self.module.origins else None
        if name in self.origins and name not in self.nonlocals:
            return self
        scope = self.parent
        while scope is not None and (scope.is_class or name not in scope.origins):
            scope = scope.parent
        return scope


class Names(ast.NodeVisitor):
    """The scopes of `tree`, and for every name in it the scope in which it is used.

    Args:
        starred: the dotted paths that a star import may be taken to bind, where nothing else binds the name.
    """

    def __init__(self, tree: ast.Module, starred: Collection[str] = ()) -> None:
        self.module = Scope(None)
        self.starred = starred
        self.stars: list[str] = []
        self._scope = self.module
        self._used_in: dict[ast.Name, Scope] = {}
        self._classes: list[tuple[ast.ClassDef, Scope]] = []
        self._resolving: set[ast.expr] = set()
        self.visit(tree)

    def dotted(self, node: ast.expr) -> str | None:
        """The dotted path that `node` is known to stand for (``"torch.nn.ConvTranspose2d"``), else None."""
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return self._origin(node) if isinstance(node, ast.Name) else None

    def uses(self, node: ast.Name) -> Iterator[tuple[ast.Name, bool]]:
        """Every use of the variable that a name stands for, and whether it is one in what runs later."""
        owner = self._used_in[node].owner(node.id)
        for other, scope in self._used_in.items():
            if other.id == node.id and scope.owner(node.id) is owner:
                inner: Scope | None = scope
                while inner is not None and inner is not owner and not inner.runs_later:
                    inner = inner.parent
                yield other, inner is not owner

    def is_of_function(self, node: ast.Name) -> bool:
        """Whether a name stands for a variable of the very function in which it is used."""
        owner = self._used_in[node].owner(node.id)
        return owner is not None and owner.runs_later and owner is self._used_in[node]

    def is_builtin(self, node: ast.Name) -> bool:
        """Whether a name is one of Python's own, and bound nowhere."""
        return self._used_in[node].owner(node.id) is None and hasattr(builtins, node.id)

    def module_names(self, name: str) -> Iterator[ast.Name]:
        """Every use of the module's own `name`, whether it is read or bound."""
        for node, scope in self._used_in.items():
            if node.id == name and scope.owner(name) is self.module:
                yield node

    def module_classes(self, name: str) -> list[ast.ClassDef]:
        """The ``class`` statements that bind the module's own `name`."""
        return [node for node, scope in self._classes if node.name == name and scope is self.module]

    def module_origins(self) -> dict[str, str | None]:
        """Every name that the module binds, and the dotted path where imports alone bind it and agree."""
        only = {name: next(iter(found)) if len(found) == 1 else None for name, found in self.module.origins.items()}
        return {name: found if isinstance(found, str) else None for name, found in only.items()}

    def builtins(self) -> set[str]:
        """The names that are used and bound nowhere."""
        return {node.id for node, scope in self._used_in.items() if scope.owner(node.id) is None}

    def _origin(self, node: ast.Name) -> str | None:
        owner = self._used_in[node].owner(node.id)
        if owner is not None:
            origins = owner.origins[node.id]
            only = next(iter(origins)) if len(origins) == 1 else None
            return self._assigned(only) if isinstance(only, ast.expr) else only
        # Of several star imports any could bind the name; torch's do not disagree about what is `starred`.
        paths = [f"{star}.{node.id}" for star in self.stars if star.split(".")[0] == "torch"]
        return next((path for path in paths if path in self.starred), None) if len(paths) == len(self.stars) else None

    def _assigned(self, value: ast.expr) -> str | None:
        if value in self._resolving:  # ``a = b`` and ``b = a``
            return None
        self._resolving.add(value)
        try:
            return self.dotted(value)
        finally:
            self._resolving.remove(value)

    # ---- bindings

    def _bind(self, name: str, origin: str | ast.expr | None = None) -> None:
        scope = self._scope.module if name in self._scope.globals else self._scope
        scope.origins.setdefault(name, set()).add(origin)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self._bind(alias.asname, alias.name)
            else:
                top = alias.name.split(".")[0]
                self._bind(top, top)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = None if node.level else node.module
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(source or ".")
            else:
                self._bind(alias.asname or alias.name, source and f"{source}.{alias.name}")

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.globals.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._scope.nonlocals.update(node.names)

    def visit_Name(self, node: ast.Name) -> None:
        self._used_in[node] = self._scope
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Name | ast.Attribute):
                self._used_in[target] = self._scope
                self._bind(target.id, node.value)
            else:
                self.visit(target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        inner = self._scope
        while isinstance(self._scope, _ComprehensionScope) and self._scope.parent is not None:
            self._scope = self._scope.parent
        self.visit(node.target)
        self._scope = inner

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self._bind(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._bind(node.rest)
        self.generic_visit(node)

    # ---- scopes

    def visit_FunctionDef(self, node: Function) -> None:
        self._bind(node.name)
        arguments = node.args
        self._visit_all([*node.decorator_list, *arguments.defaults, *arguments.kw_defaults])
        self._visit_all([*_annotations(arguments), node.returns])
        with _Inside(self, Scope(self._scope, runs_later=True)):
            self._bind_arguments(arguments)
            self._visit_all([*getattr(node, "type_params", []), *node.body])

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        with _Inside(self, Scope(self._scope, runs_later=True)):
            self._bind_arguments(node.args)
            self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name)
        self._classes.append((node, self._scope))
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        with _Inside(self, Scope(self._scope, is_class=True)):
            self._visit_all([*getattr(node, "type_params", []), *node.body])

    def _visit_comprehension(self, node: Comprehension) -> None:
        first = node.generators[0]
        self.visit(first.iter)
        with _Inside(self, _ComprehensionScope(self._scope, runs_later=isinstance(node, ast.GeneratorExp))):
            self._visit_all([first.target, *first.ifs, *node.generators[1:]])
            self._visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _bind_arguments(self, arguments: ast.arguments) -> None:
        for argument in _all_arguments(arguments):
            self._bind(argument.arg)

    def _visit_all(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)


class _ComprehensionScope(Scope):
    pass


class _Inside:
    """Makes `scope` the current one inside a ``with`` statement."""

    def __init__(self, names: Names, scope: Scope) -> None:
        self._names, self._inner, self._outer = names, scope, names._scope

    def __enter__(self) -> None:
        self._names._scope = self._inner

    def __exit__(self, *unused: object) -> None:
        self._names._scope = self._outer


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    single = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *single]


def _annotations(arguments: ast.arguments) -> list[ast.expr | None]:
    return [argument.annotation for argument in _all_arguments(arguments)]
