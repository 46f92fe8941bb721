"""Text that became simpler than its headers, written as simply as that: nothing here knows of kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tree_sitter import Node

from tconv.codegen.headers.evaluate import Scope, Unknown, World, does_something, scope_of_function, scope_of_struct
from tconv.codegen.headers.fold import Folding, declared, leaves_round, moved
from tconv.codegen.headers.syntax import STRUCTS, Text, declared_name, field, walk, words
from tconv.codegen.headers.syntax import parsed as parsed_text

Edit = tuple[int, int, str]
_FUNCTIONS = ("function_definition", "lambda_expression")
_ONE_PART = (
    *("identifier", "number_literal", "qualified_identifier", "field_expression", "call_expression", "true", "false"),
    *("subscript_expression", "parenthesized_expression", "this"),
)
_BINDING = {
    **dict.fromkeys("*/%", 9),
    **dict.fromkeys("+-", 8),
    **{"<<": 7, ">>": 7, "<": 6, "<=": 6, ">": 6, ">=": 6, "==": 5, "!=": 5, "&": 4, "^": 3, "|": 2, "&&": 1, "||": 0},
}
#: Around these an expression needs no parentheses.
_APART = (
    *("init_declarator", "argument_list", "return_statement", "subscript_argument_list", "initializer_list"),
    *("expression_statement", "parenthesized_expression", "assignment_expression"),
)
#: Of a function that is written in place of its call; longer ones read better on their own.
_MOST_LINES = 40
#: Of variables: ``Type name(argument)`` is a declaration of a function to the grammar, and the argument a type.
_NAMES = ("identifier", "type_identifier")
#: A definition that may have constants of other definitions: no function that runs in a kernel.
_CONSTANTS = re.compile(r"(?!(?:template <[^\n]*>\s+)?(?:TCONV_DEVICE|extern|//))")
_LITERAL = re.compile(r"-?\d+|true|false")


def edited(text: str, edits: Iterable[Edit]) -> str:
    """`text` with these made, but for what lies within others or beside them."""
    made, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if start >= at:
            made += [text[at:start], new]
            at = end
    return "".join(made) + text[at:]


# ---- what constants decide -------------------------------------------------------------------------------------------


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
                return self.of(first, scope) if first.type in _ONE_PART else f"({self.of(first, scope)})"
        if words(function) == "static_cast<int>":
            inner = field(node, "arguments").named_children[0]
            made = self.of(inner, scope)
            if _LITERAL.fullmatch(made) or re.fullmatch(r"k[A-Z]\w*", made):
                return made
            if _is_int(inner):
                return made if inner.type in _ONE_PART else f"({made})"
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
        if sign == "-" and first == second and _simple(left):
            return "0"
        return second if first == {"*": "1", "+": "0"}.get(sign) else made

    def _parenthesized(self, node: Node, scope: Any) -> str:
        made = super()._parenthesized(node, scope)
        inner, around = node.named_children[0], node.parent
        if (
            around is None
            or not made.startswith("(")
            or inner.type == "comma_expression"
            or around.type == "sizeof_expression"
        ):
            return made
        bare = made[1:-1].strip()
        if around.type in _APART or inner.type in _ONE_PART:
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
            if not own & (names | _declared_beside(node)):
                names |= own
                return moved(self._items(node, scope, names), 2)
        return super()._statement(node, remains, gap, scope, names)


def _declared_beside(block: Node) -> set[str]:
    """What the function around a block declares elsewhere, outside of it."""
    function = block
    while function.parent is not None and function.type != "function_definition":
        function = function.parent
    kinds = ("declaration", "parameter_declaration")
    return {
        declared_name(declarator)
        for node in walk(function, lambda node: node != block)
        if node.type in kinds
        for declarator in node.children_by_field_name("declarator")
    }


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
    for each in walk(function):
        if each.type in ("declaration", "parameter_declaration"):
            for declarator in each.children_by_field_name("declarator"):
                plain = declarator.type == "identifier" or (
                    declarator.type == "init_declarator" and field(declarator, "declarator").type == "identifier"
                )
                of = words(field(each, "type")) if plain else "another"
                types.setdefault(declared_name(declarator), set()).add(of)
    return all(types.get(name) == {"int"} for name in names)


def _scope_with_variables(function: Node, outer: Scope) -> Scope:
    return scope_of_function(function, outer)


# ---- names that stand for others -------------------------------------------------------------------------------------


def without_other_names(text: str, settled: set[str] | None = None) -> str:
    """`text` without constants of functions that are literals, or other names for variables that do not change.

    Args:
        settled: the texts of functions that have none: it grows.
    """
    parsed = parsed_text(text)
    settled = set() if settled is None else settled
    edits: list[Edit] = []
    for function in parsed.all("function_definition"):
        own = parsed.of(function)
        if own not in settled:
            renamed = list(_renamed(parsed, function))
            edits += renamed
            if not renamed:
                settled.add(own)
    return edited(text, edits)


def _renamed(parsed: Text, function: Node) -> Iterator[Edit]:
    counts: dict[str, int] = {}
    values: dict[str, str] = {}
    types: dict[str, str] = {}
    constants: set[str] = set()
    body = function.child_by_field_name("body")
    for node in walk(function):
        if node.type in ("parameter_declaration", "optional_parameter_declaration", "declaration", "for_range_loop"):
            constant = any(words(child) in ("const", "constexpr") for child in node.children)
            for declarator in node.children_by_field_name("declarator"):
                name = declared_name(declarator)
                counts[name] = counts.get(name, 0) + 1
                types[name] = words(field(node, "type"))
                value = declarator.child_by_field_name("value")
                plain = declarator.type == "init_declarator" and field(declarator, "declarator").type == "identifier"
                pointer = declarator.type == "init_declarator" and words(field(declarator, "declarator")).startswith(
                    "* const"
                )
                if constant or pointer:
                    constants.add(name)
                if node.type == "declaration" and ((plain and constant) or pointer) and value is not None:
                    values[name] = parsed.of(value).strip()
    if body is None:
        return
    changed = {name for name in counts if name not in constants and _changes(words(body), name)}
    known = {
        name: value
        for name, value in values.items()
        if counts[name] == 1 and _is_other_name(value, counts, changed, name) and _is_as_wide(types, name, value)
    }
    # One at a time: a value may be another one that goes.
    known = {name: value for name, value in known.items() if not any(_root(value) == other for other in known)}
    for node in walk(body):
        if _is_variable(node) and words(node) in known and not _declares(node):
            yield node.start_byte, node.end_byte, known[words(node)]


def _is_as_wide(types: dict[str, str], name: str, value: str) -> bool:
    """Whether what a name stands for has its type: a wider one would change what is computed of it."""
    if value in types:
        return types[name] in (types[value], "auto") or types[value] == "auto"
    return types[name] in ("int", "bool", "unsigned", "auto")


def _root(value: str) -> str:
    return re.split(r"\.|->", value)[0]


def _is_other_name(value: str, counts: dict[str, int], changed: set[str], name: str) -> bool:
    if _LITERAL.fullmatch(value):
        return True
    if re.fullmatch(r"k[A-Z]\w*", value):
        return True
    if re.fullmatch(r"[a-z]\w*", value):
        return counts.get(value) == 1 and value not in changed
    return False


def _changes(body: str, name: str) -> bool:
    """Whether a variable may change: it is assigned, or its address or a reference to it is taken."""
    return re.search(rf"(?:\+\+|--|&)\s*{name}\b|\b{name}\s*(?:\+\+|--|[-+*/%^|&]?=(?!=))|\[&\]", body) is not None


def _is_variable(node: Node) -> bool:
    """Whether a name may be that of a variable, and not of a member."""
    around = node.parent
    return node.type in _NAMES and (around is None or around.type != "qualified_identifier")


def _declares(node: Node) -> bool:
    around = node.parent
    return around is not None and "declarator" in around.type and around.child_by_field_name("declarator") == node


# ---- functions -------------------------------------------------------------------------------------------------------


class _Function:
    """A definition of a function in a text."""

    def __init__(self, parsed: Text, node: Node) -> None:
        self.node = node
        declarator = field(node, "declarator")
        while declarator.type != "function_declarator":
            declarator = next(c for c in declarator.named_children if "declarator" in c.type)
        self.name = declared_name(declarator)
        listed = field(declarator, "parameters").named_children
        self.parameters = [each for each in listed if "parameter" in each.type]
        self.names = [declared_name(each.child_by_field_name("declarator") or each) for each in self.parameters]
        self.body = field(node, "body")
        around = node.parent
        self.templated = around is not None and around.type == "template_declaration"
        self.whole = around if self.templated and around is not None else node
        outer = self.whole.parent
        self.struct = outer.parent if outer is not None and outer.type == "field_declaration_list" else None
        head = parsed.between(node.start_byte, declarator.start_byte)
        self.is_kernel = "__global__" in parsed.between(self.whole.start_byte, self.body.start_byte) or "extern" in head
        self.is_constant = "TCONV_CONSTANT" in head
        self.returns = " ".join(head.replace("TCONV_DEVICE", "").replace("static", "").split())


def _functions(parsed: Text) -> dict[str, list[_Function]]:
    found: dict[str, list[_Function]] = {}
    for node in parsed.all("function_definition"):
        if node.child_by_field_name("body") is not None:
            if field(node, "declarator").type == "operator_cast" or "operator" in words(field(node, "declarator")):
                continue
            function = _Function(parsed, node)
            found.setdefault(function.name, []).append(function)
    return found


def _calls(parsed: Text) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in parsed.all("call_expression"):
        name = _called(field(node, "function"))
        if name:
            found.setdefault(name, []).append(node)
    return found


def _called(function: Node) -> str:
    if function.type == "field_expression":
        function = field(function, "field")
    if function.type in ("template_function", "template_method"):
        function = field(function, "name")
    if function.type == "dependent_name":
        return _called(function.named_children[0])
    return words(function) if function.type in ("identifier", "field_identifier") else ""


def _simple(node: Node) -> bool:
    """Whether an argument may stand in several places."""
    if node.type == "field_expression":
        return _simple(field(node, "argument"))
    return node.type in ("identifier", "number_literal", "true", "false", "this", "qualified_identifier")


def with_expressions(text: str, kept: frozenset[str]) -> str:
    """`text` with functions that return one expression written out, where they are called once or say no more."""
    parsed = parsed_text(text)
    functions, calls = _functions(parsed), _calls(parsed)
    edits: list[Edit] = []
    for name, definitions in functions.items():
        if len(definitions) != 1 or name in kept or definitions[0].is_kernel or name not in calls:
            continue
        function = definitions[0]
        expression = _returned(function)
        if expression is None or any(_called(n) == name for n in walk(function.body) if n.type == "identifier"):
            continue
        if function.templated and _template_names(function) & _words_of(function.whole):
            continue
        leaves = [n for n in walk(expression) if not n.named_children and n.is_named]
        trivial = len(leaves) <= (3 if expression.type == "binary_expression" else 2) or (
            expression.type == "call_expression" and len(leaves) <= 3 and not function.is_constant
        )
        if not trivial and (len(calls[name]) > 1 or _word_count(text, name) > 2):
            continue
        for call in calls[name]:
            made = _expression(parsed, function, expression, call)
            if made is not None:
                edits.append((call.start_byte, call.end_byte, made))
    return edited(text, edits)


def _word_count(text: str, name: str) -> int:
    return _word_counts(text)[name]


@lru_cache(maxsize=2)
def _word_counts(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", re.sub(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"(?!\s*\{)", "", text)))


def _template_names(function: _Function) -> set[str]:
    return set(map(_template_name, field(function.whole, "parameters").named_children))


def _template_name(parameter: Node) -> str:
    of = parameter.child_by_field_name("declarator") or parameter.child_by_field_name("name")
    return declared_name(of or parameter.named_children[-1]) if parameter.named_children else ""


def _words_of(node: Node) -> set[str]:
    body = field(node.named_children[-1], "body") if node.type == "template_declaration" else field(node, "body")
    return set(re.findall(r"\w+", words(body)))


def _returned(function: _Function) -> Node | None:
    statements = [each for each in function.body.named_children if each.type != "comment"]
    if len(statements) != 1 or statements[0].type != "return_statement" or not statements[0].named_children:
        return None
    value = statements[0].named_children[0]
    return None if value.type in ("initializer_list", "lambda_expression") else value


def _expression(parsed: Text, function: _Function, expression: Node, call: Node) -> str | None:
    arguments = list(field(call, "arguments").named_children)
    for parameter in function.parameters[len(arguments) :]:
        default = parameter.child_by_field_name("default_value")
        if default is not None:
            arguments.append(default)
    if len(arguments) != len(function.names):
        return None
    called = field(call, "function")
    owner = ""
    if called.type == "field_expression":
        owner = parsed.between(called.start_byte, field(called, "argument").end_byte)
        owner += "->" if "->" in words(called)[len(owner) :] else "."
    members = _members(function) if function.struct is not None else set()
    uses = {name: 0 for name in function.names}
    pieces: list[Edit] = []
    for node in walk(expression):
        if not _is_variable(node):
            continue
        name = words(node)
        if name in uses:
            uses[name] += 1
            argument = arguments[function.names.index(name)]
            given = parsed.of(argument)
            around = node.parent
            if argument.type not in _ONE_PART and not (
                around is not None and around.type in _APART and node != expression
            ):
                given = f"({given})"
            pieces.append((node.start_byte, node.end_byte, given))
        elif name in members and owner:
            pieces.append((node.start_byte, node.end_byte, owner + name))
        elif name in members and function.struct is not None and not _within(call, function.struct):
            return None
    for name, count in uses.items():
        given_for = arguments[function.names.index(name)] if name else None
        if given_for is not None and (
            (count > 1 and not _simple(given_for)) or (count != 1 and does_something(given_for))
        ):
            return None
    offset = expression.start_byte
    made = edited(parsed.of(expression), [(start - offset, end - offset, new) for start, end, new in pieces])
    whole = expression.type in _ONE_PART and not made.startswith("-")
    return made if whole or (call.parent is not None and call.parent.type in _APART) else f"({made})"


def _within(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte < outer.end_byte


def _members(function: _Function) -> set[str]:
    found: set[str] = set()
    assert function.struct is not None
    for member in field(function.struct, "body").named_children:
        inner = member.named_children[-1] if member.type == "template_declaration" else member
        found.update(declared_name(each) for each in inner.children_by_field_name("declarator"))
    return found


def with_bodies(text: str, kept: frozenset[str]) -> str:
    """`text` with the body of a function that is called once, as a statement, in place of the call."""
    parsed = parsed_text(text)
    functions, calls = _functions(parsed), _calls(parsed)
    for name, definitions in functions.items():
        if len(definitions) != 1 or len(calls.get(name, ())) != 1 or name in kept:
            continue
        function, call = definitions[0], calls[name][0]
        if (
            function.is_kernel
            or (function.is_constant and "TCONV_CONSTANT" not in _head_around(call))
            or function.struct is not None
            or _word_count(text, name) != 2
            or _within(call, function.node)
        ):
            continue
        if function.templated and (_template_names(function) - {"Kernel"} or not _is_of_kernel(call)):
            continue
        if _lines(function.body) > _MOST_LINES and not _is_all(call):
            continue
        made = _body(parsed, function, call)
        if made is not None:
            start, end = _extent(text, function.whole)
            return edited(text, [made, (start, end, "")])
    return text


def _head_around(node: Node) -> str:
    """What stands before the body of the function around a node, as it is understood."""
    function = _function_around(node)
    if function is None:
        return ""
    return "TCONV_CONSTANT" if "constexpr" in words(function).partition("(")[0] else ""


def _is_of_kernel(call: Node) -> bool:
    """Whether a template is called for the kernel that its caller is for."""
    return words(field(call, "function")).endswith("<Kernel>")


def _lines(node: Node) -> int:
    return node.end_point.row - node.start_point.row - 1


def _is_all(call: Node) -> bool:
    """Whether a function does nothing but to call another."""
    block = call.parent.parent if call.parent is not None else None
    return block is not None and block.type == "compound_statement" and len(block.named_children) == 1


def _extent(text: str, node: Node) -> tuple[int, int]:
    """Of a definition with the comment above it."""
    start = text.rfind("\n", 0, node.start_byte) + 1
    while start > 0:
        before = text.rfind("\n", 0, start - 1) + 1
        if not text[before:start].startswith("//"):
            break
        start = before
    end = text.find("\n", node.end_byte)
    return start, len(text) if end < 0 else end + 1


def _body(parsed: Text, function: _Function, call: Node) -> Edit | None:
    """What takes the place of the statement of a call; None where it cannot."""
    text = parsed.bytes.decode()
    statement, value = _statement_of(function, call)
    if statement is None or statement.parent is None:
        return None
    given = _given(parsed, function, call)
    if given is None:
        return None
    lines, pieces = given
    start = function.body.start_byte + 1
    last = value.parent if value is not None else None
    end = function.body.end_byte - 1 if last is None else last.start_byte
    inner = _with_pieces(parsed, start, end, pieces)
    caller = statement
    while caller.parent is not None and caller.type != "function_definition":
        caller = caller.parent
    own = set(declared(function.body)) | {declared_name_in(line) for line in lines}
    apart = bool(own & _declared_anywhere(caller)) or statement.parent.type != "compound_statement"
    if apart and value is not None:
        return None
    # Of what is said of the function, the first paragraph: others are about its parameters.
    comment = text[_extent(text, function.whole)[0] : function.whole.start_byte].partition("\n//\n")[0].strip()
    made = "".join(f"  {line}\n" for line in comment.splitlines()) + "".join(lines) + inner.strip("\n").rstrip()
    column = statement.start_point.column
    made = _indented(made, column - 2 + (2 if apart else 0)).strip("\n").rstrip()
    if apart:
        made = f"{{\n{made}\n{' ' * column}}}"
    if value is not None:
        made += "\n" + " " * column + parsed.between(statement.start_byte, call.start_byte)
        made += _with_pieces(parsed, value.start_byte, value.end_byte, pieces)
        made += parsed.between(call.end_byte, statement.end_byte)
    return statement.start_byte, statement.end_byte, made.lstrip()


def _statement_of(function: _Function, call: Node) -> tuple[Node | None, Node | None]:
    """The statement that is nothing but a call, or a variable that is made by one: then also what is returned."""
    returns = [
        node
        for node in walk(function.body, lambda node: node.type != "lambda_expression")
        if node.type == "return_statement"
    ]
    statement = call.parent
    if statement is None:
        return None, None
    if statement.type == "init_declarator":
        statement, last = statement.parent, function.body.named_children[-1]
        if statement is not None and words(statement).startswith("constexpr"):
            return None, None
        alone = statement is not None and len(statement.children_by_field_name("declarator")) == 1
        if not alone or len(returns) != 1 or last != returns[0] or last.named_children[0].type == "initializer_list":
            return None, None
        return statement, last.named_children[0]
    return (statement if statement.type == "expression_statement" and not returns else None), None


def _given(parsed: Text, function: _Function, call: Node) -> tuple[list[str], list[Edit]] | None:
    """Declarations of parameters that stay variables, and what takes the place of the others."""
    arguments, body = field(call, "arguments").named_children, function.body
    words_given = set(re.findall(r"\w+", " ".join(map(parsed.of, arguments))))
    if len(arguments) != len(function.names) or words_given & _declared_anywhere(body):
        return None
    lines: list[str] = []
    pieces: list[Edit] = []
    for parameter, name, argument in zip(function.parameters, function.names, arguments, strict=True):
        if not name:
            continue
        uses = [node for node in walk(body) if _is_variable(node) and words(node) == name]
        text, given = parsed.of(parameter), parsed.of(argument)
        by_reference = "&" in text
        changed = not by_reference and _changes(words(body), name)
        places = ("identifier", "field_expression", "subscript_expression")
        stands = _simple(argument) or (by_reference and argument.type in places)
        stands = stands or (len(uses) == 1 and not _in_loop(uses[0], body) and not does_something(argument))
        if not uses or (stands and not changed):
            for use in uses:
                bare = argument.type in _ONE_PART or (use.parent is not None and use.parent.type in _APART)
                pieces.append((use.start_byte, use.end_byte, given if bare else f"({given})"))
        elif by_reference or name in words_given:
            return None
        else:
            if not changed:
                text = re.sub(r"\*\s*", "* const ", text) if "*" in text else "const " + text.removeprefix("const ")
            lines.append(f"  {text} = {given};\n")
    return lines, pieces


def declared_name_in(line: str) -> str:
    """Of a declaration in a line of its own."""
    return re.split(r"\W+", line.partition(" =")[0])[-1]


def _declared_anywhere(node: Node) -> set[str]:
    kinds = ("declaration", "parameter_declaration")
    found = (each for each in walk(node) if each.type in kinds)
    return {declared_name(declarator) for each in found for declarator in each.children_by_field_name("declarator")}


def _with_pieces(parsed: Text, start: int, end: int, pieces: Sequence[Edit]) -> str:
    """A part of the text with those pieces that lie in it."""
    return edited(parsed.between(start, end), [(a - start, b - start, new) for a, b, new in pieces if start <= a < end])


def _indented(text: str, columns: int) -> str:
    """Further right, or further left, but for what begins at the margin."""
    if columns < 0:
        return re.sub(rf"^ {{{-columns}}}", "", text, flags=re.MULTILINE)
    return re.sub(r"^(?=[^#\n])", " " * columns, text, flags=re.MULTILINE)


def _in_loop(node: Node, outer: Node) -> bool:
    around = node.parent
    while around is not None and around != outer:
        if around.type in ("for_statement", "while_statement", "do_statement", "lambda_expression"):
            return True
        around = around.parent
    return False


def without_unused_parameters(text: str, kept: frozenset[str]) -> str:
    """`text` whose functions have no parameters that they do not use."""
    parsed = parsed_text(text)
    functions, calls = _functions(parsed), _calls(parsed)
    edits: list[Edit] = []
    for name, definitions in functions.items():
        function = definitions[0]
        if (
            len(definitions) != 1
            or function.is_kernel
            or name in kept
            or _word_count(text, name) != 1 + len(calls.get(name, ()))
        ):
            continue
        used = set(re.findall(r"\w+", words(function.node)[function.body.start_byte - function.node.start_byte :]))
        unused = [n for n, each in enumerate(function.names) if each not in used or not each]
        if (
            not unused
            or name not in calls
            or any(len(field(c, "arguments").named_children) < _least(function) for c in calls[name])
        ):
            continue
        given = [field(c, "arguments").named_children for c in calls[name]]
        if any(does_something(arguments[n]) for arguments in given for n in unused if n < len(arguments)):
            continue
        if function.templated:
            head = _deduced(parsed, function, unused, calls[name])
            if head is None:
                continue
            edits.append(head)
        for items in [function.parameters, *given]:
            if not items:
                continue
            left = ", ".join(parsed.of(each) for n, each in enumerate(items) if n not in unused)
            edits.append((items[0].start_byte, items[-1].end_byte, left))
    return edited(text, edits)


def with_same_arguments(text: str, kept: frozenset[str]) -> str:
    """`text` whose functions have no parameters that are the same number or constant in all calls."""
    parsed = parsed_text(text)
    functions, calls = _functions(parsed), _calls(parsed)
    edits: list[Edit] = []
    for name, definitions in functions.items():
        function, own = definitions[0], calls.get(name, [])
        if len(definitions) != 1 or function.is_kernel or name in kept or not own:
            continue
        if _word_count(text, name) != 1 + len(own):
            continue
        given = [field(call, "arguments").named_children for call in own]
        if any(len(arguments) != len(function.parameters) for arguments in given):
            continue
        for place, parameter in enumerate(function.parameters):
            values = {parsed.of(arguments[place]) for arguments in given}
            own_name = function.names[place]
            if len(values) != 1 or not own_name or words(field(parameter, "type")) not in ("int", "bool", "unsigned"):
                continue
            if not re.fullmatch(r"\d+|true|false|k[A-Z]\w*", value := values.pop()):
                continue
            declared_inside = own_name in _declared_anywhere(function.body)
            if declared_inside or "&" in parsed.of(parameter) or _changes(words(function.body), own_name):
                continue
            if value in ("0", "1") and words(field(parameter, "type")) == "bool":
                value = "true" if value == "1" else "false"
            own_edits = [
                (node.start_byte, node.end_byte, value)
                for node in walk(function.node)
                if node.start_byte > parameter.end_byte and _is_variable(node) and words(node) == own_name
            ]
            own_edits += [_left_out(parsed, items[place]) for items in [function.parameters, *given]]
            if not any(a[0] < b[1] and b[0] < a[1] for a in own_edits for b in edits):
                edits += own_edits
            break
    return edited(text, edits)


def _left_out(parsed: Text, item: Node) -> Edit:
    """Leaves out one of a list, with the comma beside it."""
    behind, before = item.next_sibling, item.prev_sibling
    if behind is not None and behind.type == ",":
        end = behind.end_byte
        while parsed.bytes[end : end + 1].isspace():
            end += 1
        return item.start_byte, end, ""
    start = before.start_byte if before is not None and before.type == "," else item.start_byte
    return start, item.end_byte, ""


def _deduced(parsed: Text, function: _Function, unused: Sequence[int], calls: Sequence[Node]) -> Edit | None:
    """The parameters of a template whose function loses some of its own; None where it could not be called then."""
    listed = field(function.whole, "parameters")
    items, names = listed.named_children, [_template_name(each) for each in listed.named_children]
    left = {word for n, each in enumerate(function.parameters) if n not in unused for word in _names_in(each)}
    lost = {word for n in unused for word in _names_in(function.parameters[n])} & set(names) - left
    needed = set(re.findall(r"\w+", function.returns)) | _words_of(function.node)
    explicit = any("<" in words(field(call, "function")) for call in calls)
    if lost & needed or (lost and explicit):
        return None
    kept = ", ".join(parsed.of(item) for item, name in zip(items, names, strict=True) if name not in lost)
    behind = parsed.bytes[listed.end_byte :]
    if kept:
        return listed.start_byte, listed.end_byte, f"<{kept}>"
    return function.whole.start_byte, listed.end_byte + len(behind) - len(behind.lstrip()), ""


def _names_in(node: Node) -> set[str]:
    return set(re.findall(r"\w+", words(node)))


def _least(function: _Function) -> int:
    """How many arguments a function must be given."""
    return sum(each.type == "parameter_declaration" for each in function.parameters)


def with_one_argument(text: str, kept: frozenset[str]) -> str:
    """`text` whose functions have no template parameters for values that are the same in all calls."""
    parsed = parsed_text(text)
    functions = _functions(parsed)
    uses: dict[str, list[Node]] = {}
    for node in parsed.all("template_function", "template_method"):
        uses.setdefault(words(field(node, "name")), []).append(node)
    for name, nodes in uses.items():
        definitions = functions.get(name, [])
        if (
            name in kept
            or len(definitions) != 1
            or not definitions[0].templated
            or _word_count(text, name) != 1 + len(nodes)
        ):
            continue
        listed = field(definitions[0].whole, "parameters").named_children
        for number, parameter in enumerate(listed):
            own = parameter.child_by_field_name("declarator")
            given = {
                parsed.of(field(n, "arguments").named_children[number])
                for n in nodes
                if len(field(n, "arguments").named_children) > number
            }
            if parameter.type != "parameter_declaration" or own is None or len(given) != 1:
                continue
            if not re.fullmatch(r"-?\d+|true|false|k[A-Z]\w*|Rounding::\w+", value := given.pop()):
                continue
            edits = [_without_item(parsed, listed, number, definitions[0].whole)]
            edits += [_without_item(parsed, field(n, "arguments").named_children, number, n) for n in nodes]
            edits += [
                (n.start_byte, n.end_byte, value)
                for n in walk(definitions[0].node)
                if n.type in ("identifier", "type_identifier") and words(n) == words(own)
            ]
            return re.sub(r"\btemplate (\w+\()", r"\1", edited(text, edits))
    return text


def with_one_struct_argument(text: str, kept: frozenset[str]) -> str:
    """`text` whose structs have no template parameters for numbers that are the same wherever they are named."""
    parsed = parsed_text(text)
    uses: dict[str, list[Node]] = {}
    for node in parsed.all("template_type"):
        uses.setdefault(words(field(node, "name")), []).append(node)
    for whole in parsed.all("template_declaration"):
        struct = whole.named_children[-1]
        name_node = struct.child_by_field_name("name") if struct.type in STRUCTS else None
        if name_node is None or name_node.type != "type_identifier" or struct.child_by_field_name("body") is None:
            continue
        name = words(name_node)
        nodes = uses.get(name, [])
        constructors = len(re.findall(rf"\b{name}\(", re.sub(r"//[^\n]*", "", words(struct))))
        if not nodes or name in kept or _word_count(text, name) != 1 + len(nodes) + constructors:
            continue
        listed = field(whole, "parameters").named_children
        for number, parameter in enumerate(listed):
            own = parameter.child_by_field_name("declarator")
            given = {parsed.of(field(n, "arguments").named_children[number]) for n in nodes}
            if parameter.type != "parameter_declaration" or own is None or len(given) != 1:
                continue
            if not re.fullmatch(r"\d+|true|false|k[A-Z]\w*", value := given.pop()):
                continue
            edits = [_without_item(parsed, listed, number, whole)]
            edits += [_without_item(parsed, field(n, "arguments").named_children, number, n) for n in nodes]
            edits += [
                (n.start_byte, n.end_byte, value)
                for n in walk(struct)
                if n.type in ("identifier", "type_identifier") and words(n) == words(own)
            ]
            return edited(text, edits)
    return text


def _without_item(parsed: Text, items: Sequence[Node], number: int, whole: Node) -> Edit:
    """Leaves one of a template's parameters or arguments out, and with the last one all."""
    left = ", ".join(parsed.of(each) for n, each in enumerate(items) if n != number)
    around = items[0].parent
    assert around is not None
    if left:
        return around.start_byte, around.end_byte, f"<{left}>"
    if whole.type == "template_declaration":
        behind = parsed.bytes[around.end_byte :]
        return whole.start_byte, around.end_byte + len(behind) - len(behind.lstrip()), ""
    return around.start_byte, around.end_byte, ""


