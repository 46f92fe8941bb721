"""Functions of a text, and what they do in place of their calls: nothing here knows of kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from tree_sitter import Node

from tconv.codegen.headers.evaluate import does_something
from tconv.codegen.headers.fold import declared
from tconv.codegen.headers.other_names import changes, is_variable
from tconv.codegen.headers.simplify import APART, ONE_PART, is_simple
from tconv.codegen.headers.syntax import Edit, Text, declared_name, edited, field, function_around, walk, words
from tconv.codegen.headers.syntax import parsed as parsed_text

#: Of a function that is written in place of its call; longer ones read better on their own.
_MOST_LINES = 40


class Definition:
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


def functions_of(parsed: Text) -> dict[str, list[Definition]]:
    found: dict[str, list[Definition]] = {}
    for node in parsed.all("function_definition"):
        if node.child_by_field_name("body") is not None:
            if field(node, "declarator").type == "operator_cast" or "operator" in words(field(node, "declarator")):
                continue
            function = Definition(parsed, node)
            found.setdefault(function.name, []).append(function)
    return found


def calls_of(parsed: Text) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in parsed.all("call_expression"):
        name = _called(field(node, "function"))
        if name:
            found.setdefault(name, []).append(node)
    return found


def _called(function: Node) -> str:
    if function.type == "field_expression":
        function = field(function, "field")
    if function.type == "qualified_identifier":
        function = field(function, "name")
    if function.type in ("template_function", "template_method"):
        function = field(function, "name")
    if function.type == "dependent_name":
        return _called(function.named_children[0])
    return words(function) if function.type in ("identifier", "field_identifier") else ""


def with_expressions(text: str, kept: frozenset[str]) -> str:
    """`text` with functions that return one expression written out, where they are called once or say no more."""
    parsed = parsed_text(text)
    functions, calls = functions_of(parsed), calls_of(parsed)
    edits: list[Edit] = []
    for name, definitions in functions.items():
        if len(definitions) != 1 or name in kept or definitions[0].is_kernel or name not in calls:
            continue
        function = definitions[0]
        expression = _returned(function)
        if expression is None or any(_called(n) == name for n in walk(function.body) if n.type == "identifier"):
            continue
        if function.templated and _template_names(function) & words_of(function.whole):
            continue
        if function.struct is not None and _template_names_around(function.struct) & words_of(function.whole):
            continue
        leaves = [n for n in walk(expression) if not n.named_children and n.is_named]
        trivial = len(leaves) <= (3 if expression.type == "binary_expression" else 2) or (
            expression.type == "call_expression" and len(leaves) <= 3 and not function.is_constant
        )
        if not trivial and (len(calls[name]) > 1 or word_count(text, name) > 2):
            continue
        for call in calls[name]:
            made = _expression(parsed, function, expression, call)
            if made is not None:
                edits.append((call.start_byte, call.end_byte, made))
    return edited(text, edits)


def word_count(text: str, name: str) -> int:
    return word_counts(text)[name]


@lru_cache(maxsize=2)
def word_counts(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", re.sub(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"(?!\s*\{)", "", text)))


def _template_names(function: Definition) -> set[str]:
    return set(map(template_name, field(function.whole, "parameters").named_children))


def _template_names_around(struct: Node) -> set[str]:
    """Names that only the struct knows; others have all kernels' constants by way of `Kernel`."""
    around = struct.parent
    if around is None or around.type != "template_declaration":
        return set()
    return set(map(template_name, field(around, "parameters").named_children)) - {"Kernel"}


def template_name(parameter: Node) -> str:
    of = parameter.child_by_field_name("declarator") or parameter.child_by_field_name("name")
    return declared_name(of or parameter.named_children[-1]) if parameter.named_children else ""


def words_of(node: Node) -> set[str]:
    body = field(node.named_children[-1], "body") if node.type == "template_declaration" else field(node, "body")
    return set(re.findall(r"\w+", words(body)))


def _returned(function: Definition) -> Node | None:
    statements = [each for each in function.body.named_children if each.type != "comment"]
    if len(statements) != 1 or statements[0].type != "return_statement" or not statements[0].named_children:
        return None
    value = statements[0].named_children[0]
    return None if value.type in ("initializer_list", "lambda_expression") else value


def _expression(parsed: Text, function: Definition, expression: Node, call: Node) -> str | None:
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
        if not is_variable(node):
            continue
        name = words(node)
        if name in uses:
            uses[name] += 1
            argument = arguments[function.names.index(name)]
            given = parsed.of(argument)
            around = node.parent
            if argument.type not in ONE_PART and not (
                around is not None and around.type in APART and node != expression
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
            (count > 1 and not is_simple(given_for)) or (count != 1 and does_something(given_for))
        ):
            return None
    offset = expression.start_byte
    made = edited(parsed.of(expression), [(start - offset, end - offset, new) for start, end, new in pieces])
    whole = expression.type in ONE_PART and not made.startswith("-")
    return made if whole or (call.parent is not None and call.parent.type in APART) else f"({made})"


def _within(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte < outer.end_byte


def _members(function: Definition) -> set[str]:
    found: set[str] = set()
    assert function.struct is not None
    for member in field(function.struct, "body").named_children:
        inner = member.named_children[-1] if member.type == "template_declaration" else member
        found.update(declared_name(each) for each in inner.children_by_field_name("declarator"))
    return found


def with_bodies(text: str, kept: frozenset[str]) -> str:
    """`text` with the body of a function that is called once, as a statement, in place of the call."""
    parsed = parsed_text(text)
    functions, calls = functions_of(parsed), calls_of(parsed)
    for name, definitions in functions.items():
        if len(definitions) != 1 or len(calls.get(name, ())) != 1 or name in kept:
            continue
        function, call = definitions[0], calls[name][0]
        if (
            function.is_kernel
            or (function.is_constant and "TCONV_CONSTANT" not in _head_around(call))
            or function.struct is not None
            or word_count(text, name) != 2
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
    function = function_around(node)
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


def _body(parsed: Text, function: Definition, call: Node) -> Edit | None:
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
    apart = bool(own & declared_anywhere(caller)) or statement.parent.type != "compound_statement"
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


def _statement_of(function: Definition, call: Node) -> tuple[Node | None, Node | None]:
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


def _given(parsed: Text, function: Definition, call: Node) -> tuple[list[str], list[Edit]] | None:
    """Declarations of parameters that stay variables, and what takes the place of the others."""
    arguments, body = field(call, "arguments").named_children, function.body
    words_given = set(re.findall(r"\w+", " ".join(map(parsed.of, arguments))))
    if len(arguments) != len(function.names) or words_given & declared_anywhere(body):
        return None
    lines: list[str] = []
    pieces: list[Edit] = []
    for parameter, name, argument in zip(function.parameters, function.names, arguments, strict=True):
        if not name:
            continue
        uses = [node for node in walk(body) if is_variable(node) and words(node) == name]
        text, given = parsed.of(parameter), parsed.of(argument)
        by_reference = "&" in text
        changed = not by_reference and changes(words(body), name)
        places = ("identifier", "field_expression", "subscript_expression")
        stands = is_simple(argument) or (by_reference and argument.type in places)
        stands = stands or (len(uses) == 1 and not _in_loop(uses[0], body) and not does_something(argument))
        if not uses or (stands and not changed):
            for use in uses:
                bare = argument.type in ONE_PART or (use.parent is not None and use.parent.type in APART)
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


def declared_anywhere(node: Node) -> set[str]:
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
