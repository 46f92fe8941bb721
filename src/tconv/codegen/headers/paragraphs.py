"""Paragraphs of a header that nothing uses, macros among them, left out."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Za-z_]\w*")
#: The first part of names that a macro puts together.
_PASTED = re.compile(r"([A-Za-z_]\w*)##")
#: What a paragraph at the left margin defines: a macro, a type, a function or a constant.
_DEFINITION = re.compile(
    r"^(?:#\s*define\s+(\w+)"
    r"|(?:struct|class|union|enum class|enum)\s+(?:alignas\([^)]*(?:\([^)]*\)[^)]*)*\)\s*)?(?:[A-Z_]+\s+)?(\w+)"
    r"|using\s+(\w+)"
    r"|(?:TCONV_DEVICE|TCONV_CONSTANT|constexpr|inline|static)\b[^(={]*?(\w+)\s*(?:<[^>]*>)?\s*[(={])",
    re.MULTILINE,
)
#: A macro that defines a function of the name that it is given first.
_DEFINER = re.compile(r"^#define (\w+)\(name\b", re.MULTILINE)


def used_paragraphs(library: str, user: str) -> str:
    """`library` without the paragraphs that define only what neither `user` nor a kept paragraph mentions.

    A paragraph starts at the left margin after a blank line, outside of conditions of the preprocessor.
    Those that define nothing (comments, namespaces) stay.
    """
    paragraphs: list[str] = []
    for paragraph in re.split(r"(?<=\n)\n+(?=\S)", library):
        if paragraphs and _is_open(paragraphs[-1]):
            paragraphs[-1] += f"\n{paragraph}"
        else:
            paragraphs.append(paragraph)
    defined = list(map(_defined, paragraphs))
    kept = {number for number, names in enumerate(defined) if not names}
    mentioned, pasted = set(_WORD.findall(user)), set(_PASTED.findall(user))
    while True:
        found = {
            number
            for number, names in enumerate(defined)
            if number not in kept and (names & mentioned or any(name.startswith(tuple(pasted)) for name in names))
        }
        if not found:
            break
        kept |= found
        for number in found:
            mentioned.update(_WORD.findall(paragraphs[number]))
            pasted.update(_PASTED.findall(paragraphs[number]))
    return "\n".join(paragraphs[number] for number in sorted(kept))


def _is_open(paragraph: str) -> bool:
    """Whether a condition of the preprocessor does not end in it."""
    return len(re.findall(r"^#if", paragraph, re.MULTILINE)) > len(re.findall(r"^#endif", paragraph, re.MULTILINE))


def _defined(paragraph: str) -> set[str]:
    names = {name for match in _DEFINITION.finditer(paragraph) for name in match.groups() if name}
    for definer in _DEFINER.findall(paragraph):
        names.update(re.findall(rf"^{definer}\((\w+)", paragraph, re.MULTILINE))
    return names