# ---- arrays ----------------------------------------------------------------------------------------------------------


def without_single_structs(text: str) -> str:
    """`text` without structs that are nothing but an array and have no functions to go to."""
    for match in re.finditer(
        r"(?:^//[^\n]*\n)*^struct (\w+) \{\s*(\w+) (\w+)((?:\[[^\]]*\])+);\s*\};\n", text, re.MULTILINE
    ):
        name, element, member, sizes = match.groups()
        rest = text[: match.start()] + text[match.end() :]
        declared = re.findall(rf"\b{name} (\w+)( = \{{\}})?;", rest)
        names = {variable for variable, _ in declared}
        if len(re.findall(rf"\b{name}\b", rest)) != len(declared):
            continue
        if any(
            re.search(rf"\b{variable}(?!\w|\.{member}\b| = \{{\}};|;)", re.sub(r"//[^\n]*", "", rest))
            for variable in names
        ):
            continue
        rest = re.sub(rf"\b{name} (\w+)( = \{{\}})?;", rf"{element} \1{sizes}\2;", rest)
        for variable in names:
            rest = re.sub(rf"\b{variable}\.{member}\b", variable, rest)
        return rest
    return text


def without_single_places(text: str) -> str:
    """`text` whose local arrays have no sizes of one that are always asked for their first place."""
    parsed = parsed_text(text)
    for declaration in parsed.all("declaration"):
        function = _function_around(declaration)
        for declarator in declaration.children_by_field_name("declarator"):
            if function is None:
                continue
            edits = _narrowed(parsed, function, declarator)
            if edits:
                return edited(text, edits)
    return text


