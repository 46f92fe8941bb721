"""Calls behind a layer, as `sandbox/notes.py` has them, as a function of PyTorch's in a written file."""

from __future__ import annotations

import ast
import re
import textwrap

import torch
from torch import nn

from tconv.pointwise.calls import ACTIVATIONS, ALSO_CALLED
from tconv.pointwise.program import KINDS

_OPERAND = re.compile(rf"(?:{'|'.join(KINDS)})(\d+)")
_LONGEST = 120
#: With both arguments in this order, or the other way round.
_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "pow": "**"},
    **{"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="},
}
_REVERSED = {"radd": "+", "rsub": "-", "rmul": "*", "rtruediv": "/", "rdiv": "/"}


def spelled(calls: str, name: str) -> str:
    """The definition of a function of that name, of the layer's result and the operands of the calls, in their order.

    It changes nothing in place.
    """
    operands = sorted(set(_OPERAND.findall(calls)), key=int)
    names = {match[1]: match[0] for match in _OPERAND.finditer(calls)}
    *lines, last = ast.parse(calls).body
    assert isinstance(last, ast.Expr)
    body = []
    for line in lines:
        assert isinstance(line, ast.Assign)
        text = f"    {ast.unparse(line.targets[0])} = {_text(line.value)}"
        if len(text) > _LONGEST:
            before, _, arguments = text.partition("(")
            wrapped = textwrap.fill(arguments[:-1], _LONGEST - 8, break_long_words=False, break_on_hyphens=False)
            text = f"{before}(\n{textwrap.indent(wrapped, ' ' * 8)}\n    )"
        body.append(text + "\n")
    parameters = ", ".join(["y", *(names[number] for number in operands)])
    return f"def {name}({parameters}):\n{''.join(body)}    return {_text(last.value)}\n"


def _text(tree: ast.expr) -> str:
    if isinstance(tree, ast.Name) and tree.id in ("inf", "nan"):
        return f'float("{tree.id}")'
    if isinstance(tree, ast.UnaryOp):  # of a number
        return f"-{_text(tree.operand)}"
    if not isinstance(tree, ast.Call):
        return ast.unparse(tree).replace("'", '"')
    assert isinstance(tree.func, ast.Name)
    name, arguments = tree.func.id, [_text(argument) for argument in tree.args]
    if name == "tensor":
        return f"y.new_tensor({arguments[0]})"
    if name in ACTIVATIONS and isinstance(tree.args[-1], ast.Constant) and isinstance(tree.args[-1].value, bool):
        arguments.pop()  # whether it may be in place
    options = [f"{each.arg}={_text(each.value)}" for each in tree.keywords if each.arg != "inplace"]
    if not options and len(arguments) == 2 and (name in _INFIX or name in _REVERSED):
        one, other = arguments if name in _INFIX else arguments[::-1]
        return f"{one} {_INFIX.get(name) or _REVERSED[name]} {other}"
    return f"{_function(name)}({', '.join([*arguments, *options])})"


def _function(name: str) -> str:
    if hasattr(torch, name) and hasattr(torch.Tensor, name):  # of some of these the other module's is deprecated
        return f"torch.{name}"
    for words, module in (("nn.functional", nn.functional), ("torch", torch), ("torch.Tensor", torch.Tensor)):
        if hasattr(module, name):
            return f"{words}.{name}"
    return _function(ALSO_CALLED[name])
