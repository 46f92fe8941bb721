"""The values of constant expressions in a kernel's headers, from the kernel's layer and tile."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tree_sitter import Node

from tconv.codegen.headers.syntax import STRUCTS, Text, declared_name, enumerators, field, walk, words
from tconv.kernels.source import ROUNDING, member_type
from tconv.planner import FAMILIES, Kernel
from tconv.planner.numbers import ceil_div
from tconv.planner.shifts import Uncropped, halo, shift_count
from tconv.problem import Axis

_AXES = ("Depth", "Height", "Width")
_OF_AXES = ("kernel", "stride", "dilation", "taps_per_phase", "tap_period", "shift_period")


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _quotient},
    **{"%": lambda a, b: a - _quotient(a, b) * b, "==": operator.eq, "!=": operator.ne},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "ceil_div": ceil_div,
    "greatest_common_divisor": math.gcd,
    "largest_divisor": lambda value, limit: next(n for n in range(limit, 0, -1) if value % n == 0),
    "is_power_of_two": lambda value: int(value > 0 and value & (value - 1) == 0),
    "power_of_two_from": lambda value: 1 << (value - 1).bit_length(),
}


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: in a struct or in a function.

    Args:
        constants: what is named as a constant there, with what it is computed by.
        others: what else is named there, and hides constants further out.
        outer: the scope around it.
    """

    constants: Mapping[str, Node]
    others: frozenset[str]
    outer: Scope | None

    def found(self, name: str) -> tuple[Node | None, Scope]:
        """What a name stands for, None if for no constant, and where it is named."""
        if name in self.constants:
            return self.constants[name], self
        if name in self.others or self.outer is None:
            return None, self
        return self.outer.found(name)


class Constants:
    """What the compiler knows when it compiles any of some kernels of one family.

    A value that is not the same for all of them, or that this module cannot work out, is None.

    Args:
        texts: of the family's headers.
    """

    def __init__(self, family: str, kernels: Sequence[Kernel[Any]], texts: Sequence[Text]) -> None:
        structs = {
            declared_name(field(node, "name")): node
            for text in texts
            for node in walk(text.root)
            if node.type in STRUCTS and node.child_by_field_name("body") is not None
        }
        enumerated = {
            f"{declared_name(field(node, 'name'))}::{name}": number
            for text in texts
            for node in walk(text.root)
            if node.type == "enum_specifier"
            for name, number in enumerators(node).items()
        }
        name = FAMILIES[family].shape.__name__
        self._kernels = [
            _OfKernel(name, structs[name], _known_of(kernel, enumerated)) for kernel in dict.fromkeys(kernels)
        ]

    def value(self, node: Node, scope: Scope | None) -> int | None:
        """Of an expression."""
        values = {kernel.value(node, scope) for kernel in self._kernels}
        return values.pop() if len(values) == 1 else None

    def shape(self) -> dict[str, int]:
        """Of the shape, all that are known."""
        names = self._kernels[0].of_shape.constants
        known = {name: {kernel.named(f"Shape::{name}") for kernel in self._kernels} for name in names}
        agreed = {name: values.pop() for name, values in known.items() if len(values) == 1}
        return {name: value for name, value in agreed.items() if value is not None}


