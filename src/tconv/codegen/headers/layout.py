"""Lines that became shorter, filled again."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import partial

from tree_sitter import Node

from tconv.codegen.headers.syntax import Text, walk

_COLUMNS = 120
#: A line is broken behind this column, if it can be.
_WELL_FILLED = 80
#: An equals sign at which no line is broken.
_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
#: As many lines as a statement takes.
_ANY = 99
#: What the emulator has in its own words is left out there.
_NOT_EMULATED = "#if !defined(TCONV_EMULATOR)"
#: Empty lines behind another, behind an opening brace, and before a closing one.
_EMPTY = re.compile(r"\n(?=\n\n)|(?<=\{)\n(?=\n)|\n(?=\n *\};?\n)")
#: A macro, since a pragma takes a line.
UNROLL = "TCONV_UNROLL"
_UNROLLED = re.compile(r"^#pragma unroll\n( *)(for [^\n]*)", re.MULTILINE)
_TEMPLATE = re.compile(r"^( *template <[^\n]*>)\n *([^\n]*)", re.MULTILINE)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
#: What becomes one space, but for strings and before a member; and what is left out then, as before a closing brace.
_SPACES = re.compile(rf"({_STRING.pattern})|\s+(\.[a-z])|\s+")
_LOOSE = re.compile(r"(?<=[(\[]) |(?<== \{) |(?<=[^;]),? (?=\};?$)")
#: One statement behind a condition or in a loop, in a function, and one member.
_STATEMENT = r"""((?:[^\n{};"]|"[^"\n]*")*;)"""
_ALONE = re.compile(rf"^( *(?:\w+ )?(?:if|for|while) [^\n]*\)) \{{\n *{_STATEMENT}\n *\}}$", re.MULTILINE)
_BODY = re.compile(rf"^([^\n]*\)(?: const)?) \{{\n *{_STATEMENT}\n *\}}$", re.MULTILINE)
_MEMBER = re.compile(rf"^([^\n]*\bstruct [^\n{{]*) \{{\n *{_STATEMENT}\n *\}};$", re.MULTILINE)
_NOTHING = re.compile(r"(?<=\)) \{\n *\}")
#: Neighbouring constants of one type.
_CONSTANT = r"(?!char\b|short\b)\w[^\n{}\";]*;\n"
_DECLARATIONS = re.compile(
    rf"^( *(?:static constexpr|const) (?:int|bool|unsigned|long long) ){_CONSTANT}(?:\1{_CONSTANT})+", re.MULTILINE
)
#: The head of a loop before an empty line, and a pragma that is not at the margin.
_HEAD_ALONE = re.compile(r"^( +(?:for|if) [^\n]*\))\n[ \n]*\n(?= )", re.MULTILINE)
_PRAGMA_ASIDE = re.compile(r"^( +)#pragma (unroll[^\n]*)\n(?=for)", re.MULTILINE)
_FUNCTIONS = ("function_definition", "lambda_expression")
_BREAKS = re.compile(r", | (?:[-+*/%|]|&&|\|\||<<|>>) | (?=: ?)")
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
        if node.start_byte < at:
            continue
        for end, most in _ends(node):
            whole = parsed.between(node.start_byte, end)
            if "\n" not in whole or re.search(r"//|#|\{[^}]*;[^}]*;", _STRING.sub("", whole)):
                continue
            before = parsed.between(0, node.start_byte).rpartition("\n")[2]
            rest = parsed.between(end, len(parsed.bytes)).partition("\n")[0]
            joined = _in_fewer_lines(before, whole, rest, most)
            if joined is not None:
                result += [parsed.between(at, node.start_byte), joined]
                at = end
                break
    result.append(parsed.between(at, len(parsed.bytes)))
    lines = "".join(result).split("\n")
    return _EMPTY.sub("", "\n".join(broken for line in lines for broken in _broken(line.rstrip())))


def with_bodies_in_place(text: str) -> str:
    """`text` whose loops of loops that went have their bodies behind them again."""
    text = _PRAGMA_ASIDE.sub(r"#pragma \2\n\1", _HEAD_ALONE.sub(r"\1\n", text))
    parsed = Text(text)
    made, at = [], 0
    for loop in parsed.all("for_statement"):
        body = loop.child_by_field_name("body")
        before = body.prev_sibling if body is not None else None
        if body is None or before is None or body.type != "compound_statement" or before.start_byte < at:
            continue
        if body.start_point.row > before.end_point.row:
            line = parsed.between(0, loop.start_byte).rpartition("\n")[2]
            further = max(0, body.start_point.column - (len(line) - len(line.lstrip())))
            moved = re.sub(rf"\n {{{further}}}(?=[ }}])", "\n", parsed.of(body))
            made += [text[at : before.end_byte], f" {moved}"]
            at = body.end_byte
    return "".join(made) + text[at:]


def with_comments_filled(text: str) -> str:
    """`text` with comments that became too long in more lines, and those behind such lines above them."""
    made: list[str] = []
    told: list[str] = []  # what of a comment does not fit
    indent = ""

    def tell() -> None:
        head = f"{indent}// "
        made.extend(textwrap.wrap(" ".join(told), _COLUMNS, initial_indent=head, subsequent_indent=head))
        told.clear()

    for line in text.split("\n"):
        code, mark, said = line.partition("//")
        alone = bool(mark) and not code.strip()
        if told and (not alone or code != indent or not said.strip()):
            tell()
        if told or (alone and len(line) > _COLUMNS):
            indent = code
            told.append(said.strip())
        elif mark and len(line) > _COLUMNS and '"' not in code:
            made += [" " * (len(line) - len(line.lstrip())) + f"//{said}", code.rstrip()]
        else:
            made.append(line)
    return "\n".join(made)


def _in_fewer_lines(before: str, whole: str, rest: str, most: int) -> str | None:
    """`whole`, which stands between those two, in fewer lines, `most` of them; None where it needs more."""
    joined = _LOOSE.sub("", _SPACES.sub(lambda match: match[1] or match[2] or " ", whole))
    lines = _broken(before + joined + rest)
    if len(lines) > min(most, whole.count("\n")) or max(map(len, lines)) > _COLUMNS:
        return None
    if not lines[0].startswith(before) or not lines[-1].endswith(rest):
        return None
    # A line that ends within brackets of brackets is hard to read.
    if any(_depth(_masked("".join(lines[:number]))) > 1 for number in range(1, len(lines))):
        return None
    return "\n".join(lines)[len(before) :].removesuffix(rest)


def compact(text: str) -> str:
    """`text` with what stands above a loop or a declaration beside it, and short bodies in the line of their heads.

    Loops are unrolled by `UNROLL`, which must be defined.
    """
    text = _NOTHING.sub(" {}", _DECLARATIONS.sub(_declared_together, text))
    bodies = ((_ALONE, r"\1 \2"), (_BODY, r"\1 { \2 }"), (_MEMBER, r"\1 { \2 };"))
    for two, beside in ((_UNROLLED, rf"\1{UNROLL} \2"), (_TEMPLATE, r"\1 \2"), *bodies):
        text = two.sub(partial(_if_it_fits, beside=beside), text)
    return text


def _declared_together(match: re.Match[str]) -> str:
    """Neighbouring constants of one type, each of which takes a line, as few declarations of lines that are full."""
    head = match[1]
    lines: list[str] = []
    for line in match[0].splitlines():
        item = line[len(head) : -1]
        if lines and len(lines[-1]) + len(", ;") + len(item) <= _COLUMNS:
            lines[-1] += f", {item}"
        else:
            lines.append(head + item)
    return "".join(f"{line};\n" for line in lines)


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


def wrapped(line: str) -> str:
    """A line of words in several where it is long, none of which ends within ``a = 1``."""
    if len(line) <= _COLUMNS:
        return f"{line}\n"
    indent = line[: len(line) - len(line.lstrip())]
    further = f"{indent}//   " if line.lstrip().startswith("//") else f"{indent}    "
    text = line.strip().replace(" = ", _EQUALS)
    pieces = textwrap.wrap(text, _COLUMNS, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False)
    return "\n".join(pieces).replace(_EQUALS, " = ") + "\n"


def _masked(line: str) -> str:
    """With quotes in place of whole strings, so that there is nothing in them."""
    return _STRING.sub(lambda match: '"' * len(match[0]), line)


def _broken(line: str, indent: str = "") -> list[str]:
    """A line in several where it is too long: broken well filled, in few brackets, and rather behind a comma."""
    if len(line) <= _COLUMNS:
        return [line]
    masked = _masked(line)
    breaks = [match.end() for match in _BREAKS.finditer(masked, 0, _COLUMNS + 1) if match.end() <= _COLUMNS]
    good = [at for at in breaks if at >= _WELL_FILLED] or breaks[-1:]
    at = min(good, key=lambda at: (_depth(masked[:at]), masked[at - 2 : at] != ", ", -at), default=0)
    indent = indent or " " * (len(line) - len(line.lstrip()) + 4)
    return [line[:at].rstrip(), *_broken(indent + line[at:], indent)] if at > len(indent) else [line]


def _depth(text: str) -> int:
    """The brackets that are open at its end."""
    return sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))


def _statements(node: Node) -> list[Node]:
    return [each for each in walk(node) if each.type in _JOINED]


def _ends(node: Node) -> Iterator[tuple[int, int]]:
    """Where a statement ends, or what stands before its body, and how many lines that may take."""
    body = node.child_by_field_name("body") or node.child_by_field_name("consequence")
    if body is None:
        yield node.end_byte, _ANY
        return
    if node.type in _FUNCTIONS and _is_short(body):
        yield node.end_byte, 1
    before = body.prev_sibling
    if before is not None:
        yield before.end_byte, _ANY


def _is_short(body: Node) -> bool:
    return len(body.named_children) == 1 and body.named_children[0].type in ("return_statement", "expression_statement")
