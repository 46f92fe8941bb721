"""Headers for some kernels: what is the same in all of them is decided, the rest is in a struct for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tree_sitter import Node

from tconv.codegen.headers.evaluate import (
    Function,
    Scope,
    Template,
    Type,
    Unknown,
    Value,
    World,
    parameters_of,
    scope_of_function,
    scope_of_struct,
)
from tconv.codegen.headers.fold import UNROLLED, Folding
from tconv.codegen.headers.syntax import STRUCTS, Text, declared_name, expression, field, walk, words

#: The template parameter of what differs among kernels, a struct of constants.
KERNEL = "Kernel"
#: Parameters that are all of a kernel.
OF_KERNEL = ("Layer", "Tile", "Program", "BlockTile", "Shape")
#: Parameters that always are the layer's own.
OF_LAYER = ("Element", "Accumulator", "Sum")
#: A parameter for types of 16 bits.
OF_HALVES = "Half16"
_FUNCTIONS = ("function_definition", "lambda_expression")
_FORMULA = re.compile(r"[\s\w()+\-*/%]+")
#: Axes, those of inputs last: the constants of one are the others' where they are the same.
_AXES = ("Width", "Height", "Depth", "WidthShifts", "HeightShifts", "DepthShifts")
_ELEMENTS = {"float", "double", "Half", "BFloat16"}
#: The methods that make the text of a type of nodes, where it is another than in other foldings.
_MADE = {
    "qualified_identifier": "_qualified",
    "type_identifier": "_type_name",
    "identifier": "_name",
    "template_type": "_template",
    "template_function": "_template",
    "dependent_type": "_dependent",
    "call_expression": "_call",
    "alias_declaration": "_alias",
    "template_declaration": "_definition",
    "sizeof_expression": "_call",
    "using_declaration": "_as_it_is",
    "comment": "_unrolling",
}

Scopes = tuple[Scope, ...]


def constant_name(owner: str, name: str) -> str:
    """``kWidthStride``."""
    return "k" + "".join(part[0].upper() + part[1:] for part in f"{owner}_{name}".split("_") if part)


@dataclass
class Constant:
    """A member of the layer, the tile or the shape that is the same in all kernels.

    Args:
        place: by which they are sorted.
        alias: another name for it that stands in its place.
        comment, behind: what is said above it and behind it.
    """

    name: str
    value: int
    place: tuple[int, int]
    text: str = ""
    alias: str = ""
    comment: str = ""
    behind: str = ""
    type: str = "int"

    @property
    def is_given(self) -> bool:
        """Whether it is a number of which nothing is said."""
        return self.text == str(self.value) and not self.comment and not self.behind


class Kernels:
    """What kernels of one family have in common.

    Args:
        worlds: the headers with the structs of each kernel.
        names: of the kernels: their structs are ``NAME_layer`` and ``NAME_tile``.
        programs: the functors of their programs, without a name where a kernel has none.
        shape: the struct of the family's constants.
    """

    def __init__(
        self,
        worlds: Sequence[World],
        names: Sequence[str],
        programs: Sequence[str],
        shape: str,
        texts: Sequence[Text],
    ) -> None:
        self.worlds, self.names, self.family = worlds, names, shape.removesuffix("Shape").lower()
        self._texts = {text.root.id: text for text in texts}
        self.scopes: Scopes = tuple(map(_bound, worlds, names, programs))
        self.constants: dict[str, Constant] = {}
        self.differing: dict[str, tuple[Value, ...]] = {}
        self.enumerated: dict[str, str] = {}  # of those that differ, the ones of an enumeration, which it is
        self.wide: set[str] = set()  # of those that differ, the ones of 64 bits
        self.functions: dict[str, str] = {}
        self._roles = self._known_roles(shape)

    def _known_roles(self, shape: str) -> dict[tuple[Type, ...], tuple[int, str]]:
        """What structs of constants are: their rank in the text, and what their members' names begin with."""
        roles: dict[tuple[Type, ...], tuple[int, str]] = {}

        def add(rank: int, role: str, of: tuple[Type, ...]) -> None:
            roles.setdefault(of, (rank, role))
            for name in _AXES:
                inner = self._members(of, name)
                if inner is not None:
                    roles.setdefault(inner, (3, name.removeprefix("Width")))
            if role == "" and rank == 1:
                for name in sorted(set(of[0].members.names if of[0].members else ())):
                    nested = self._members(of, name)
                    if nested is not None and nested[0].members is not None:
                        roles.setdefault(nested, (1, name))

        shapes = tuple(
            world.instance(shape, scope.names["Layer"], scope.names["Tile"])
            for world, scope in zip(self.worlds, self.scopes, strict=True)
        )
        for scope, shape_ in zip(self.scopes, shapes, strict=True):
            scope.names["Shape"] = shape_
        add(4, "", shapes)
        add(0, "", tuple(scope.names["Layer"] for scope in self.scopes))
        add(1, "", tuple(scope.names["Tile"] for scope in self.scopes))
        return roles

    def source(self, node: Node) -> Text:
        """The text that a node of the headers is in."""
        while node.parent is not None:
            node = node.parent
        return self._texts[node.id]

    def _members(self, of: tuple[Type, ...], name: str) -> tuple[Type, ...] | None:
        found = self.each(lambda world, type_: world.member(type_, name), of)
        return found if found is not None and all(isinstance(each, Type) for each in found) else None

    def each(self, ask: Callable[..., Any], *of: Sequence[Any]) -> tuple[Any, ...] | None:
        """What each world answers; None where one does not know."""
        try:
            return tuple(ask(world, *each) for world, *each in zip(self.worlds, *of, strict=True))
        except Unknown:
            return None

    def value(self, node: Node, scopes: Scopes | None) -> int | None:
        """Of an expression, if it is the same for all."""
        values = self.each(lambda world, scope: world.value(node, scope), scopes or self.scopes)
        return values[0] if values is not None and len(set(values)) == 1 else None

    def holds(self, condition: str) -> bool:
        """Whether an expression of constants is true for one of the kernels.

        Raises:
            Unknown: it has no value.
        """
        asked = Text(f"constexpr bool asked = {condition};").root.named_children[0]
        node = field(field(asked, "declarator"), "value")
        return any(world.value(node, scope) for world, scope in zip(self.worlds, self.scopes, strict=True))

    def enumerators(self, type_: str) -> list[str]:
        """The names of an enumeration by their values; none of another type."""
        found = self.worlds[0].scope.names.get(type_)
        return list(found.members.names) if isinstance(found, Type) and found.members is not None else []

    def differ(self, name: str, owner: str, values: tuple[Value, ...]) -> str:
        """The name by which kernels have values that differ: with its owner's, where it is another thing's already."""
        own = name if self.differing.get(name, values) == values else f"{owner}_{name}"
        if self.differing.setdefault(own, values) != values:
            raise ValueError(f"kernels differ in two things that are called {own}")
        return own

    def role(self, owners: tuple[Type, ...]) -> tuple[int, str]:
        return self._roles.get(owners, (5, ""))

    def shown_type(self, types: Sequence[Value]) -> str | None:
        """The text of a type, if it is the same for all but for the kernel."""
        texts = {self.type_text(each, number) for number, each in enumerate(types)}
        return texts.pop() if len(texts) == 1 else None

    def type_text(self, type_: Value, number: int) -> str:
        if isinstance(type_, int):
            return str(type_)
        if type_ in [self.scopes[number].names[name] for name in OF_KERNEL[:2]]:
            return KERNEL
        made: list[str] = []
        for parameter, argument in zip(self._parameters(type_.name, type_.arguments), type_.arguments, strict=False):
            if parameter in OF_KERNEL and argument == self.scopes[number].names.get(parameter):
                made += [KERNEL] * (KERNEL not in made)
            elif parameter not in OF_LAYER or not self.agreed(parameter):
                made.append(self.type_text(argument, number))
        return type_.name + (f"<{', '.join(made)}>" if made else "")

    def _parameters(self, name: str, arguments: Sequence[Any]) -> Sequence[str]:
        named = self.worlds[0].scope.names.get(name)
        if not isinstance(named, (Function, Template)) or (isinstance(named, Template) and is_constant(named.node)):
            return [""] * len(arguments)
        return [*named.parameters, *[""] * (len(arguments) - len(named.parameters))]

    def have_halves(self) -> bool:
        """Whether a kernel has elements of 16 bits."""
        return any(self.size(scope.names["Element"]) == 2 for scope in self.scopes)

    def size(self, of: Type) -> int:
        """Of a type of the language or an element, in bytes."""
        return self.worlds[0].size(of)

    def agreed(self, name: str) -> bool:
        """Whether a parameter of templates is the same for all."""
        return len({scope.names[name] for scope in self.scopes}) == 1


