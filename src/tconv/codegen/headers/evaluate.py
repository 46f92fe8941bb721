"""What a compiler works out of a kernel's headers: the values of constant expressions, and types."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tree_sitter import Node

from tconv.codegen.headers.syntax import STRUCTS, below, declared_name, enumerators, walk, words
from tconv.codegen.headers.syntax import field as child

_NUMBER = re.compile(r"(0x[0-9a-fA-F]+|\d+)(?:[uU]|[lL])*")
#: Bytes of the types of the language.
_SIZES = {"char": 1, "bool": 1, "short": 2, "int": 4, "unsigned": 4, "float": 4, "double": 8, "long long": 8}
_NAMESPACE = "tconv"
#: What declares one name of a function, beside its declarations.
_DECLARED = ("parameter_declaration", "optional_parameter_declaration", "for_range_loop")


def _quotient(a: int, b: int) -> int:
    if b == 0:
        raise Unknown
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _quotient, "<<": operator.lshift},
    **{"%": lambda a, b: a - _quotient(a, b) * b, "==": operator.eq, "!=": operator.ne, ">>": operator.rshift},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "&": operator.and_},
    **{"|": operator.or_, "^": operator.xor},
}
_MOST_ROUNDS = 100_000


class Unknown(Exception):
    """A value that is not known when a kernel is compiled."""


@dataclass(frozen=True)
class Type:
    """A type: of the language, or a struct with the arguments of its template."""

    name: str
    arguments: tuple[Value, ...] = ()
    members: Scope | None = field(default=None, compare=False, repr=False)
    #: It is a member of another struct.
    nested: bool = False

    def member(self, name: str) -> Found:
        if self.members is None or name not in self.members.names:
            raise Unknown
        return self.members.names[name], self.members


Value = int | Type


@dataclass(frozen=True)
class Function:
    """A function whose values may be asked for."""

    parameters: tuple[str, ...]
    node: Node


@dataclass(frozen=True)
class Template:
    """A struct, or a name for a type, with its parameters, and what it is for special arguments."""

    node: Node
    parameters: tuple[str, ...] = ()
    special: list[tuple[Sequence[Node], Template]] = field(default_factory=list, compare=False)


#: What a name stands for: a value, the expression or type that gives it, or None where that is not known.
Named = int | Type | Node | Function | Template | None


@dataclass(eq=False)
class Scope:
    """What is named in a struct or a function, and the scope around it."""

    outer: Scope | None
    names: dict[str, Any] = field(default_factory=dict)
    #: The expressions of constants, also of those whose values are known by now.
    initializers: dict[str, Node] = field(default_factory=dict)

    def found(self, name: str) -> Found:
        """What a name stands for, and where it is named."""
        if name in self.names:
            return self.names[name], self
        if self.outer is None:
            raise Unknown
        return self.outer.found(name)


Found = tuple[Named, Scope]


def scope_of_texts(roots: Iterable[Node]) -> Scope:
    """What texts define at their top."""
    scope = Scope(None)
    for root in roots:
        _define(root.children, scope)
    return scope


def _define(nodes: Iterable[Node], scope: Scope) -> None:
    for node in nodes:
        if node.type.startswith("preproc_if"):
            _define(node.children, scope)
        elif node.type == "template_declaration":
            _define_template(node.named_children[-1], parameters_of(node), scope)
        elif node.type in (*STRUCTS, "function_definition", "alias_declaration"):
            _define_template(node, (), scope)
        elif node.type == "declaration":
            define_variables(node, scope)
        elif node.type == "enum_specifier":
            name = words(child(node, "name"))
            scope.names[name] = Type(name, (), Scope(None, dict(enumerators(node))))


def parameters_of(template: Node) -> tuple[str, ...]:
    """The names of a template's parameters; nothing for one without a name."""
    return tuple(map(_parameter, child(template, "parameters").named_children))


def _parameter(parameter: Node) -> str:
    found = parameter.child_by_field_name("declarator") or parameter.child_by_field_name("name")
    if found is not None:
        return declared_name(found)
    last = parameter.named_children[-1] if parameter.named_children else None
    return words(last) if last is not None and last.type == "type_identifier" else ""


