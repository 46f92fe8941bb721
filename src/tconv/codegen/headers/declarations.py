"""Declarations of a text that it no longer needs: nothing here knows of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from tconv.codegen.headers.evaluate import Unknown, World, does_something
from tconv.codegen.headers.syntax import STRUCTS, Edit, Text, below, declared_name, edited, field, walk, words
from tconv.codegen.headers.syntax import parsed as parsed_text

# ---- specializations -------------------------------------------------------------------------------------------------


def without_unused_specializations(text: str) -> str:
    """`text` without what a function is for arguments that no call gives it."""
    parsed = parsed_text(text)
    world = World([parsed.root])
    special: dict[str, list[tuple[Node, str]]] = {}
    declared: set[int] = set()
    for node in parsed.all("template_declaration"):
        function = node.named_children[-1]
        if function.type == "function_definition" and not field(node, "parameters").named_children:
            named = next(
                (each for each in walk(field(function, "declarator")) if each.type == "template_function"), None
            )
            if named is not None:
                declared.add(named.id)
                special.setdefault(words(field(named, "name")), []).append((node, _given(world, named)))
    plain = {declared_name(field(each, "declarator")) for each in parsed.all("function_definition")} - set(special)
    edits = [  # what is defined without a template
        _line_of(text, each)
        for each in parsed.root.children
        if each.type == "declaration" and declared_name(field(each, "declarator")) in plain
    ]
    used: dict[str, set[str]] = {}
    for node in parsed.all("template_function"):
        name = words(field(node, "name"))
        if name in special and node.id not in declared:
            used.setdefault(name, set()).add(_given(world, node))
    for name, found in special.items():
        if "" not in used.get(name, set()):  # all are known
            edits += [_line_of(text, node) for node, given in found if given not in used.get(name, set())]
    return edited(text, edits)


def _given(world: World, node: Node) -> str:
    """The arguments of a template as values and names of types; nothing where one is not known."""
    made = []
    for argument in field(node, "arguments").named_children:
        try:
            made.append(str(world.value(argument, world.scope)))
        except Unknown:
            if argument.type != "type_descriptor" or words(argument) not in ("float", "double", "Half", "BFloat16"):
                return ""
            made.append(words(argument))
    return ", ".join(made)


def _line_of(text: str, node: Node) -> Edit:
    """All lines of a definition."""
    start, end = text.rfind("\n", 0, node.start_byte) + 1, text.find("\n", node.end_byte)
    return start, len(text) if end < 0 else end + 1, ""


# ---- members ---------------------------------------------------------------------------------------------------------


def without_unused_members(text: str, user: str = "") -> str:
    """`text` without variables of structs that are given a value and that neither it nor `user` asks for it."""
    parsed = parsed_text(text)
    for struct in parsed.all(*STRUCTS):
        body, name = struct.child_by_field_name("body"), struct.child_by_field_name("name")
        if body is None or name is None or name.type == "template_type":
            continue
        if words(name) in user.split():
            continue  # it is made there
        edits = _without_base(parsed, struct) or _without_member(parsed, struct, words(name), user)
        if edits:
            return edited(text, edits)
    return text


def _without_base(parsed: Text, struct: Node) -> list[Edit]:
    """A base that is a struct without members."""
    base = next((each for each in struct.named_children if each.type == "base_class_clause"), None)
    if base is None:
        return []
    name = words(base).lstrip(": ").rpartition("::")[2]
    found = [
        each
        for each in parsed.all(*STRUCTS)
        if each != struct and each.child_by_field_name("body") and words(field(each, "name")) == name
    ]
    empty = [each for each in found if not field(each, "body").named_children]
    outer = words(base).lstrip(": ").rpartition("::")[0]
    if (
        len(empty) != 1
        or f"{words(base).lstrip(': ')}&>" in parsed.bytes.decode()
        or not _is_member_of(empty[0], outer)
    ):
        return []
    start = base.start_byte
    while parsed.bytes[start - 1 : start] == b" ":
        start -= 1
    return [(start, base.end_byte, "")]


def _is_member_of(struct: Node, name: str) -> bool:
    around = struct.parent
    while around is not None and around.type not in STRUCTS:
        around = around.parent
    return around is not None and words(field(around, "name")) == name


def _without_member(parsed: Text, struct: Node, name: str, user: str) -> list[Edit]:
    members = [
        (member, declarator)
        for member in field(struct, "body").named_children
        if member.type == "field_declaration" and "static" not in [words(each) for each in member.children]
        for declarator in member.children_by_field_name("declarator")
        if declarator.type != "function_declarator"
    ]
    text = re.sub(r"//[^\n]*", "", parsed.bytes.decode()) + user
    for place, (member, declarator) in enumerate(members):
        own = declared_name(declarator)
        if not own or re.search(rf"(?:\.|->)\s*{own}\b(?!\s*\()", text):
            continue
        inits = _initializers(struct, own)
        mentioned = len(re.findall(rf"\b{own}\b", re.sub(r"//[^\n]*", "", words(struct))))
        shadowing = _parameter_mentions(struct, own)
        if mentioned - 1 - len(inits) - shadowing > 0:
            continue
        if any(does_something(each) for init in inits for each in init.named_children[1:]):
            continue
        given = _given_in_braces(parsed, name, place, bool(inits) or _has_constructor(struct, name))
        if given is None:
            continue
        return [
            *given,
            *(_without_item(parsed, init) for init in inits),
            _without_declarator(parsed, member, declarator),
        ]
    return []


def _has_constructor(struct: Node, name: str) -> bool:
    return any(
        declared_name(field(each, "declarator")) == name
        for each in field(struct, "body").named_children
        if each.type == "function_definition"
    )


def _initializers(struct: Node, name: str) -> list[Node]:
    """Of constructors, what they make a member of."""
    return [each for each in below(struct, "field_initializer") if words(each.named_children[0]) == name]


def _parameter_mentions(struct: Node, name: str) -> int:
    """How often the name stands for a parameter of a constructor."""
    count = 0
    for function in field(struct, "body").named_children:
        listed = next((each for each in function.named_children if each.type == "field_initializer_list"), None)
        if listed is None:
            continue
        parameters = set(map(declared_name, below(function, "parameter_declaration")))
        if name in parameters:
            body = words(function)
            own = sum(words(each.named_children[0]) == name for each in listed.named_children)
            count += len(re.findall(rf"\b{name}\b", body)) - own
    return count


def _given_in_braces(parsed: Text, name: str, place: int, constructed: bool) -> list[Edit] | None:
    """What braces give the member of that place; None where they cannot be told from others."""
    if constructed:
        return []
    edits: list[Edit] = []
    for node in parsed.all("type_identifier"):
        if words(node) != name:
            continue
        around = node.parent
        while around is not None and around.type in ("template_type", "qualified_identifier", "dependent_type"):
            around = around.parent
        if around is None or around.type in STRUCTS:
            continue
        if around.type == "compound_literal_expression":
            lists = [field(around, "value")]
        elif around.type in ("declaration", "field_declaration"):
            values = [each.child_by_field_name("value") for each in around.children_by_field_name("declarator")]
            values += [around.child_by_field_name("default_value")]
            lists = [each for each in values if each is not None and each.type == "initializer_list"]
            if any(each is not None and each.type == "argument_list" for each in values):
                return None
        elif around.type == "function_definition":
            returned = [each for each in walk(around) if each.type == "return_statement" and each.named_children]
            lists = [each.named_children[0] for each in returned if each.named_children[0].type == "initializer_list"]
        elif around.type == "parameter_declaration" and "&" in words(around):
            lists = []
        else:
            return None
        for listed in lists:
            items = listed.named_children
            if len(items) > place:
                if does_something(items[place]):
                    return None
                edits.append(_without_item(parsed, items[place]))
    return edits


def _without_item(parsed: Text, item: Node) -> Edit:
    """Leaves out an item of a list, with the comma beside it."""
    before, behind = item.prev_sibling, item.next_sibling
    if behind is not None and behind.type == ",":
        end = behind.end_byte
        while parsed.bytes[end : end + 1].isspace():
            end += 1
        return item.start_byte, end, ""
    if before is not None and before.type == ",":
        return before.start_byte, item.end_byte, ""
    if item.type == "field_initializer" and item.parent is not None:
        start = item.parent.start_byte
        while parsed.bytes[start - 1 : start].isspace():
            start -= 1
        return start, item.parent.end_byte, ""
    return item.start_byte, item.end_byte, ""


def _without_declarator(parsed: Text, member: Node, declarator: Node) -> Edit:
    others = [each for each in member.children_by_field_name("declarator") if each != declarator]
    if others:
        return _without_item(parsed, declarator)
    return _line_of(parsed.bytes.decode(), member)


# ---- values ----------------------------------------------------------------------------------------------------------


def with_values_at_once(text: str) -> str:
    """`text` whose variables have their values where they are declared, if the next statement gives them."""
    parsed = parsed_text(text)
    edits: list[Edit] = []
    for declaration in parsed.all("declaration"):
        edits += _with_value(parsed, declaration)
    return edited(text, edits)


def _with_value(parsed: Text, declaration: Node) -> Iterator[Edit]:
    declarators = declaration.children_by_field_name("declarator")
    statement = _next(declaration)
    if statement is None or statement.type != "expression_statement":
        return
    kinds = ("identifier", "pointer_declarator")
    assignments = list(_assignments(statement.named_children[0]))
    if not declarators or len(assignments) != len(declarators) or any(each.type not in kinds for each in declarators):
        return
    names = [declared_name(each) for each in declarators]
    given = dict(zip((words(field(each, "left")) for each in assignments), assignments, strict=True))
    if set(given) != set(names):
        return
    values = {name: field(given[name], "right") for name in names}
    if any(set(re.findall(r"\w+", words(value))) & set(names) for value in values.values()):
        return
    head = parsed.between(declaration.start_byte, declarators[0].start_byte)
    items = [f"{parsed.of(each)} = {parsed.of(values[declared_name(each)])}" for each in declarators]
    yield declaration.start_byte, statement.end_byte, f"{head}{', '.join(items)};"


def _assignments(node: Node) -> Iterator[Node]:
    if node.type == "comma_expression":
        yield from _assignments(field(node, "left"))
        yield from _assignments(field(node, "right"))
    elif node.type == "assignment_expression" and words(field(node, "operator")) == "=":
        yield node


def _next(node: Node) -> Node | None:
    """The statement behind one, unless something is said between them."""
    behind = node.next_sibling
    return behind
