"""Branches that a kernel's constants decide, left out of its headers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tree_sitter import Node

from tconv.codegen.headers.constants import Constants, scope_of_function, scope_of_struct
from tconv.codegen.headers.syntax import STRUCTS, Text, declared_name, expression, field, walk, words

UNROLLED = re.compile(r"#pragma unroll\((.*)\)$", re.DOTALL)
_FUNCTIONS = ("function_definition", "lambda_expression")
_LAST_RETURN = re.compile(r"\n *return;\s*$")
#: What may lose its parentheses.
_SIMPLE = ("identifier", "number_literal", "qualified_identifier", "field_expression", "call_expression")
#: The methods that make the text of a type of nodes.
_MADE = {
    "if_statement": "_if",
    "conditional_expression": "_conditional",
    "binary_expression": "_binary",
    "unary_expression": "_unary",
    "parenthesized_expression": "_parenthesized",
    "dependent_type": "_choice",
    "compound_statement": "_compound",
    "for_statement": "_loop",
    "comment": "_unrolled",
}
_ENDS = ("return_statement", "break_statement", "continue_statement")


def folded(text: Text, constants: Constants) -> str:
    """`text` with what `constants` decide: of branches, conditional expressions and types the part that is taken.

    Names stay as they are, also those of known values.
    """
    return Folding(text, constants).of(text.root, None)


@dataclass(frozen=True)
class Folding:
    text: Text
    constants: Constants
    #: Some conditions that are known stay, as branches are laid out in another way without them.
    keeps_conditions: ClassVar[bool] = True
    #: Nodes without others below them stay as they are, but for comments.
    keeps_words: ClassVar[bool] = True
    #: What was made of nodes, with the scopes they stand in: loops and operators look at their parts more than once.
    _made: dict[tuple[int, int], tuple[str, Any]] = dataclasses.field(default_factory=dict, compare=False)

    def of(self, node: Node, scope: Any) -> str:
        """The text of a node; nothing where nothing is left of a statement."""
        key = (node.id, id(scope))
        if key not in self._made:
            self._made[key] = (self._make(node, scope), scope)
        return self._made[key][0]

    def _make(self, node: Node, scope: Any) -> str:
        kind = node.type
        if kind in _FUNCTIONS:
            scope = scope_of_function(node, scope)
        elif kind in STRUCTS and node.child_by_field_name("body") is not None:
            scope = scope_of_struct(node, scope)
        elif kind == "static_assert_declaration":
            return ""  # it held when the kernels were compiled
        made: Callable[[Node, Any], str] = getattr(self, _MADE.get(kind, "_parts"))
        return made(node, scope)

    def _parts(self, node: Node, scope: Any) -> str:
        children = node.children
        if not children:
            return self.text.of(node)
        parts, at, text = [], node.start_byte, self.text.bytes
        for child in children:
            start = child.start_byte
            if start > at:
                parts.append(text[at:start].decode())
            at = child.end_byte
            # Names and signs stay, which most nodes are.
            stays = self.keeps_words and not child.child_count and child.type != "comment"
            parts.append(text[start:at].decode() if stays else self.of(child, scope))
        return "".join(parts) + self.text.between(at, node.end_byte)

    def _value(self, node: Node, scope: Any) -> int | None:
        return self.constants.value(node, scope)

    # ---- expressions ----

    def _conditional(self, node: Node, scope: Any) -> str:
        condition = self._value(field(node, "condition"), scope)
        if condition is None:
            return self._parts(node, scope)
        return self.of(field(node, "consequence" if condition else "alternative"), scope)

    def _binary(self, node: Node, scope: Any) -> str:
        sign = self.text.of(field(node, "operator"))
        left, right = field(node, "left"), field(node, "right")
        if sign in ("&&", "||"):
            value = self._value(node, scope)
            if self.keeps_conditions and (_is_condition(node) or (value is not None and _is_answer(node))):
                return self._parts(node, scope)
            if value is not None:
                return "true" if value else "false"
            for known, other in ((left, right), (right, left)):
                value = self._value(known, scope)
                if (
                    value is not None
                    and bool(value) != (sign == "||")
                    and not (self.keeps_conditions and _is_condition(known))
                ):
                    return self.of(other, scope)  # the known one does not decide
        made = self._parts(node, scope)
        if made == self.text.of(node):
            return made
        first, second = self.of(left, scope), self.of(right, scope)
        if (sign == "*" and "0" in (first, second)) or (sign in "/%" and first == "0"):
            return "0"
        neutral = {"*": "1", "/": "1", "+": "0"}.get(sign)
        return first if second == neutral else second if first == neutral and sign != "/" else made

    def _unary(self, node: Node, scope: Any) -> str:
        value = self._value(node, scope)
        if self.text.of(node).startswith("!") and value is not None:
            return "true" if value else "false"
        return self._parts(node, scope)

    def _parenthesized(self, node: Node, scope: Any) -> str:
        """Without its parentheses where one simple part remains of a choice."""
        made = self._parts(node, scope)
        if made != self.text.of(node) and made[1:-1].strip():
            _, remains = expression(made[1:-1])
            if remains.type in _SIMPLE:
                return made[1:-1].strip()
        return made

    def _choice(self, node: Node, scope: Any) -> str:
        """``typename Choice<condition, First, Second>::type``."""
        of = node.named_children[0].child_by_field_name("scope")
        if of is None or of.type != "template_type" or self.text.of(field(of, "name")) != "Choice":
            return self._parts(node, scope)
        condition, *types = field(of, "arguments").named_children
        value = self._value(condition, scope)
        return self._parts(node, scope) if value is None else self.of(types[0 if value else 1], scope).strip()

    def _unrolled(self, node: Node, scope: Any) -> str:
        """``#pragma unroll(number)``."""
        text = self.text.of(node)
        match = UNROLLED.match(text)
        if match is None:
            return text
        parsed, number = expression(match[1])
        return f"#pragma unroll({Folding(parsed, self.constants).of(number, scope)})"

    # ---- statements ----

    def _if(self, node: Node, scope: Any) -> str:
        """Where it stands for one statement, whose braces it keeps; `_items` takes them away where there are more."""
        remains = self._taken(node, scope)
        if remains is not node:
            return "" if remains is None else self.of(remains, scope)
        clause, otherwise = field(node, "condition"), node.child_by_field_name("alternative")
        consequence = field(node, "consequence")
        taken = self.of(consequence, scope)
        alternative = "" if otherwise is None else self.of(otherwise.named_children[-1], scope)
        head = self.text.between(node.start_byte, clause.start_byte) + self.of(clause, scope)
        gap = self.text.between(clause.end_byte, consequence.start_byte)
        if otherwise is None or not alternative:
            return f"{head}{gap}{taken or ';'}"
        before = self.text.between(consequence.end_byte, otherwise.start_byte)
        word = self.text.between(otherwise.start_byte, otherwise.named_children[-1].start_byte)
        return f"{head}{gap}{taken or '{}'}{before}{word}{alternative}"

    def _taken(self, node: Node, scope: Any) -> Node | None:
        """The statement that remains of a decided branch, or of a loop that ends after its first round; else itself."""
        while True:
            if node.type == "if_statement":
                value = self._value(field(field(node, "condition"), "value"), scope)
                otherwise = node.child_by_field_name("alternative")
                if value is None:
                    return node
                if not value and otherwise is None:
                    return None
                node = field(node, "consequence") if value or otherwise is None else otherwise.named_children[-1]
            elif node.type == "do_statement" and self._ends_at_once(node, scope):
                node = field(node, "body")
            else:
                return node

    def _ends_at_once(self, loop: Node, scope: Any) -> bool:
        return self._value(field(loop, "condition"), scope) == 0 and not leaves_round(field(loop, "body"))

    def _loop(self, node: Node, scope: Any) -> str:
        made = self.of(field(node, "body"), scope)
        return "" if not made or re.fullmatch(r"\{\s*(continue;\s*)?\}|continue;", made) else self._parts(node, scope)

    def _compound(self, node: Node, scope: Any) -> str:
        items = self._items(node, scope, set(declared(node)))
        if node.parent is not None and node.parent.type in _FUNCTIONS:
            items = _LAST_RETURN.sub("", items)
        last = node.children[-1]
        return "{" + items + self.text.between(node.children[-2].end_byte, last.end_byte)

    def _items(self, node: Node, scope: Any, names: set[str]) -> str:
        """The statements between the braces of a compound statement, each behind what separates it from the last.

        Args:
            names: those that the statements around them declare; those that move out of braces are added.
        """
        made: list[str] = []
        comments: list[str] = []  # above what comes next
        kept = True  # what came last
        for before, child in zip(node.children, node.children[1:-1], strict=False):
            gap = self.text.between(before.end_byte, child.start_byte)
            if child.type == "comment":
                if "\n" in gap or before is node.children[0]:
                    comments.append(gap + self.of(child, scope))
                elif kept:  # behind it, on its line
                    made.append(gap + self.of(child, scope))
                continue
            remains = self._taken(child, scope)
            text = "" if remains is None else self._statement(child, remains, gap, scope, names)
            kept = bool(text)
            made += [*comments, text] if kept else []
            comments = []
            if remains is not None and remains is not child and _always_leaves(remains):
                break
        return "".join(made + comments)

    def _statement(self, node: Node, remains: Node, gap: str, scope: Any, names: set[str]) -> str:
        """What `remains` of a statement, behind the `gap` before it, without braces that keep nothing apart."""
        if remains is node:
            text = self.of(node, scope)
            return gap + text if text else ""
        columns = _indent(self.text, remains) - _indent(self.text, node)
        own = set(declared(remains)) if remains.type == "compound_statement" else set()
        if remains.type != "compound_statement" or own & (names | meant_behind(node)):
            text = self.of(remains, scope)
            return gap + moved(text, columns) if text else ""
        names |= own
        inner = self._items(remains, scope, names)
        return moved(inner, columns + 2)