def _define_template(node: Node, parameters: tuple[str, ...], scope: Scope) -> None:
    declared = node.child_by_field_name("declarator")
    if node.type == "function_definition" or (declared is not None and declared.type == "function_declarator"):
        name = declared_name(child(node, "declarator"))
        if name and name not in scope.names:
            scope.names[name] = Function(parameters, node)
    elif node.type == "alias_declaration":
        name = words(child(node, "name"))
        scope.names[name] = Template(child(node, "type"), parameters) if parameters else child(node, "type")
    elif node.type in ("declaration", "field_declaration"):  # a variable of a template
        variable = child(node, "declarator")
        value = variable.child_by_field_name("value") or node.child_by_field_name("default_value")
        scope.names[declared_name(variable)] = None if value is None else Template(value, parameters)
    elif node.child_by_field_name("body") is not None:
        name_node = node.child_by_field_name("name")
        if name_node is None:
            return
        if name_node.type == "template_type":
            general = scope.names.get(words(child(name_node, "name")))
            if isinstance(general, Template):
                patterns = child(name_node, "arguments").named_children
                general.special.append((patterns, Template(node, parameters)))
        else:
            scope.names[words(name_node)] = Template(node, parameters)


def define_variables(declaration: Node, scope: Scope) -> None:
    """Constants by what they are computed by, all else as not known."""
    specifiers = {words(each) for each in declaration.children}
    # Of what is worked out when a kernel runs, answers alone: other numbers change the order of instructions.
    constant = "constexpr" in specifiers or {"const", "bool"} <= specifiers
    for declarator in declaration.children_by_field_name("declarator"):
        name, value = declared_name(declarator), declarator.child_by_field_name("value")
        known = constant and value is not None and declarator.type == "init_declarator"
        scope.names[name] = None if name in scope.names or not known else value


def scope_of_struct(struct: Node, outer: Scope) -> Scope:
    """What a struct names."""
    scope = Scope(outer)
    for member in child(struct, "body").named_children:
        if member.type == "field_declaration":
            nested = member.child_by_field_name("type")
            if nested is not None and nested.type in STRUCTS:
                _define([nested], scope)
            values = dict(
                zip(*(member.children_by_field_name(n) for n in ("declarator", "default_value")), strict=False)
            )
            constant = "constexpr" in words(member).partition("=")[0]
            for declarator in member.children_by_field_name("declarator"):
                scope.names[declared_name(declarator)] = values.get(declarator) if constant else None
        else:
            _define([member], scope)
    scope.initializers.update({name: named for name, named in scope.names.items() if isinstance(named, Node)})
    return scope


def scope_of_function(function: Node, outer: Scope) -> Scope:
    """What a function or a lambda names, anywhere in it."""
    scope = Scope(outer)
    for node in below(function, *_DECLARED, "declaration", "alias_declaration"):
        if node.type in _DECLARED:
            declarator = node.child_by_field_name("declarator")
            if declarator is not None:
                scope.names[declared_name(declarator)] = None
        elif node.type == "declaration":
            define_variables(node, scope)
        else:
            scope.names[words(child(node, "name"))] = child(node, "type")
    return scope


