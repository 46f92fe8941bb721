"""Which expressions of a model file the pointwise language has: calls and operators on a layer's result."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from typing import TypeGuard

from tconv.codegen.names import Names
from tconv.pointwise.calls import known_calls
from tconv.sandbox.epilogues import LAYER, POINTWISE, Place, place_of

#: What each call was seen to call, by where it stands.
Calls = Mapping[Place, Collection[str]]
#: Methods that give a view.
VIEWS = frozenset({"detach", "expand", "flatten", "permute", "reshape", "squeeze", "transpose", "unsqueeze", "view"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_COMPARISONS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)
_FUNCTION_MODULES = ("torch", "torch.nn.functional", "torch.special")
#: Functions of numbers.
_OF_NUMBERS = frozenset({"float", "int", "math.sqrt", "math.exp", "math.log"})
_TENSOR = "torch.tensor"


class Language:
    """The language in one file.

    In its questions `region` has the names that hold values of the language, and `hole` is the call of the layer.

    Args:
        calls: what the file's calls were seen to call.
        parents: of each node of its tree.
    """

    def __init__(self, names: Names, calls: Calls, parents: Mapping[ast.AST, ast.AST]) -> None:
        self._names, self._calls, self._parents = names, calls, parents
        self._known = known_calls()

    def is_layer(self, node: ast.expr) -> TypeGuard[ast.Call]:
        """Whether it calls a transposed convolution, each time."""
        return isinstance(node, ast.Call) and set(self._calls.get(place_of(node), ())) == {LAYER}

    def is_value(self, node: ast.expr, region: frozenset[str], hole: ast.Call | None) -> bool:
        """Whether an expression is one of the language, of a layer's result: `hole`, or what names of `region` hold."""
        if node is hole or (isinstance(node, ast.Name) and node.id in region):
            return True
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self.is_value(node.operand, region, hole)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow):
                return self.is_value(node.left, region, hole) and self.is_operand(node.right, region)
            return isinstance(node.op, _OPERATORS) and self._are_values([node.left, node.right], region, hole)
        if isinstance(node, ast.Compare):
            compares = len(node.ops) == 1 and isinstance(node.ops[0], _COMPARISONS)
            return compares and self._are_values([node.left, *node.comparators], region, hole)
        if not isinstance(node, ast.Call):
            return False
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        dotted = self._names.dotted(node.func)
        if dotted is not None:
            module, _, name = dotted.rpartition(".")
            known = module in _FUNCTION_MODULES and self._is_known(name)
            return known and self._are_values(arguments, region, hole)
        if isinstance(node.func, ast.Attribute) and self.is_value(node.func.value, region, hole):
            return self._is_known(node.func.attr) and self._are_values([node.func.value, *arguments], region, hole)
        if not self.is_module(node):
            return False
        return len(node.args) == 1 and not node.keywords and self.is_value(node.args[0], region, hole)

    def _is_known(self, name: str) -> bool:
        return name.removesuffix("_") in self._known

    def is_module(self, node: ast.Call) -> bool:
        """Whether it calls modules of which the language has what they compute."""
        seen = set(self._calls.get(place_of(node), ()))
        return bool(seen) and seen <= POINTWISE.keys() and self.is_still(node.func, frozenset())

    def _are_values(self, nodes: Sequence[ast.expr], region: frozenset[str], hole: ast.Call | None) -> bool:
        """Whether at least one is, and the others stand beside it."""
        of = [self.is_value(node, region, hole) for node in nodes]
        return any(of) and all(is_one or self.is_operand(node, region) for is_one, node in zip(of, nodes, strict=True))

    def is_operand(self, node: ast.expr, region: frozenset[str]) -> bool:
        """Whether an expression needs no computation, or makes a tensor of a number that needs none.

        That is no tensor while the epilogue is noted: nothing may be done with it.
        """
        if isinstance(node, ast.Call) and self._names.dotted(node.func) == _TENSOR:
            plain = len(node.args) == 1 and all(each.arg in ("dtype", "device") for each in node.keywords)
            parts = [*node.args, *(each.value for each in node.keywords)]
            several = any(isinstance(part, ast.List | ast.Tuple) for part in parts)
            return plain and not several and all(self.is_still(part, region) for part in parts)
        return self.is_still(node, region)

    def is_still(self, node: ast.AST, region: frozenset[str]) -> bool:
        """Whether to evaluate an expression, more than once, changes nothing and takes no time."""
        parts: Sequence[ast.AST]
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id not in region
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in region:
                return node.attr in ("device", "dtype")
            return self.is_still(node.value, region)
        if isinstance(node, ast.Subscript):
            parts = [node.value, node.slice]
        elif isinstance(node, ast.Slice):
            parts = [part for part in (node.lower, node.upper, node.step) if part is not None]
        elif isinstance(node, ast.Tuple | ast.List):
            parts = node.elts
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            called = self._names.dotted(node.func) or (node.func.id if isinstance(node.func, ast.Name) else None)
            if called not in _OF_NUMBERS:
                if not (isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS):
                    return False
                parts = [node.func.value, *parts]
        else:
            return False
        return all(self.is_still(part, region) for part in parts)

    def largest(self, inner: ast.expr, region: frozenset[str], hole: ast.Call | None) -> ast.expr:
        """The largest expression of the language around `inner`."""
        found = inner
        while isinstance(parent := self._parents[found], ast.expr | ast.keyword):
            around = self._parents[parent] if isinstance(parent, ast.keyword) else parent
            # The function of a method's call stands between the two.
            if isinstance(around, ast.Attribute) and isinstance(self._parents[around], ast.Call):
                around = self._parents[around]
            if not (isinstance(around, ast.expr) and self.is_value(around, region, hole)):
                break
            found = around
        return found

    def draws(self, call: ast.Call) -> bool:
        """Whether a call may draw random numbers."""
        names = {
            self._names.dotted(call.func) or "",
            getattr(call.func, "attr", ""),
            *self._calls.get(place_of(call), ()),
        }
        return any("dropout" in name.lower() for name in names)