def _function_around(node: Node) -> Node | None:
    around = node.parent
    while around is not None and around.type != "function_definition":
        around = around.parent
    return around


def _narrowed(parsed: Text, function: Node, declarator: Node) -> list[Edit]:
    name = declared_name(declarator)
    array = declarator if declarator.type == "array_declarator" else declarator.child_by_field_name("declarator")
    sizes: list[Node] = []
    while array is not None and array.type == "array_declarator":
        sizes.insert(0, array)
        array = array.child_by_field_name("declarator")
    if not sizes or (declarator.type == "init_declarator" and parsed.of(field(declarator, "value")) != "{}"):
        return []
    uses = [n for n in walk(function) if n.type == "identifier" and words(n) == name and n != array]
    for number, size in enumerate(sizes):
        length = size.child_by_field_name("size")
        if length is None or parsed.of(length) != "1":
            continue
        edits: list[Edit] = [(size.children[-3].start_byte, size.end_byte, "")]
        for use in uses:
            place: Node | None = use
            for _ in range(number + 1):
                place = place.parent if place is not None else None
            if place is None or place.type != "subscript_expression" or parsed.of(field(place, "indices")) != "[0]":
                break
            edits.append((field(place, "indices").start_byte, field(place, "indices").end_byte, ""))
        else:
            if len(sizes) > 1 or declarator.type != "init_declarator":
                return edits
    return []
