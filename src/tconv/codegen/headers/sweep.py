"""Definitions that nothing uses, left out of headers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from tconv.codegen.headers.layout import wrapped
from tconv.codegen.headers.syntax import STRUCTS, Text, below, declared_name, field, walk
from tconv.codegen.headers.syntax import parsed as parsed_text

_WORD = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(r"(?<![.\w])(?<!->)[A-Za-z_]\w*")
_QUALIFIED = re.compile(r"(?:\.|->|::)\s*(?:template )?([A-Za-z_]\w*)")
_COMMENT = re.compile(r"//[^\n]*")
#: What is left of a condition of the preprocessor when nothing is left in it, with the comment above.
_EMPTY = re.compile(r"(?://[^\n]*\n)*#if[^\n]*\n\s*#endif[^\n]*\n")
_CONSTANT = re.compile(r"(static )?const(expr)? ")
_HEADING = "// ----"


def swept(texts: Sequence[str], user: str, settled: set[str] | None = None) -> list[str]:
    """`texts` without the functions, types, constants and members that neither they nor `user` mention.

    Args:
        settled: definitions whose locals are all used: it grows.
    """
    settled = set() if settled is None else settled
    while True:
        mentioned = _Mentions.of(user, *texts)
        less = [_without_unused(text, mentioned, settled) for text in texts]
        if less == list(texts):
            return less
        texts = less


def _words(text: str) -> list[str]:
    return _WORD.findall(_COMMENT.sub("", text))


def _variables(text: str) -> list[str]:
    """Words that are no members' names."""
    return _VARIABLE.findall(_COMMENT.sub("", text))


@dataclass(frozen=True)
class _Mentions:
    """How often names stand in some texts: anywhere, and behind a dot, an arrow or two colons, as members do."""

    words: Counter[str]
    qualified: Counter[str]

    @staticmethod
    def of(*texts: str) -> _Mentions:
        code = [_COMMENT.sub("", text) for text in texts]
        return _Mentions(*(Counter(name for text in code for name in of.findall(text)) for of in (_WORD, _QUALIFIED)))


@dataclass(frozen=True)
class _Item:
    """A definition: what it names, from where to where it stands, and what takes its place where it goes."""

    names: frozenset[str]
    start: int
    end: int
    node: Node
    instead: str = ""
    loses_last: bool = False


def _without_unused(text: str, mentioned: _Mentions, settled: set[str]) -> str:
    """`text` without some of what nothing mentions; definitions whose locals are all used come to be `settled`."""
    parsed = parsed_text(text)
    top = list(_items(parsed, parsed.root))
    # What defines a name at the top does not use it: other definitions of it are specializations.
    own: Counter[str] = Counter()
    for item in top:
        words = Counter(_words(parsed.between(item.start, item.end)))
        own.update({name: words[name] for name in item.names})
    cut = []
    for item in top:
        if all(mentioned.words[name] <= own[name] for name in item.names):
            cut.append(item)
        else:
            if item.node.type == "declaration":
                cut += _of_declaration(parsed, item.node, mentioned.words)
            cut += _unused_members(parsed, item.node, mentioned)
            definition = parsed.between(item.start, item.end)
            if definition not in settled:
                unused = list(_unused_locals(parsed, item.node))
                cut += unused
                if not unused:
                    settled.add(definition)
    return _removed(parsed, cut) if cut else text


def _items(text: Text, node: Node) -> Iterator[_Item]:
    for child in node.children:
        if child.type.startswith("preproc_if"):
            yield from _items(text, child)
        else:
            names = frozenset(filter(None, _defined(text, child)))
            if names:
                yield _Item(names, child.start_byte, _behind(child), child)


def _defined(text: Text, node: Node) -> list[str]:
    """The names that a definition at the top, or a member, defines."""
    if node.type == "template_declaration":
        return _defined(text, node.named_children[-1])
    if node.type in STRUCTS and node.child_by_field_name("body") is not None:
        name = field(node, "name")
        return [declared_name(name) if name.type != "template_type" else text.of(field(name, "name"))]
    if node.type == "alias_declaration":
        return [text.of(field(node, "name"))]
    if node.type in ("function_definition", "declaration"):
        declarators = node.children_by_field_name("declarator")
        return [_function_name(text, declarator) for declarator in declarators]
    return []


def _function_name(text: Text, declarator: Node) -> str:
    name = declared_name(declarator)
    return "" if "operator" in text.of(declarator).partition("(")[0] else name