def _known_of(kernel: Kernel[Any], enumerated: Mapping[str, int]) -> dict[str, int]:
    """What a kernel's layer and tile say, by its names in the headers; sizes of types by ``sizeof type``.

    Args:
        enumerated: the enumerators of the family's headers, ``WgmmaKind::uniform``.
    """
    layer, tile = kernel.layer, kernel.tile
    own = [_moved(axis, tile, name) for axis, name in zip(layer.axes, ("depth_", "row_", ""), strict=True)]
    names: dict[str, int] = {
        "Layer::spatial_dims": layer.spatial_dims,
        "Layer::groups": layer.groups,
        "Layer::group_in_channels": layer.in_channels_per_group,
        "Layer::group_out_channels": layer.out_channels_per_group,
        "Layer::has_bias": layer.bias,
        "Layer::has_program": int(bool(layer.epilogue)),
        **{f"Rounding::{name}": number for number, name in enumerate(("none", *ROUNDING.values()))},
        **enumerated,
    }
    names["Layer::rounding"] = names[f"Rounding::{ROUNDING.get(layer.precision, 'none')}"]
    for name, axis in zip(_AXES, own, strict=True):
        of_axis = {f"{name}::{of}": getattr(axis, of) for of in _OF_AXES}
        of_axis.update({f"{name}::{of}": value for of, value in Uncropped.of(axis)._asdict().items()})
        step = axis.dilation if axis.stride == 1 else 1
        highest = axis.shift_of(axis.kernel - 1)
        shifts = {"count": shift_count(axis), "halo": halo(axis), "step": step}
        shifts.update(highest=highest, lowest=highest - halo(axis))
        of_axis.update({f"{name}Shifts::{of}": value for of, value in shifts.items()})
        names.update(of_axis)
    names.update({f"Layer::{name}": names[name] for name in names if name.startswith(_AXES)})
    names.update(_members("Tile", tile))
    sizes = {"Element": layer.item_bytes, "Sum": max(4, layer.item_bytes), "Accumulator": max(4, layer.item_bytes)}
    return names | {f"sizeof {name}": size for name, size in sizes.items()}


def _moved(axis: Axis, tile: Any, name: str) -> Axis:
    """An axis of the shape, whose positions begin at an origin."""
    block_tile = getattr(tile, "block_tile", tile)
    return axis._replace(padding=axis.padding - getattr(block_tile, f"{name}origin", 0))


class _OfKernel:
    """The constants of one kernel.

    Args:
        name, shape: the struct of the family's constants.
        known: names with their values.
    """

    def __init__(self, name: str, shape: Node, known: Mapping[str, int]) -> None:
        self.of_shape = scope_of_struct(shape, None)
        self._prefixes = (f"{name}<Layer,Tile>::", "Shape::")
        self._known: dict[str, int | None] = {**known, "sizeof float": 4, "sizeof unsigned": 4, "sizeof longlong": 8}

    def named(self, name: str) -> int | None:
        """What a qualified name stands for."""
        for prefix in self._prefixes:
            name = name[len(prefix) :] if name.startswith(prefix) else name
        if name not in self._known:
            self._known[name] = None  # while it is worked out
            if name in self.of_shape.constants:
                self._known[name] = self.value(self.of_shape.constants[name], self.of_shape)
        return self._known[name]

    def value(self, node: Node, scope: Scope | None) -> int | None:
        """Of an expression; None where it is not known."""
        kind, text = node.type, words(node)
        if kind == "number_literal":
            return int(text) if text.isdecimal() else None
        if kind in ("true", "false"):
            return int(kind == "true")
        if kind == "parenthesized_expression":
            return self.value(node.named_children[0], scope)
        if kind == "identifier" and scope is not None:
            constant, named_in = scope.found(text)
            return None if constant is None else self.value(constant, named_in)
        if kind in ("qualified_identifier", "type_descriptor", "dependent_type"):
            name = "".join(text.replace("typename ", "").split())
            return self.named(name) if "::" in name else None
        if kind == "unary_expression":
            of = self.value(field(node, "argument"), scope)
            sign = words(field(node, "operator"))
            return None if of is None else int(not of) if sign == "!" else -of if sign == "-" else None
        if kind == "binary_expression":
            return self._binary(node, scope)
        if kind == "conditional_expression":
            condition = self.value(field(node, "condition"), scope)
            if condition is None:
                return None
            return self.value(field(node, "consequence" if condition else "alternative"), scope)
        if kind == "sizeof_expression":
            return self._known.get("sizeof " + "".join(text[len("sizeof") :].split()).strip("()"))
        return self._called(node, scope) if kind == "call_expression" else None

    def _binary(self, node: Node, scope: Scope | None) -> int | None:
        sign = words(field(node, "operator"))
        left, right = (self.value(field(node, side), scope) for side in ("left", "right"))
        if sign in ("&&", "||"):
            decides = sign == "||"
            if left is not None and bool(left) == decides:
                return int(decides)
            if right is not None and bool(right) == decides and not _does_something(field(node, "left")):
                return int(decides)
            return None if left is None or right is None else int(not decides)
        if left is None or right is None or sign not in _OPERATORS or (sign in "/%" and right == 0):
            return None
        return int(_OPERATORS[sign](left, right))

    def _called(self, node: Node, scope: Scope | None) -> int | None:
        function = words(field(node, "function"))
        values = [self.value(argument, scope) for argument in field(node, "arguments").named_children]
        if None in values:
            return None
        if function.startswith("static_cast<"):
            return values[0]
        return int(_FUNCTIONS[function](*values)) if function in _FUNCTIONS else None