class World:
    """The headers of a kernel, and its layer and tile."""

    def __init__(self, roots: Iterable[Node]) -> None:
        self.scope = scope_of_texts(roots)
        self._instances: dict[tuple[str, tuple[Value, ...]], Type] = {}

    def named(self, name: str) -> Value:
        """What a name stands for at the top."""
        return self._named(self.scope.names[name], self.scope, name)

    def instance(self, name: str, *arguments: Value) -> Type:
        """A struct template of the top with arguments."""
        template = self.scope.names[name]
        assert isinstance(template, Template)
        found = self._instance(name, template, arguments, self.scope)
        assert isinstance(found, Type)
        return found

    def member(self, owner: Type, name: str) -> Value:
        return self._named(*owner.member(name), name)

    def value(self, node: Node, scope: Scope) -> int:
        found = self.evaluate(node, scope)
        if not isinstance(found, int):
            raise Unknown
        return int(found)

    def type(self, node: Node, scope: Scope) -> Type:
        found = self.evaluate(node, scope)
        if not isinstance(found, Type):
            raise Unknown
        return found

    def evaluate(self, node: Node, scope: Scope) -> Value:
        """Of an expression or a type."""
        evaluate = getattr(self, f"_{node.type}", None)
        if evaluate is None:
            raise Unknown
        value: Value = evaluate(node, scope)
        return value

    def owner(self, node: Node, scope: Scope) -> tuple[Type | None, Node]:
        """The type before the last two colons of a qualified name, and the name behind them."""
        owner: Type | None = None
        while node.type == "qualified_identifier":
            of = node.child_by_field_name("scope")
            if of is not None and words(of) != _NAMESPACE:
                if owner is None:
                    owner = self.type(of, scope)
                else:
                    if owner.members is None:
                        raise Unknown
                    owner = self.type(of, Scope(None, {words(of): self.member(owner, words(of))}))
            node = child(node, "name")
        return owner, node

    # ---- names ----

    def _named(self, named: Named, scope: Scope, name: str = "") -> Value:
        if isinstance(named, Node):
            return self.evaluate(named, scope)
        if isinstance(named, Template) and not named.parameters:
            return self._instance(name, named, (), scope)
        if named is None or isinstance(named, (Function, Template)):
            raise Unknown
        return named

    def _identifier(self, node: Node, scope: Scope) -> Value:
        named, where = scope.found(words(node))
        value = self._named(named, where, words(node))
        if isinstance(named, (Node, Template)):
            where.names[words(node)] = value
        return value

    _type_identifier = _namespace_identifier = _identifier

    def _qualified_identifier(self, node: Node, scope: Scope) -> Value:
        owner, name = self.owner(node, scope)
        if owner is None:
            return self.evaluate(name, scope)
        if owner.members is None or words(name) not in owner.members.names:
            raise Unknown
        return self.evaluate(name, owner.members)

    def _dependent_type(self, node: Node, scope: Scope) -> Value:
        return self.evaluate(node.named_children[0], scope)

    _parenthesized_expression = _dependent_type

    def _type_descriptor(self, node: Node, scope: Scope) -> Value:
        if len(node.named_children) != 1:
            raise Unknown
        return self.evaluate(node.named_children[0], scope)

    def _primitive_type(self, node: Node, scope: Scope) -> Value:
        return Type(words(node))

    def _sized_type_specifier(self, node: Node, scope: Scope) -> Value:
        return Type(" ".join(words(node).split()))

    def _template_type(self, node: Node, scope: Scope) -> Value:
        name = words(child(node, "name"))
        template, where = scope.found(name)
        if not isinstance(template, Template):
            raise Unknown
        given = child(node, "arguments").named_children
        return self._instance(name, template, tuple(self.evaluate(each, scope) for each in given), where)

    _template_function = _template_type

    def _instance(self, name: str, template: Template, arguments: tuple[Value, ...], where: Scope) -> Value:
        bound = Scope(where, dict(zip(template.parameters, arguments, strict=False)))
        if template.node.type not in STRUCTS:  # another name, or a variable
            return self.evaluate(template.node, bound)
        key = (name, arguments)
        if key not in self._instances or where.outer is not None:
            for patterns, special in template.special:
                matched = self._matched(patterns, special, arguments, where)
                if matched is not None:
                    template, bound = special, matched
                    break
            self._instances[key] = Type(
                name, arguments, scope_of_struct(template.node, bound), nested=where is not self.scope
            )
        return self._instances[key]

    def _matched(
        self, patterns: Sequence[Node], special: Template, arguments: tuple[Value, ...], where: Scope
    ) -> Scope | None:
        bound = Scope(where)
        for pattern, argument in zip(patterns, arguments, strict=True):
            if words(pattern) in special.parameters:
                bound.names[words(pattern)] = argument
            elif self.evaluate(pattern, where) != argument:
                return None
        return bound

    # ---- expressions ----

    def _number_literal(self, node: Node, scope: Scope) -> Value:
        match = _NUMBER.fullmatch(words(node))
        if match is None:
            raise Unknown
        return int(match[1], 0)

    def _true(self, node: Node, scope: Scope) -> Value:
        return 1

    def _false(self, node: Node, scope: Scope) -> Value:
        return 0

    def _unary_expression(self, node: Node, scope: Scope) -> Value:
        value = self.value(child(node, "argument"), scope)
        sign = words(child(node, "operator"))
        if sign not in "!-+":
            raise Unknown
        return int(not value) if sign == "!" else -value if sign == "-" else value

    def _binary_expression(self, node: Node, scope: Scope) -> Value:
        sign, left, right = words(child(node, "operator")), child(node, "left"), child(node, "right")
        if sign in ("&&", "||"):
            return self._both_or_one(left, right, sign == "||", scope)
        if sign not in _OPERATORS:
            raise Unknown
        return int(_OPERATORS[sign](self.value(left, scope), self.value(right, scope)))

    def _both_or_one(self, left: Node, right: Node, decides: bool, scope: Scope) -> int:
        try:
            first: int | None = self.value(left, scope)
        except Unknown:
            first = None
        if first is not None and bool(first) == decides:
            return int(decides)
        if first is None and does_something(left):
            raise Unknown
        second = self.value(right, scope)
        if bool(second) != decides and first is None:
            raise Unknown
        return int(bool(second) if bool(second) == decides else not decides)

    def _conditional_expression(self, node: Node, scope: Scope) -> Value:
        condition = self.value(child(node, "condition"), scope)
        return self.evaluate(child(node, "consequence" if condition else "alternative"), scope)

    def _sizeof_expression(self, node: Node, scope: Scope) -> Value:
        of = node.child_by_field_name("type") or node.child_by_field_name("value")
        if of is None:
            raise Unknown
        return self.size(self.type(of.named_children[0] if of.type == "parenthesized_expression" else of, scope))

    def size(self, of: Type) -> int:
        if of.name in _SIZES:
            return _SIZES[of.name]
        if of.name in ("Half", "BFloat16"):
            return 2
        raise Unknown

    def _call_expression(self, node: Node, scope: Scope) -> Value:
        function = child(node, "function")
        arguments = [self.value(each, scope) for each in child(node, "arguments").named_children]
        if function.type == "template_function" and words(child(function, "name")) == "static_cast":
            return arguments[0]
        owner, name = self.owner(function, scope)
        if name.type == "template_function":
            name = child(name, "name")
        named, where = scope.found(words(name)) if owner is None else owner.member(words(name))
        if not isinstance(named, Function) or "constexpr" not in words(named.node).partition("(")[0]:
            raise Unknown
        return self.call(named.node, arguments, where)

    # ---- functions ----

    def call(self, function: Node, arguments: Sequence[int], where: Scope) -> int:
        """What a constant function returns."""
        parameters = child(child(function, "declarator"), "parameters").named_children
        names = [declared_name(each.child_by_field_name("declarator") or each) for each in parameters]
        scope = Scope(where, dict(zip(names, arguments, strict=False)))
        returned = self._run(child(function, "body"), scope)
        if returned is None:
            raise Unknown
        return returned

    def _run(self, node: Node, scope: Scope) -> int | None:
        """Runs a statement: what it returns, if it does."""
        if node.type == "compound_statement":
            for statement in node.named_children:
                returned = self._run(statement, scope)
                if returned is not None:
                    return returned
        elif node.type == "return_statement":
            return self.value(node.named_children[0], scope)
        elif node.type == "if_statement":
            taken = self.value(child(child(node, "condition"), "value"), scope)
            part = child(node, "consequence") if taken else node.child_by_field_name("alternative")
            if part is not None:
                return self._run(part.named_children[-1] if part.type == "else_clause" else part, scope)
        elif node.type in ("while_statement", "for_statement"):
            return self._run_loop(node, scope)
        elif node.type == "declaration":
            for declarator in node.children_by_field_name("declarator"):
                value = declarator.child_by_field_name("value")
                scope.names[declared_name(declarator)] = None if value is None else self.value(value, scope)
        elif node.type == "expression_statement":
            self._do(node.named_children[0], scope)
        elif node.type not in ("comment", "alias_declaration"):
            raise Unknown
        return None

    def _run_loop(self, node: Node, scope: Scope) -> int | None:
        first = node.child_by_field_name("initializer")
        if first is not None:
            self._run(first, scope)
        condition, update = child(node, "condition"), node.child_by_field_name("update")
        condition = child(condition, "value") if condition.type == "condition_clause" else condition
        for _ in range(_MOST_ROUNDS):
            if not self.value(condition, scope):
                return None
            returned = self._run(child(node, "body"), scope)
            if returned is not None:
                return returned
            if update is not None:
                self._do(update, scope)
        raise Unknown

    def _do(self, node: Node, scope: Scope) -> None:
        if node.type == "comma_expression":
            self._do(child(node, "left"), scope)
            self._do(child(node, "right"), scope)
        elif node.type == "update_expression":
            name = words(child(node, "argument"))
            scope.names[name] = self.value(child(node, "argument"), scope) + (1 if "++" in words(node) else -1)
        elif node.type == "assignment_expression":
            sign, name = words(child(node, "operator"))[:-1], words(child(node, "left"))
            value = self.value(child(node, "right"), scope)
            if sign:
                value = int(_OPERATORS[sign](self.value(child(node, "left"), scope), value))
            scope.names[name] = value
        else:
            raise Unknown


def does_something(node: Node) -> bool:
    """Whether an expression does more than to have a value: functions that are no members have values alone."""
    kinds = ("update_expression", "assignment_expression")
    return any(
        each.type in kinds or (each.type == "call_expression" and child(each, "function").type == "field_expression")
        for each in walk(node)
    )
