"""Structs of one member and arrays of one place, as what they hold: nothing here knows of kernels."""

from __future__ import annotations

import re

from tree_sitter import Node

from tconv.codegen.headers.syntax import Edit, Text, declared_name, edited, field, function_around, walk, words
from tconv.codegen.headers.syntax import parsed as parsed_text


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
        function = function_around(declaration)
        for declarator in declaration.children_by_field_name("declarator"):
            if function is None:
                continue
            edits = _narrowed(parsed, function, declarator)
            if edits:
                return edited(text, edits)
    return text


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