def _does_something(node: Node) -> bool:
    """Whether an expression does more than to have a value: functions that are no members have values alone."""
    kinds = ("update_expression", "assignment_expression")
    return any(each.type in kinds or (each.type == "call_expression" and _is_member(each)) for each in walk(node))


def _is_member(call: Node) -> bool:
    return field(call, "function").type == "field_expression"


def _members(prefix: str, tile: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in vars(tile).items():
        if isinstance(value, int):
            found[f"{prefix}::{name}"] = value
        elif hasattr(value, "__dict__"):
            found.update(_members(f"{prefix}::{member_type(name)}", value))
    return found


def scope_of_struct(struct: Node, outer: Scope | None) -> Scope:
    """What a struct names: its constants, and its other members."""
    constants: dict[str, Node] = {}
    others: set[str] = set()
    for member in field(struct, "body").named_children:
        if member.type == "field_declaration":
            initializers = dict(zip(_fields(member, "declarator"), _fields(member, "default_value"), strict=False))
            is_constant = "constexpr" in words(member).partition("=")[0]
            for declarator in member.children_by_field_name("declarator"):
                name = declared_name(declarator)
                if is_constant and declarator in initializers:
                    constants[name] = initializers[declarator]
                else:
                    others.add(name)
        elif member.type == "template_declaration":
            others.update(declared_name(d) for d in member.named_children[-1].children_by_field_name("declarator"))
    return Scope(constants, frozenset(others), outer)


def _fields(node: Node, name: str) -> list[Node]:
    return node.children_by_field_name(name)


def scope_of_function(function: Node, outer: Scope | None) -> Scope:
    """What a function or a lambda names, anywhere in it: constants, and all else, which hides constants around it."""
    constants: dict[str, Node] = {}
    others: set[str] = set()
    for node in walk(function):
        if node.type in ("parameter_declaration", "optional_parameter_declaration", "for_range_loop"):
            declarator = node.child_by_field_name("declarator")
            if declarator is not None:
                others.add(declared_name(declarator))
        elif node.type == "declaration":
            specifiers = {words(child) for child in node.children}
            # Of what is worked out when a kernel runs, answers alone: other numbers change the order of instructions.
            is_constant = "constexpr" in specifiers or {"const", "bool"} <= specifiers
            for declarator in node.children_by_field_name("declarator"):
                name = declared_name(declarator)
                value = declarator.child_by_field_name("value")
                if is_constant and value is not None and name not in constants and name not in others:
                    constants[name] = value
                else:
                    others.add(name)
                    constants.pop(name, None)
    around = function.parent
    if around is not None and around.type == "template_declaration":
        others.update(_parameter(parameter) for parameter in field(around, "parameters").named_children)
    return Scope(constants, frozenset(others), outer)


def _parameter(parameter: Node) -> str:
    """The name of a template's parameter."""
    found = parameter.child_by_field_name("declarator") or parameter.child_by_field_name("name")
    return declared_name(found) if found is not None else words(parameter.named_children[-1])