def _is_answer(node: Node) -> bool:
    """Whether a lambda returns it: without what it captures for that, its callers' machine code is another."""
    while node.parent is not None and node.type in ("binary_expression", "parenthesized_expression"):
        node = node.parent
    compound = node.parent
    lambda_ = None if compound is None else compound.parent
    return node.type == "return_statement" and lambda_ is not None and lambda_.type == "lambda_expression"


def _is_condition(node: Node) -> bool:
    """Whether it is a choice in parentheses among other conditions, and about variables.

    Without it branches are laid out in another way.
    """
    around = node if node.type == "parenthesized_expression" else node.parent
    inner = node.named_children[0] if around is node else node
    if around is None or around.type != "parenthesized_expression" or inner.type != "binary_expression":
        return False
    outer = around.parent
    return outer is not None and outer.type == "binary_expression" and any(n.type == "identifier" for n in walk(inner))


def _always_leaves(node: Node) -> bool:
    last = node.named_children[-1] if node.type == "compound_statement" and node.named_children else node
    return last.type in _ENDS


def leaves_round(body: Node) -> bool:
    """Whether a loop's body has statements that are about the loop."""
    inner_loops = ("for_statement", "while_statement", "do_statement", "lambda_expression")
    within = walk(body, lambda node: node is body or node.type not in inner_loops)
    return any(node.type in ("continue_statement", "break_statement") for node in within)


