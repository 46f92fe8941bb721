"""Text that became simpler than its headers, written as simply as that: nothing here knows of kernels."""

from __future__ import annotations

import re
from typing import Any

from tree_sitter import Node

from tconv.codegen.headers.evaluate import Scope, Unknown, World, does_something, scope_of_function, scope_of_struct
from tconv.codegen.headers.fold import Folding, declared, declared_beside, leaves_round, meant_behind, moved
from tconv.codegen.headers.syntax import STRUCTS, Text, below, declared_name, field, walk, words

_FUNCTIONS = ("function_definition", "lambda_expression")
ONE_PART = (
    *("identifier", "number_literal", "qualified_identifier", "field_expression", "call_expression", "true", "false"),
    *("subscript_expression", "parenthesized_expression", "this"),
)
_BINDING = {
    **dict.fromkeys("*/%", 9),
    **dict.fromkeys("+-", 8),
    **{"<<": 7, ">>": 7, "<": 6, "<=": 6, ">": 6, ">=": 6, "==": 5, "!=": 5, "&": 4, "^": 3, "|": 2, "&&": 1, "||": 0},
}
#: Around these an expression needs no parentheses.
APART = (
    *("init_declarator", "argument_list", "return_statement", "subscript_argument_list", "initializer_list"),
    *("expression_statement", "parenthesized_expression", "assignment_expression"),
)
#: A definition that may have constants of other definitions: no function that runs in a kernel.
_CONSTANTS = re.compile(r"(?!(?:template <[^\n]*>\s+)?(?:TCONV_DEVICE|extern|//))")
_LITERAL = re.compile(r"-?\d+|true|false")


class _Known:
    """What a text says itself."""

    def __init__(self, world: World) -> None:
        self.world = world

    def value(self, node: Node, scope: Scope | None) -> int | None:
        try:
            return self.world.value(node, scope or self.world.scope)
        except Unknown:
            return None