def _bound(world: World, name: str, program: str) -> Scope:
    """The scope in which the parameters of a kernel's templates stand for the kernel."""
    layer, tile = world.named(f"{name}_layer"), world.named(f"{name}_tile")
    assert isinstance(layer, Type) and isinstance(tile, Type)
    scope = Scope(world.scope, {"Layer": layer, "Tile": tile})
    scope.names["Program"] = world.instance(program, layer) if program else world.named("Identity")
    element = world.member(layer, "Element")
    total = world.member(world.instance("AccumulatorOf", element), "type")
    if tile.members is not None and "BlockTile" in tile.members.names:
        scope.names["BlockTile"] = world.member(tile, "BlockTile")
    scope.names.update(Element=element, Accumulator=total, Sum=total)
    return scope


def is_constant(struct: Node) -> bool:
    """Whether a struct has nothing but constants, names of types, and functions of constants."""
    body = struct.child_by_field_name("body")
    members = [each for each in (body.named_children if body else ()) if each.type != "comment"]
    kinds = ("field_declaration", "function_definition", "template_declaration")
    return (
        struct.type in STRUCTS
        and bool(members)
        and all(
            each.type not in kinds or "constexpr" in words(each).partition("(")[0].partition("=")[0] for each in members
        )
    )


class Resolving(Folding):
    """Folding of headers for `Kernels`."""

    kernels: Kernels
    keeps_conditions = False
    keeps_words = False

    def __init__(self, text: Text, kernels: Kernels) -> None:
        super().__init__(text, kernels)  # type: ignore[arg-type]
        object.__setattr__(self, "kernels", kernels)

    def _make(self, node: Node, scope: Any) -> str:
        scopes: Scopes = scope or self.kernels.scopes
        if node.type in _FUNCTIONS:
            inside = tuple(map(lambda outer: self._inside(node, outer), scopes))
            if node.type == "function_definition":
                return self._function(node, inside)
            return self._parts(node, inside)
        if node.type in STRUCTS and node.child_by_field_name("body") is not None:
            return self._struct(node, scopes)
        if node.type in _MADE:
            made: Callable[[Node, Any], str] = getattr(self, _MADE[node.type])
            return made(node, scopes)
        return super()._make(node, scopes)

    def _as_it_is(self, node: Node, scopes: Scopes) -> str:
        return self.text.of(node)

    def _inside(self, node: Node, outer: Scope) -> Scope:
        scope = scope_of_function(node, outer)
        self._hide(node, scope)
        return scope

    def _hide(self, node: Node, scope: Scope) -> None:
        around = node.parent
        if around is not None and around.type == "template_declaration":
            for name in parameters_of(around):
                if name not in OF_KERNEL and not (name in OF_LAYER and self.kernels.agreed(name)):
                    scope.names[name] = None

    def _unrolling(self, node: Node, scopes: Scopes) -> str:
        """``#pragma unroll(number)``."""
        match = UNROLLED.match(self.text.of(node))
        if match is None:
            return self.text.of(node)
        parsed, number = expression(match[1])
        return f"#pragma unroll({Resolving(parsed, self.kernels).of(number, scopes)})"

    # ---- definitions ----

    def _definition(self, node: Node, scopes: Scopes) -> str:
        """A template, which has no more parameters than differ."""
        inner = node.named_children[-1]
        at_top = node.parent is not None and node.parent.type in ("translation_unit", "preproc_ifdef", "preproc_if")
        if at_top and inner.type in STRUCTS and is_constant(inner):
            return self.text.of(node)
        if inner.type == "declaration":  # of a function, whose definitions are special
            scopes = tuple(self._inside(inner, outer) for outer in scopes)
        made = self.of(inner, scopes)
        if not made:
            return ""
        parameters = []
        for parameter, name in zip(field(node, "parameters").named_children, parameters_of(node), strict=True):
            kept = self._parameter(name, self.text.of(parameter))
            if kept and kept not in parameters:
                parameters.append(kept)
        gap = self.text.between(field(node, "parameters").end_byte, inner.start_byte)
        if not parameters_of(node) and _specializes(inner, made):
            parameters = [""]
        made += self.text.between(inner.end_byte, node.end_byte)
        return (f"template <{', '.join(parameters)}>{gap}" if parameters else "") + made

    def _parameter(self, name: str, text: str) -> str:
        if name in OF_KERNEL:
            return f"class {KERNEL}"
        return "" if name in OF_LAYER and self.kernels.agreed(name) else text

    def _function(self, node: Node, inside: Scopes) -> str:
        declarator = field(node, "declarator")
        special = next((each for each in walk(declarator) if each.type == "template_function"), None)
        if special is not None and node.parent is not None and not parameters_of(node.parent):
            return self._special(node, special, inside)
        if any(
            words(each) in self._foreign()
            for each in walk(declarator)
            if each.type in ("type_identifier", "primitive_type")
        ):
            return ""
        if self._is_replaced(node) or (self._is_of_halves(node) and not self.kernels.have_halves()):
            return ""
        return self._parts(node, inside)

    def _is_of_halves(self, node: Node) -> bool:
        """Whether a function's template is for types of 16 bits alone."""
        around = node.parent
        return around is not None and around.type == "template_declaration" and OF_HALVES in parameters_of(around)

    def _foreign(self) -> set[str]:
        """Types of elements that no kernel has."""
        own = {scope.names[name].name for scope in self.kernels.scopes for name in ("Element", "Accumulator")}
        return _ELEMENTS - own - {"float"}

    def _special(self, node: Node, special: Node, inside: Scopes) -> str:
        """What a function is for one type, if it is that of all kernels."""
        named = self.kernels.worlds[0].scope.names.get(words(field(special, "name")))
        if isinstance(named, Function) and named.parameters == ("Bytes",):
            bytes_ = self.kernels.value(field(special, "arguments").named_children[0], inside)
            least = min(self.kernels.size(scope.names["Element"]) for scope in self.kernels.scopes)
            return "" if bytes_ is not None and bytes_ < least else self._parts(node, inside)
        if not isinstance(named, Function) or named.parameters != ("Element",) or not self.kernels.agreed("Element"):
            return self._parts(node, inside)
        if words(field(special, "arguments").named_children[0]) != self.kernels.scopes[0].names["Element"].name:
            return ""
        return self._parts(node, inside).replace(self.of(special, inside), words(field(special, "name")), 1)

    def _is_replaced(self, node: Node) -> bool:
        """Whether there is another body for the type that all kernels have."""
        around = node.parent
        if around is None or around.type != "template_declaration" or parameters_of(around) != ("Element",):
            return False
        name = declared_name(field(node, "declarator"))
        if not self.kernels.agreed("Element"):
            return False
        pattern = re.compile(
            rf"template <>\s+[^;{{]*\b{name}<(?:tconv::)?{self.kernels.scopes[0].names['Element'].name}>"
        )
        return pattern.search(self.text.bytes.decode()) is not None

    def _struct(self, node: Node, scopes: Scopes) -> str:
        inside = []
        for outer in scopes:
            scope = scope_of_struct(node, outer)
            self._hide(node, scope)
            inside.append(scope)
        return self._parts(node, tuple(inside))

    def _alias(self, node: Node, scopes: Scopes) -> str:
        of = field(node, "type")
        types = self.kernels.each(lambda world, scope: world.type(of, scope), scopes)
        if types is not None and types in self.kernels._roles:
            return ""  # its constants stand for themselves; what else nothing uses goes later
        return self._parts(node, scopes)

    # ---- names ----

    def _is_declared(self, node: Node) -> bool:
        """Whether a name is declared here, not used."""
        around = node.parent
        if around is None:
            return True
        if around.type in (*STRUCTS, "enum_specifier", "alias_declaration", "enumerator", "type_parameter_declaration"):
            return around.child_by_field_name("name") == node
        if (
            around.type in ("optional_type_parameter_declaration", "parameter_declaration")
            and around.child_by_field_name("declarator") == node
        ):
            return True
        return "declarator" in around.type and around.child_by_field_name("declarator") == node

    def _type_name(self, node: Node, scopes: Scopes) -> str:
        if self._is_declared(node):
            return self.text.of(node)
        if words(node) in OF_KERNEL[:2]:
            return KERNEL
        types = self.kernels.each(lambda world, scope: world.type(node, scope), scopes)
        return self._type_shown(types, words(node), self.text.of(node))

    def _type_shown(self, types: tuple[Type, ...] | None, name: str, text: str) -> str:
        if types is None:
            return text
        if any(each.nested for each in types):
            return text
        shown = self.kernels.shown_type(types)
        if shown is not None:
            return shown
        return f"typename {KERNEL}::{self.kernels.differ(name, types[0].name, types)}"

    def _name(self, node: Node, scopes: Scopes) -> str:
        """A constant by its bare name, in a function of constants."""
        text = self.text.of(node)
        if self._is_declared(node):
            return text
        owners = self._owners(text, scopes)
        if owners is None:
            value = self.kernels.value(node, scopes)
            return text if value not in (0, 1) or node.type != "identifier" else str(value)
        return self._member(owners, text, scopes) or text

    def _literal(self, value: int, is_bool: bool) -> str:
        return ("true" if value else "false") if is_bool else str(value)

    def _qualified(self, node: Node, scopes: Scopes) -> str:
        found = self.kernels.each(lambda world, scope: world.owner(node, scope), scopes)
        if found is None:
            return self._parts(node, scopes)
        owners, name = tuple(owner for owner, _ in found), found[0][1]
        if owners[0] is not None and self.kernels.enumerators(owners[0].name):
            return self.text.of(node)
        if owners[0] is None:
            return self.text.of(node) if name.type != "template_function" else self._parts(node, scopes)
        if name.type in ("identifier", "type_identifier", "field_identifier"):
            made = self._member(owners, words(name), scopes)
            if made is not None:
                return made
        shown, of = self.kernels.shown_type(owners), field(node, "scope")
        if shown is None and of.type == "namespace_identifier" and not owners[0].nested:
            shown = f"{KERNEL}::{self.kernels.differ(words(of), owners[0].name, owners)}"
        return f"{shown}::{self.of(name, scopes)}" if shown is not None else self._parts(node, scopes)

    def _member(self, owners: tuple[Type, ...], name: str, scopes: Scopes) -> str | None:
        """A constant or a type of structs; None for what has no value."""
        values = self.kernels.each(lambda world, owner: world.member(owner, name), owners)
        if values is None:
            return None
        if isinstance(values[0], Type):
            if values[0].nested:
                return None
            return self._type_shown(values, name, name)
        rank, role = self.kernels.role(owners)
        declaration = self._declaration(owners, name)
        type_ = "" if declaration is None else words(field(declaration, "type")).rpartition("::")[2]
        is_bool, enumerators = type_ == "bool", self.kernels.enumerators(type_)
        if enumerators and len(set(values)) == 1:
            return f"{type_}::{enumerators[values[0]]}"
        if len(set(values)) > 1:
            own = "_".join(part for part in (_snake(role), name) if part)
            own = self.kernels.differ(own, _snake(owners[0].name), values)
            if enumerators:
                self.kernels.enumerated[own] = type_
            if type_ == "long long":
                self.kernels.wide.add(own)
            return f"{KERNEL}::{own}"
        if values[0] in (0, 1, -1) or is_bool:
            return self._literal(values[0], is_bool)
        return self._constant(owners, rank, role, name, values[0], declaration)

    def _declaration(self, owners: tuple[Type, ...], name: str) -> Node | None:
        """Of a constant, the declaration in its struct."""
        members = owners[0].members
        of = members.initializers.get(name) if members is not None else None
        while of is not None and of.type not in ("field_declaration", "declaration"):
            of = of.parent
        return of

    def _constant(
        self, owners: tuple[Type, ...], rank: int, role: str, name: str, value: int, declaration: Node | None
    ) -> str:
        constants = self.kernels.constants
        own = constant_name(role, name)
        if own in constants:
            if constants[own].value != value:
                return str(value)
            return constants[own].alias or own
        initializer = owners[0].members.initializers.get(name) if owners[0].members is not None else None
        entry = Constant(own, value, (rank, initializer.start_byte if initializer is not None else 0))
        constants[own] = entry
        if declaration is not None and words(field(declaration, "type")) == "long long":
            entry.type = "long long"
        entry.text = str(value)
        if initializer is not None and rank in (3, 4):
            inner = tuple(owner.members for owner in owners)
            source = self.kernels.source(initializer)
            made = Resolving(source, self.kernels).of(initializer, inner).strip()
            made = " ".join(made.split())
            if (
                _FORMULA.fullmatch(made)
                and re.search(r"\bk[A-Z]", made)
                and not re.search(r"\b[a-jl-z]|\bsizeof|[A-Za-z_]\w*\(", made)
            ):
                if re.fullmatch(r"k\w+", made):
                    entry.alias = made
                    return made
                entry.text = made
            elif re.fullmatch(r"k\w+", made):
                entry.alias = made
                return made
        if declaration is not None and rank in (3, 4):
            entry.comment, entry.behind = _comments(declaration)
        return own

    # ---- templates ----

    def _template(self, node: Node, scopes: Scopes) -> str:
        name = words(field(node, "name"))
        if node.type == "template_type":
            types = self.kernels.each(lambda world, scope: world.type(node, scope), scopes)
            if types is not None and types not in self.kernels._roles:
                shown = self.kernels.shown_type(types)
                if shown is not None:
                    return shown
        value = (
            self.kernels.value(node, scopes) if node.type != "template_function" or not name.endswith("_cast") else None
        )
        if value is not None:
            return str(value)
        arguments = self._arguments(node, name, scopes)
        return self.text.of(field(node, "name")) + (f"<{', '.join(arguments)}>" if arguments else "")

    def _arguments(self, node: Node, name: str, scopes: Scopes) -> list[str]:
        given = field(node, "arguments").named_children
        made: list[str] = []
        for parameter, argument in zip(self.kernels._parameters(name, given), given, strict=False):
            if parameter in OF_LAYER and self.kernels.agreed(parameter):
                continue
            text = KERNEL if parameter in OF_KERNEL else self.of(argument, scopes).strip()
            if text != KERNEL or KERNEL not in made:
                made.append(text)
        return made

    def _dependent(self, node: Node, scopes: Scopes) -> str:
        types = self.kernels.each(lambda world, scope: world.type(node, scope), scopes)
        if types is not None and not types[0].nested:
            name = words(node).rpartition("::")[2]
            return self._type_shown(types, name, self.text.of(node))
        return self._choice(node, scopes)

    def _is_bound(self, node: Node) -> bool:
        """Whether a sign before it would take the first part of a quotient in its place."""
        around = node.parent
        if around is None or around.type != "binary_expression" or around.children[-1] != node:
            return False
        return self.text.of(field(around, "operator")) in "*/%"

    def _call(self, node: Node, scopes: Scopes) -> str:
        value = self.kernels.value(node, scopes)
        function = node.child_by_field_name("function")
        is_cast = function is not None and function.type == "template_function" and "cast" in words(function)
        if value is not None and not is_cast:
            if function is not None and words(function) == "ceil_div":
                a, b = (self.of(each, scopes) for each in field(node, "arguments").named_children)
                b = b if re.fullmatch(r"\w+", b) else f"({b})"
                if re.search(r"\bk[A-Z]", a + b) and value > 1:
                    made = f"({a} + {b} - 1) / {b}"
                    return f"({made})" if self._is_bound(node) else made
            return str(value)
        if function is not None and function.type == "qualified_identifier":
            found = self.kernels.each(lambda world, scope: world.owner(function, scope), scopes)
            if found is not None and found[0][0] is not None:
                owners, name = tuple(owner for owner, _ in found), words(found[0][1])
                called = self._static(owners, name)
                if called is not None:
                    return called + self.of(field(node, "arguments"), scopes)
        if function is not None and function.type == "identifier":
            types = self.kernels.each(lambda world, scope: world.type(function, scope), scopes)
            if types is not None:  # a value of that type
                shown = self._type_shown(types, words(function), self.text.of(function))
                return shown + self.of(field(node, "arguments"), scopes)
            around = self._owners(words(function), scopes)
            called = None if around is None else self._static(around, words(function))
            if called is not None:
                return called + self.of(field(node, "arguments"), scopes)
        return self._parts(node, scopes)

    def _owners(self, name: str, scopes: Scopes) -> tuple[Type, ...] | None:
        """The structs of constants in which a bare name is named."""
        owners = []
        for scope in scopes:
            try:
                _, where = scope.found(name)
            except Unknown:
                return None
            found = next((of for all_of in self.kernels._roles for of in all_of if of.members is where), None)
            if found is None:
                return None
            owners.append(found)
        return tuple(owners)

    def _static(self, owners: tuple[Type, ...], name: str) -> str | None:
        """The name of a function of constants, which stands for itself now."""
        members = owners[0].members
        function = members.names.get(name) if members is not None else None
        if owners not in self.kernels._roles or not isinstance(function, Function):
            return None
        rank, role = self.kernels.role(owners)
        own = f"{_snake(role) or ('axis' if rank == 3 else self.kernels.family)}_{name}"
        if own not in self.kernels.functions:
            self.kernels.functions[own] = ""
            inner = tuple(owner.members for owner in owners)
            source = self.kernels.source(function.node)
            made = Resolving(source, self.kernels).of(function.node, inner)
            made = re.sub(r"^static ", "", made).replace(f" {name}(", f" {own}(", 1)
            above = "\n".join(line.strip() for line in _comments(function.node)[0].split("\n"))
            made = re.sub(r"\n  ", "\n", made)
            del self.kernels.functions[own]  # behind those that it calls
            self.kernels.functions[own] = f"{above}\ntemplate <class {KERNEL}>\n{made}".lstrip("\n")
        return f"{own}<{KERNEL}>"


def _specializes(inner: Node, made: str) -> bool:
    """Whether a definition is still what a template is for some arguments."""
    if inner.type in STRUCTS:
        return field(inner, "name").type == "template_type"
    return "template_function" in str(inner) and f"{declared_name(field(inner, 'declarator'))}<" in made


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _comments(node: Node) -> tuple[str, str]:
    """Above a declaration, and behind it on its line."""
    above: list[str] = []
    before = node.prev_sibling
    line = node.start_point.row
    while (
        before is not None
        and before.type == "comment"
        and before.end_point.row == line - 1
        and before.start_point.column <= node.start_point.column
    ):
        text = words(before)
        if text.startswith("// ----") or text.endswith("----"):
            break
        above.insert(0, text)
        line, before = before.start_point.row, before.prev_sibling
    behind = node.next_sibling
    while behind is not None and behind.type == ";":
        behind = behind.next_sibling
    told = (
        words(behind)
        if behind is not None and behind.type == "comment" and behind.start_point.row == node.end_point.row
        else ""
    )
    return "\n".join(above), told
