"""The kernel headers as one text for a generated file, without the primitives that nothing in it uses."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tconv.kernels.source import family_header, header_texts, in_namespace

_PRIMITIVES = "primitives/"
_WORD = re.compile(r"[A-Za-z_]\w*")
#: What a paragraph at the left margin defines: a macro, a type, a function or a constant.
_DEFINITION = re.compile(
    r"^(?:#\s*define\s+(\w+)"
    r"|(?:struct|class|union|enum)\s+(?:alignas\([^)]*(?:\([^)]*\)[^)]*)*\)\s*)?(?:[A-Z_]+\s+)?(\w+)"
    r"|using\s+(\w+)"
    r"|(?:TCONV_DEVICE|constexpr|inline|static)\b[^(={]*?(\w+)\s*(?:<[^>]*>)?\s*[(={])",
    re.MULTILINE,
)


def kernels_text(families: Sequence[str], user: str) -> str:
    """The headers of `families`, after those primitives that they or `user` mention."""
    texts = header_texts(list(map(family_header, families)))
    primitives = "\n".join(text for name, text in texts.items() if name.startswith(_PRIMITIVES))
    rest = "\n".join(text for name, text in texts.items() if not name.startswith(_PRIMITIVES))
    return in_namespace([used_paragraphs(primitives, rest + user), rest])


def used_paragraphs(library: str, user: str) -> str:
    """`library` without the paragraphs that define only what neither `user` nor a kept paragraph mentions.

    A paragraph starts at the left margin after a blank line. Those that define nothing (comments, namespaces) stay.
    """
    paragraphs = re.split(r"(?<=\n)\n+(?=\S)", library)
    defined = [{name for match in _DEFINITION.finditer(text) for name in match.groups() if name} for text in paragraphs]
    kept = {number for number, names in enumerate(defined) if not names}
    mentioned = set(_WORD.findall(user))
    while True:
        found = {n for n, names in enumerate(defined) if n not in kept and names & mentioned}
        if not found:
            break
        kept |= found
        mentioned.update(*(_WORD.findall(paragraphs[number]) for number in found))
    return "\n".join(paragraphs[number] for number in sorted(kept))
