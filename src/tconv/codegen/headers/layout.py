"""Lines that became shorter, filled again."""

from __future__ import annotations

import re

from tree_sitter import Node

from tconv.codegen.headers.syntax import Text, walk

_COLUMNS = 120
#: What the emulator has in its own words is left out there.
_NOT_EMULATED = "#if !defined(TCONV_EMULATOR)"
#: Empty lines behind another, behind an opening brace, and before a closing one.
_EMPTY = re.compile(r"\n(?=\n\n)|(?<=\{)\n(?=\n)|\n(?=\n *\};?\n)")
_FUNCTIONS = ("function_definition", "lambda_expression")
_BREAKS = re.compile(r", | (?:[-+*/%|]|&&|\|\||<<|>>) ")
_JOINED = (
    *("field_declaration", "declaration", "expression_statement", "return_statement", "alias_declaration"),
    *("for_statement", "if_statement", *_FUNCTIONS),
)


def filled(text: str) -> str:
    """`text` with statements in one line that stand in several and need not, and without repeated empty lines.

    Neighbouring parts that the emulator has in its own words are one.
    """
    parsed = Text(_together(text))
    result, at = [], 0
    for node in _statements(parsed.root):
        end = _head_end(node)
        if node.start_byte < at:
            continue
        whole = parsed.between(node.start_byte, end)
        if "\n" not in whole or re.search(r'//|#|"|\{[^}]*;[^}]*;', whole):
            continue
        joined = re.sub(r"(?<=[(\[]) ", "", " ".join(whole.split()))
        rest = parsed.between(end, len(parsed.bytes)).partition("\n")[0]
        if node.start_point.column + len(joined) + len(rest) <= _COLUMNS:
            result += [parsed.between(at, node.start_byte), joined]
            at = end
    result.append(parsed.between(at, len(parsed.bytes)))
    lines = "".join(result).split("\n")
    return _EMPTY.sub("", "\n".join(broken for line in lines for broken in _broken(line.rstrip())))


def _together(text: str) -> str:
    """`text` without the ends and beginnings of `_NOT_EMULATED` that have nothing but comments between them."""
    lines = text.split("\n")
    opened, last, dropped = [], None, set()
    for number, line in enumerate(lines):
        if line.startswith("#if"):
            if line == _NOT_EMULATED and last is not None:
                dropped |= {last, number}
            opened.append(line)
        elif line.startswith("#endif") and opened.pop() == _NOT_EMULATED and not opened:
            last = number
            continue
        if line and not line.startswith("//"):
            last = None
    return "\n".join(line for number, line in enumerate(lines) if number not in dropped)


def _broken(line: str) -> list[str]:
    """A line in several where it is too long."""
    if len(line) <= _COLUMNS:
        return [line]
    at = max((match.end() for match in _BREAKS.finditer(line, 0, _COLUMNS) if match.end() <= _COLUMNS), default=0)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return [line[:at].rstrip(), *_broken(indent + line[at:])] if at > len(indent) else [line]


def _statements(node: Node) -> list[Node]:
    return [each for each in walk(node) if each.type in _JOINED]


def _head_end(node: Node) -> int:
    """Where a statement ends, or what stands before its body."""
    body = node.child_by_field_name("body") or node.child_by_field_name("consequence")
    if body is None or (node.type in _FUNCTIONS and _is_short(body)):
        return node.end_byte
    before = body.prev_sibling
    return node.start_byte if before is None else before.end_byte


def _is_short(body: Node) -> bool:
    return len(body.named_children) == 1 and body.named_children[0].type in ("return_statement", "expression_statement")
