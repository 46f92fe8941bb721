"""Parts of a text that only some files have: each stands between two equal marks, ``# ---- where …``."""

from __future__ import annotations

import re
from collections.abc import Mapping

_MARK = re.compile(r"^ *(?:#|//) ---- (where .*)\n", re.MULTILINE)


def only(text: str, wanted: Mapping[str, bool]) -> str:
    """`text` without the parts that are not wanted, and without the marks.

    Raises:
        ValueError: the marks are not pairs of those in `wanted`.
    """
    parts = _MARK.split(text)
    if parts[1::4] != parts[3::4] or set(parts[1::4]) != set(wanted):
        raise ValueError(f"the text has the marks {parts[1::2]}; it needs pairs of {sorted(wanted)}")
    return parts[0] + "".join(
        (part if wanted[mark] else "") + behind
        for mark, part, behind in zip(parts[1::4], parts[2::4], parts[4::4], strict=True)
    )


def marks(text: str) -> set[str]:
    """What parts of `text` are about: ``where …``."""
    return set(_MARK.findall(text))


def unmarked(text: str) -> str:
    """`text` with all its parts, without the marks."""
    return _MARK.sub("", text)
