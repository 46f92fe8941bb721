"""Parameters that a text's functions do not need: nothing here knows of kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tree_sitter import Node

from tconv.codegen.headers.calls import (
    Definition,
    calls_of,
    declared_anywhere,
    functions_of,
    template_name,
    word_count,
    words_of,
)
from tconv.codegen.headers.evaluate import does_something
from tconv.codegen.headers.other_names import changes, is_variable
from tconv.codegen.headers.syntax import STRUCTS, Edit, Text, edited, field, walk, words
from tconv.codegen.headers.syntax import parsed as parsed_text


def without_unused_parameters(text: str, kept: frozenset[str]) -> str:
    """`text` whose functions have no parameters that they do not use."""
    parsed = parsed_text(text)
    functions, calls = functions_of(parsed), calls_of(parsed)
    edits: list[Edit] = []
    for name, definitions in functions.items():
        function = definitions[0]
        if (
            len(definitions) != 1
            or function.is_kernel
            or name in kept
            or word_count(text, name) != 1 + len(calls.get(name, ()))
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
    functions, calls = functions_of(parsed), calls_of(parsed)
    edits: list[Edit] = []
    for name, definitions in functions.items():
        function, own = definitions[0], calls.get(name, [])
        if len(definitions) != 1 or function.is_kernel or name in kept or not own:
            continue
        if word_count(text, name) != 1 + len(own):
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
            declared_inside = own_name in declared_anywhere(function.body)
            if declared_inside or "&" in parsed.of(parameter) or changes(words(function.body), own_name):
                continue
            if value in ("0", "1") and words(field(parameter, "type")) == "bool":
                value = "true" if value == "1" else "false"
            own_edits = [
                (node.start_byte, node.end_byte, value)
                for node in walk(function.node)
                if node.start_byte > parameter.end_byte and is_variable(node) and words(node) == own_name
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


def _deduced(parsed: Text, function: Definition, unused: Sequence[int], calls: Sequence[Node]) -> Edit | None:
    """The parameters of a template whose function loses some of its own; None where it could not be called then."""
    listed = field(function.whole, "parameters")
    items, names = listed.named_children, [template_name(each) for each in listed.named_children]
    left = {word for n, each in enumerate(function.parameters) if n not in unused for word in _names_in(each)}
    # What each call names is not deduced.
    named = min(_template_arguments(call) for call in calls)
    lost = {word for n in unused for word in _names_in(function.parameters[n])} & set(names[named:]) - left
    needed = set(re.findall(r"\w+", function.returns)) | words_of(function.node)
    if lost & needed or (lost and any(map(_template_arguments, calls))):
        return None
    kept = ", ".join(parsed.of(item) for item, name in zip(items, names, strict=True) if name not in lost)
    behind = parsed.bytes[listed.end_byte :]
    if kept:
        return listed.start_byte, listed.end_byte, f"<{kept}>"
    return function.whole.start_byte, listed.end_byte + len(behind) - len(behind.lstrip()), ""


def _template_arguments(call: Node) -> int:
    """How many of a function's template arguments a call names."""
    lists = [each for each in walk(field(call, "function")) if each.type == "template_argument_list"]
    return len(lists[-1].named_children) if lists and words(field(call, "function")).endswith(">") else 0


def _names_in(node: Node) -> set[str]:
    return set(re.findall(r"\w+", words(node)))


def _least(function: Definition) -> int:
    """How many arguments a function must be given."""
    return sum(each.type == "parameter_declaration" for each in function.parameters)


def with_one_argument(text: str, kept: frozenset[str]) -> str:
    """`text` whose functions have no template parameters for values that are the same in all calls."""
    parsed = parsed_text(text)
    functions = functions_of(parsed)
    uses: dict[str, list[Node]] = {}
    for node in parsed.all("template_function", "template_method"):
        uses.setdefault(words(field(node, "name")), []).append(node)
    for name, nodes in uses.items():
        definitions = functions.get(name, [])
        if (
            name in kept
            or len(definitions) != 1
            or not definitions[0].templated
            or word_count(text, name) != 1 + len(nodes)
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
        if not nodes or name in kept or word_count(text, name) != 1 + len(nodes) + constructors:
            continue
        listed = field(whole, "parameters").named_children
        arguments = [field(n, "arguments").named_children for n in nodes]
        if any(len(each) != len(listed) for each in arguments):  # defaults stand for the others
            continue
        for number, parameter in enumerate(listed):
            own = parameter.child_by_field_name("declarator")
            given = {parsed.of(each[number]) for each in arguments}
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
