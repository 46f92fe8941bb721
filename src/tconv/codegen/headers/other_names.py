"""Variables that are other names for a value, and the value in their place: nothing here knows of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from tconv.codegen.headers.syntax import Edit, Text, declared_name, edited, field, walk, words
from tconv.codegen.headers.syntax import parsed as parsed_text

_LITERAL = re.compile(r"-?\d+|true|false")


#: Of variables: ``Type name(argument)`` is a declaration of a function to the grammar, and the argument a type.
_NAMES = ("identifier", "type_identifier")


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
    changed = {name for name in counts if name not in constants and changes(words(body), name)}
    known = {
        name: value
        for name, value in values.items()
        if counts[name] == 1 and _is_other_name(value, counts, changed, name) and _is_as_wide(types, name, value)
    }
    # One at a time: a value may be another one that goes.
    known = {name: value for name, value in known.items() if not any(_root(value) == other for other in known)}
    for node in walk(body):
        if is_variable(node) and words(node) in known and not _declares(node):
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


def changes(body: str, name: str) -> bool:
    """Whether a variable may change: it is assigned, or its address or a reference to it is taken."""
    return re.search(rf"(?:\+\+|--|&)\s*{name}\b|\b{name}\s*(?:\+\+|--|[-+*/%^|&]?=(?!=))|\[&\]", body) is not None


def is_variable(node: Node) -> bool:
    """Whether a name may be that of a variable, and not of a member."""
    around = node.parent
    return node.type in _NAMES and (around is None or around.type != "qualified_identifier")


def _declares(node: Node) -> bool:
    around = node.parent
    return around is not None and "declarator" in around.type and around.child_by_field_name("declarator") == node