def _unused_members(text: Text, node: Node, mentioned: _Mentions) -> Iterator[_Item]:
    """Of a struct, functions, types and constants; where it has a constructor, variables too."""
    struct = node.named_children[-1] if node.type == "template_declaration" else node
    if struct.type not in STRUCTS or struct.child_by_field_name("body") is None:
        return
    own = _defined(text, node)[0]
    inside = _Mentions.of(text.of(struct))
    # Here by their names alone, elsewhere behind an object or a type.
    of_members = inside.words + (mentioned.qualified - inside.qualified)
    members = field(struct, "body").named_children
    is_built = any(own in _defined(text, member) for member in members)
    for member in members:
        if member.type in ("function_definition", "alias_declaration", "template_declaration"):
            names = frozenset(_defined(text, member))
            words = Counter(_words(text.of(member)))
            if names and own not in names and all(of_members[name] <= words[name] for name in names):
                yield _Item(names, member.start_byte, _behind(member), member)
        elif member.type == "field_declaration" and ("constexpr" in text.of(member).partition("=")[0] or is_built):
            yield from _of_declaration(text, member, of_members)


def _behind(node: Node) -> int:
    sibling = node.next_sibling
    return sibling.end_byte if sibling is not None and sibling.type == ";" else node.end_byte


def _unused_locals(text: Text, node: Node) -> Iterator[_Item]:
    """Of functions, the constants and types that the blocks which they stand in do not mention again."""
    for function in below(node, "function_definition"):
        body = function.child_by_field_name("body")
        blocks: dict[int, Counter[str]] = {}
        for each in below(body, "declaration", "alias_declaration") if body is not None else ():
            block = _block_of(each)
            if block.id not in blocks:
                blocks[block.id] = Counter(_variables(text.of(block)))
            mentioned = blocks[block.id]
            if each.type == "declaration" and (_CONSTANT.match(text.of(each)) or _only_declares(each)):
                yield from _of_declaration(text, each, mentioned)
            elif each.type == "alias_declaration" and mentioned[text.of(field(each, "name"))] < 2:
                yield _Item(frozenset(), each.start_byte, _behind(each), each)


def _block_of(node: Node) -> Node:
    """The statements in braces around one."""
    around = node.parent
    while around is not None and around.type != "compound_statement":
        around = around.parent
    assert around is not None, "the body of a function is in braces"
    return around


def _only_declares(declaration: Node) -> bool:
    """Whether nothing is called by a declaration."""
    kinds = ("call_expression", "argument_list", "initializer_list")
    return not any(node.type in kinds for node in walk(declaration))


def _of_declaration(text: Text, member: Node, mentioned: Counter[str]) -> Iterator[_Item]:
    """What of a declaration goes: all of it, or some of its declarators."""
    starts = member.children_by_field_name("declarator")
    if not starts:
        return
    ends = [each.start_byte for each in starts[1:]] + [member.end_byte]
    parts = [text.between(start.start_byte, end).rstrip(" ,;\n") for start, end in zip(starts, ends, strict=True)]
    names = [declared_name(each) for each in starts]
    kept = [part for part, name in zip(parts, names, strict=True) if not name or mentioned[name] > _count(part, name)]
    if len(kept) == len(parts):
        return
    if not kept:
        yield _Item(frozenset(names), member.start_byte, member.end_byte, member)
        return
    declared = text.between(member.start_byte, starts[0].start_byte) + ", ".join(kept) + ";"
    if "//" not in declared:
        declared = wrapped(" " * member.start_point.column + " ".join(declared.split())).strip()
    yield _Item(frozenset(names), member.start_byte, member.end_byte, member, declared, parts[-1] not in kept)


def _count(text: str, name: str) -> int:
    return Counter(_variables(text))[name]


def _removed(text: Text, cut: Sequence[_Item]) -> str:
    """The text without these, and without the comments above those that had lines of their own."""
    kept = text.bytes.decode()
    outermost = [item for item in cut if not any(other.start <= item.start and item.end < other.end for other in cut)]
    for item in sorted(outermost, key=lambda item: item.start, reverse=True):
        start, end = item.start, item.end
        line_start = kept.rfind("\n", 0, start) + 1
        rest = kept[end:].partition("\n")[0].strip()
        if not item.instead and kept[line_start:start].strip() == "" and (rest == "" or rest.startswith("//")):
            end = len(kept) if "\n" not in kept[end:] else kept.index("\n", end) + 1
            start = _with_comments(kept, line_start, end)
        if item.instead and rest.startswith("//") and item.loses_last:
            end = kept.index("\n", end)  # the comment was about that
        kept = kept[:start] + item.instead + kept[end:]
    return _EMPTY.sub("", kept)


def _with_comments(text: str, start: int, end: int) -> int:
    """Where the comment above a line begins; headings stay above what follows."""
    while start > 0:
        before = text.rfind("\n", 0, start - 1) + 1
        line = text[before:start].strip()
        heads_more = line.startswith(_HEADING) and text[end:].partition("\n")[0].strip() not in ("", "};")
        if not line.startswith("//") or heads_more:
            break
        start = before
    return start
