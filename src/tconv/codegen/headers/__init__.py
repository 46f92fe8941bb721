"""The kernel headers as texts for a generated file: what its kernels reach, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tconv.codegen.headers.constants import Constants
from tconv.codegen.headers.fold import folded
from tconv.codegen.headers.layout import filled
from tconv.codegen.headers.paragraphs import used_paragraphs
from tconv.codegen.headers.sweep import swept
from tconv.codegen.headers.syntax import Text
from tconv.kernels.source import family_header, header_texts
from tconv.planner import Kernel

#: What families share.
PRIMITIVES = "primitives"
#: What a header says of itself, which names other files.
_FIRST_COMMENT = re.compile(r"\A(//[^\n]*\n)+")


def kernel_texts(kernels: Sequence[Kernel[Any]], general: str, user: str) -> dict[str, str]:
    """The headers of the families of `kernels` and of the `general` one, after `PRIMITIVES`.

    Each text is to be pasted into one `in_namespace`, a family's behind that of the primitives. What the constants of
    its kernels decide is decided in a family's text, but for the `general` one, of which any layer may come.

    Args:
        user: what else mentions them.
    """
    families = sorted({general, *(kernel.family for kernel in kernels)})
    user = " ".join([user, *families, *map("{}_weights".format, families)])  # what instances call
    headers = header_texts(list(map(family_header, families)))
    texts = {PRIMITIVES: "\n".join(text for name, text in headers.items() if name.startswith(f"{PRIMITIVES}/"))}
    for family in families:
        of_family = [
            text if name == family_header(family) else _FIRST_COMMENT.sub("", text)
            for name, text in headers.items()
            if name.startswith(f"{family}/")
        ]
        if family != general:
            of_family = _decided(of_family, [kernel for kernel in kernels if kernel.family == family])
        texts[family] = "\n".join(of_family)
    while True:
        texts[PRIMITIVES] = used_paragraphs(texts[PRIMITIVES], "\n".join([user, *(texts[name] for name in families)]))
        less = dict(zip(texts, swept(list(texts.values()), user), strict=True))
        if less == texts:
            return {name: filled(text) for name, text in texts.items()}
        texts = less


def _decided(texts: Sequence[str], kernels: Sequence[Kernel[Any]]) -> list[str]:
    parsed = [Text(text) for text in texts]
    constants = Constants(kernels, parsed)
    return [folded(text, constants) for text in parsed]