def _declarators(declaration: Node) -> list[Node]:
    return declaration.children_by_field_name("declarator")


def declared(compound: Node) -> list[str]:
    """The names that a compound statement declares itself."""
    declarations = [child for child in compound.named_children if child.type == "declaration"]
    return [declared_name(declarator) for each in declarations for declarator in _declarators(each)]


def declared_beside(block: Node) -> set[str]:
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


def meant_behind(block: Node) -> set[str]:
    """Names behind a block in its function that are of members, or of what is outside.

    What the block declares by such a name must stay within its braces.
    """
    names: set[str] = set()
    node = block
    while node.parent is not None and node.type != "function_definition":
        behind = node.next_named_sibling
        while behind is not None:
            names |= {words(each) for each in walk(behind) if each.type == "identifier"}
            behind = behind.next_named_sibling
        node = node.parent
    return names - declared_beside(block)


def _indent(text: Text, node: Node) -> int:
    """Of the line on which a node begins, or of its closing brace."""
    at = node.end_byte if node.type == "compound_statement" else node.start_byte
    line = text.between(0, at).rpartition("\n")[2]
    return len(line) - len(line.lstrip(" "))


def moved(text: str, columns: int) -> str:
    """The text with its lines so many columns further left, but for the first where it begins in one."""
    return re.sub(rf"\n {{{columns}}}(?=[ \S])", "\n", text) if columns > 0 else text
