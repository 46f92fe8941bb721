"""Lines that became shorter, filled again."""

from __future__ import annotations

import re
from functools import partial

from tree_sitter import Node

from tconv.codegen.headers.syntax import Text, walk

_COLUMNS = 120
#: What the emulator has in its own words is left out there.
_NOT_EMULATED = "#if !defined(TCONV_EMULATOR)"
#: Empty lines behind another, behind an opening brace, and before a closing one.
_EMPTY = re.compile(r"\n(?=\n\n)|(?<=\{)\n(?=\n)|\n(?=\n *\};?\n)")
#: A macro, since a pragma takes a line.
UNROLL = "TCONV_UNROLL"
_UNROLLED = re.compile(r"^#pragma unroll\n( *)(for [^\n]*)", re.MULTILINE)
_TEMPLATE = re.compile(r"^( *template <[^\n]*>)\n *([^\n]*)", re.MULTILINE)
#: One statement behind a condition or in a loop, and in a function.
_ALONE = re.compile(r"^( *(?:\w+ )?(?:if|for|while) [^\n]*\)) \{\n *([^\n{};]*;)\n *\}$", re.MULTILINE)
_BODY = re.compile(r"^([^\n]*\)(?: const)?) \{\n *([^\n{};]*;)\n *\}$", re.MULTILINE)
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


def compact(text: str) -> str:
    """`text` with what stands above a loop or a declaration beside it, and short bodies in the line of their heads.

    Loops are unrolled by `UNROLL`, which must be defined.
    """
    bodies = ((_ALONE, r"\1 \2"), (_BODY, r"\1 { \2 }"))
    for two, beside in ((_UNROLLED, rf"\1{UNROLL} \2"), (_TEMPLATE, r"\1 \2"), *bodies):
        text = two.sub(partial(_if_it_fits, beside=beside), text)
    return text


def _if_it_fits(match: re.Match[str], beside: str) -> str:
    line = match.expand(beside)
    return line if len(line) <= _COLUMNS else match[0]


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
