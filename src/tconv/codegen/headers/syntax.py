"""CUDA headers as syntax trees."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache

import tree_sitter
import tree_sitter_cpp
from tree_sitter import Node

#: What the grammar of C++ does not know, beside something as long that it does.
_UNKNOWN = {
    "TCONV_DEVICE": "inline      ",
    "TCONV_CONSTANT": "constexpr     ",
    "TCONV_MAY_ALIAS": "               ",
    # As a comment it may stand before any statement.
    "#pragma unroll": "//ragma unroll",
}
#: From where to where in a text, and what shall stand there.
Edit = tuple[int, int, str]
#: Nodes of types with members.
STRUCTS = ("struct_specifier", "class_specifier")
#: What whole texts are searched for.
_LISTED = (
    *("call_expression", "declaration", "for_statement", "function_definition", "template_declaration"),
    *("template_function", "template_method", "template_type", "type_identifier", *STRUCTS),
)
_UNKNOWN_WORDS = re.compile("|".join(_UNKNOWN))


@cache
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_cpp.language())


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(_language())


@cache
def _query(types: tuple[str, ...]) -> tree_sitter.Query:
    """Captures nodes by their types: one look at a tree for all of them."""
    return tree_sitter.Query(_language(), " ".join(f"({type_}) @{type_}" for type_ in types))


class Text:
    """A piece of CUDA text and its syntax tree, whose nodes count bytes of it: the text is ASCII."""

    def __init__(self, text: str) -> None:
        if not text.isascii():
            raise ValueError("a header has other letters than ASCII's, whose bytes are not its characters")
        self.bytes = text.encode()
        understood = _UNKNOWN_WORDS.sub(lambda match: _UNKNOWN[match[0]], text)
        self.root = _parser().parse(understood.encode()).root_node
        self._found: dict[str, list[Node]] | None = None

    def all(self, *types: str) -> list[Node]:
        """The nodes of some of the types in `_LISTED`, in their order."""
        assert set(types) <= set(_LISTED), "whole texts are searched for listed types"
        if self._found is None:
            self._found = tree_sitter.QueryCursor(_query(_LISTED)).captures(self.root)
        return _in_order(self._found, types)

    def of(self, node: Node) -> str:
        """The text of a node."""
        return self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> str:
        return self.bytes[start:end].decode()


@lru_cache(maxsize=4)
def parsed(text: str) -> Text:
    """A text as `Text`, kept for those who ask for the same one after the other."""
    return Text(text)


def enumerators(enumeration: Node) -> dict[str, int]:
    """The names of an enumeration, which gives them no values, with those that they have."""
    names = [each for each in field(enumeration, "body").named_children if each.type != "comment"]
    return {words(field(each, "name")): number for number, each in enumerate(names)}


def expression(text: str) -> tuple[Text, Node]:
    """An expression alone."""
    parsed = Text(f"int x = {text};")
    (declaration,) = parsed.root.named_children
    return parsed, field(field(declaration, "declarator"), "value")


def edited(text: str, edits: Iterable[Edit]) -> str:
    """`text` with these made, but for what lies within others or beside them."""
    made, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if start >= at:
            made += [text[at:start], new]
            at = end
    return "".join(made) + text[at:]


def field(node: Node, name: str) -> Node:
    """The child of that name, which the grammar promises."""
    found = node.child_by_field_name(name)
    if found is None:
        raise ValueError(f"{node.type} has no {name}: {words(node)}")
    return found


def words(node: Node) -> str:
    """The text of a node without macros, as the grammar understood it."""
    return (node.text or b"").decode()


def walk(node: Node, into: Callable[[Node], bool] | None = None) -> Iterator[Node]:
    """A node and all below it, but for what is below those that are not to be gone `into`."""
    left = [node]
    while left:
        yield (node := left.pop())
        if node.child_count and (into is None or into(node)):
            left += reversed(node.children)


def below(node: Node, *types: str) -> list[Node]:
    """Those of `walk` that are of some types: found without a look at all others from here."""
    return _in_order(tree_sitter.QueryCursor(_query(types)).captures(node), types)


def _in_order(found: dict[str, list[Node]], types: tuple[str, ...]) -> list[Node]:
    nodes = [node for type_ in types for node in found.get(type_, ())]
    return sorted(nodes, key=lambda node: (node.start_byte, -node.end_byte))


def declared_name(declarator: Node) -> str:
    """The name that a declarator declares, behind its stars, brackets and parameters; nothing where it has none."""
    while True:
        if declarator.type in ("identifier", "field_identifier", "type_identifier"):
            return words(declarator)
        inner = declarator.child_by_field_name("declarator") or declarator.child_by_field_name("name")
        if inner is None:  # a reference has no names for its parts
            inner = next((child for child in declarator.named_children if "declarator" in child.type), None)
            inner = inner or next((child for child in declarator.named_children if "identifier" in child.type), None)
        if inner is None:
            return ""
        declarator = inner


def function_around(node: Node) -> Node | None:
    around = node.parent
    while around is not None and around.type != "function_definition":
        around = around.parent
    return around