class Simplifying(Folding):
    """Folding of a text by its own constants, its loops of one round, and its arithmetic."""

    keeps_conditions = False

    def __init__(self, text: Text) -> None:
        super().__init__(text, _Known(World([text.root])))  # type: ignore[arg-type]

    def whole(self, known: dict[tuple[str, str], str] | None = None) -> str:
        """All of the text.

        Args:
            known: what was made of definitions, by the constants beside them and their text: it grows.
        """
        known = {} if known is None else known
        parts = self.text.root.children
        constants = "".join(text for text in map(self.text.of, parts) if _CONSTANTS.match(text))
        made, at = [], 0
        for part in parts:
            key = constants, self.text.of(part)
            if key not in known:
                known[key] = self.of(part, None)
            made += [self.text.between(at, part.start_byte), known[key]]
            at = part.end_byte
        return "".join(made) + self.text.between(at, len(self.text.bytes))

    def _make(self, node: Node, scope: Any) -> str:
        scope = scope or self.constants.world.scope  # type: ignore[attr-defined]
        if node.type in _FUNCTIONS:
            return self._parts(node, _scope_with_variables(node, scope))
        if node.type in STRUCTS and node.child_by_field_name("body") is not None:
            return self._parts(node, scope_of_struct(node, scope))
        if node.type == "call_expression":
            return self._call(node, scope)
        if node.type == "for_statement":
            return self._loop(node, scope)
        if node.type == "comment":
            return "" if self._is_about_nothing(node, scope) else self.text.of(node)
        return super()._make(node, scope)

    def _call(self, node: Node, scope: Any) -> str:
        function = field(node, "function")
        if words(function) == "static_cast<long long>":
            number = self.of(field(node, "arguments").named_children[0], scope)
            around = node.parent
            if number in ("0", "1") and around is not None and around.type == "binary_expression":
                sign, other = self.text.of(field(around, "operator")), field(around, "right")
                if sign == "*" and (number == "0" or "static_cast<long long>" in words(other)):
                    return number
        if words(function) == "ceil_div" and len(field(node, "arguments").named_children) == 2:
            first, second = field(node, "arguments").named_children
            if self.of(second, scope) == "1":
                return self.of(first, scope) if first.type in ONE_PART else f"({self.of(first, scope)})"
        if words(function) == "static_cast<int>":
            inner = field(node, "arguments").named_children[0]
            made = self.of(inner, scope)
            if _LITERAL.fullmatch(made) or re.fullmatch(r"k[A-Z]\w*", made):
                return made
            if _is_int(inner):
                return made if inner.type in ONE_PART else f"({made})"
            return f"static_cast<int>({made})"
        value = None if function.type == "template_function" else self._value(node, scope)
        return self._parts(node, scope) if value is None else str(value)

    def _is_about_nothing(self, comment: Node, scope: Any) -> bool:
        loop = comment.next_sibling
        return (
            self.text.of(comment).startswith("#pragma unroll")
            and loop is not None
            and loop.type == "for_statement"
            and self._rounds(loop, scope) in (0, 1)
        )

    # ---- arithmetic ----

    def _binary(self, node: Node, scope: Any) -> str:
        made = super()._binary(node, scope)
        sign = self.text.of(field(node, "operator"))
        left, right = field(node, "left"), field(node, "right")
        first, second = self.of(left, scope), self.of(right, scope)
        if sign in ("&&", "||"):
            return made
        if all(_LITERAL.fullmatch(each) for each in (first, second)):
            value = self._value(node, scope)
            if value is not None:
                return str(value)
        if (
            (sign == "*" and "0" in (first, second))
            or (sign in "/%" and first == "0")
            or (sign == "%" and second == "1")
        ):
            return made if does_something(node) else "0"
        if second == {"*": "1", "/": "1", "+": "0", "-": "0", ">>": "0"}.get(sign):
            return first
        if (
            (sign == "%" and left.type == "binary_expression" and first == self.text.of(left))
            and self.text.of(field(left, "operator")) == "%"
            and self.text.of(field(left, "right")) == second
        ):
            return first
        if sign == "/" and first == second and re.fullmatch(r"k[A-Z]\w*", first):
            return "1"
        if sign in "+-" and left.type == "binary_expression" and first == self.text.of(left):
            other = {"+": "-", "-": "+"}[sign]
            if self.text.of(field(left, "operator")) == other and self.text.of(field(left, "right")) == second:
                return self.text.of(field(left, "left"))
        if sign == "-" and first == second and is_simple(left):
            return "0"
        return second if first == {"*": "1", "+": "0"}.get(sign) else made

    def _parenthesized(self, node: Node, scope: Any) -> str:
        made = super()._parenthesized(node, scope)
        inner, around = node.named_children[0], node.parent
        if (
            around is None
            or not made.startswith("(")
            # Of two pairs each round takes one, the inner: without both, what stands around would bind the parts.
            or inner.type in ("comma_expression", "parenthesized_expression")
            or around.type == "sizeof_expression"
        ):
            return made
        bare = made[1:-1].strip()
        if around.type in APART or inner.type in ONE_PART:
            return bare
        if around.type == "binary_expression" and inner.type == "binary_expression" and made == self.text.of(node):
            own, outer = (_BINDING.get(self.text.of(field(each, "operator")), -1) for each in (inner, around))
            if (
                own > outer > 6
                or (own == outer > 6 and field(around, "left") == node)
                or (own > 4 and outer in (0, 1))
                or (own > 6 >= outer > 4)
            ):
                return bare
        return made

    # ---- loops ----

    def _rounds(self, loop: Node, scope: Any) -> int | None:
        """How many rounds a loop over a number has, if that is known: 0, 1, or 2 for more."""
        first, condition, update = (loop.child_by_field_name(n) for n in ("initializer", "condition", "update"))
        if first is None or condition is None or update is None or first.type != "declaration":
            return None
        declarators = first.children_by_field_name("declarator")
        start = declarators[0].child_by_field_name("value") if len(declarators) == 1 else None
        name = declared_name(declarators[0])
        if start is None or condition.type != "binary_expression" or words(field(condition, "left")) != name:
            return None
        if update.type not in ("update_expression", "assignment_expression"):
            return None
        if words(field(condition, "operator")) == ">=" and words(update) == f"--{name}":
            first_value, last_value = self._value(start, scope), self._value(field(condition, "right"), scope)
            known = first_value is not None and last_value is not None
            return min(2, max(0, first_value - last_value + 1)) if known else None  # type: ignore[operator]
        if words(field(condition, "operator")) != "<":
            return None
        begin, end = self._value(start, scope), self._value(field(condition, "right"), scope)
        step = 1 if words(update) == f"++{name}" else None
        if update.type == "assignment_expression" and words(update).startswith(f"{name} +="):
            step = self._value(field(update, "right"), scope)
        if begin is None or end is None or step is None or step < 1:
            return None
        return min(2, max(0, -(-(end - begin) // step)))

    def _turn(self, loop: Node, scope: Any) -> str | None:
        """For a loop of one round, what its variable is."""
        if self._rounds(loop, scope) != 1 or leaves_round(field(loop, "body")):
            return None
        (declarator,) = field(loop, "initializer").children_by_field_name("declarator")
        name = declared_name(declarator)
        body = words(field(loop, "body"))
        if re.search(rf"(?:\+\+|--)\s*{name}\b|\b{name}\s*(?:[-+*/%^]?=(?!=)|\+\+|--)", body):
            return None
        return self.of(field(declarator, "value"), scope)

    def _loop(self, node: Node, scope: Any) -> str:
        if self._rounds(node, scope) == 0:
            return ""
        turn = self._turn(node, scope)
        if turn is None:
            return super()._loop(node, scope)
        before = [self.of(each, scope) for each in node.named_children if each.type == "comment"]
        before = [f"{each}\n" for each in before if each]
        return self._with(node, turn, "".join(before) + self.of(field(node, "body"), scope))

    def _with(self, loop: Node, turn: str, text: str) -> str:
        (declarator,) = field(loop, "initializer").children_by_field_name("declarator")
        return re.sub(rf"(?<![.\w:])(?<!->){declared_name(declarator)}\b", turn, text)

    def _statement(self, node: Node, remains: Node, gap: str, scope: Any, names: set[str]) -> str:
        if remains is node and node.type == "for_statement":
            turn = self._turn(node, scope)
            if turn is not None:
                made = super()._statement(node, field(node, "body"), gap, scope, names)
                before = [self.of(each, scope) for each in node.named_children if each.type == "comment"]
                before = [f"\n{each}" for each in before if each and made.strip()]
                return self._with(node, turn, "".join(before) + made)
        if remains is node and node.type == "compound_statement":
            own = set(declared(node))
            if not own & (names | declared_beside(node) | meant_behind(node)):
                names |= own
                return moved(self._items(node, scope, names), 2)
        return super()._statement(node, remains, gap, scope, names)


def _is_int(node: Node) -> bool:
    """Whether an expression is made of numbers that the function around it declares as int."""
    function = node
    while function.parent is not None and function.type != "function_definition":
        function = function.parent
    kinds = ("identifier", "number_literal", "binary_expression", "parenthesized_expression")
    names = set()
    for each in walk(node):
        if each.is_named and each.type not in kinds:
            return False
        if each.type == "identifier" and not re.match(r"k[A-Z]", words(each)):
            names.add(words(each))
    types: dict[str, set[str]] = {}
    for each in below(function, "declaration", "parameter_declaration"):
        for declarator in each.children_by_field_name("declarator"):
            plain = declarator.type == "identifier" or (
                declarator.type == "init_declarator" and field(declarator, "declarator").type == "identifier"
            )
            of = words(field(each, "type")) if plain else "another"
            types.setdefault(declared_name(declarator), set()).add(of)
    return all(types.get(name) == {"int"} for name in names)


def _scope_with_variables(function: Node, outer: Scope) -> Scope:
    return scope_of_function(function, outer)


def is_simple(node: Node) -> bool:
    """Whether an argument may stand in several places."""
    if node.type == "field_expression":
        return is_simple(field(node, "argument"))
    return node.type in ("identifier", "number_literal", "true", "false", "this", "qualified_identifier")
