"""The kernel headers as texts for a generated file: what its kernels reach, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tconv.codegen.headers.constants import Constants
from tconv.codegen.headers.fold import folded
from tconv.codegen.headers.layout import UNROLL, compact, filled
from tconv.codegen.headers.listed import listed
from tconv.codegen.headers.paragraphs import used_paragraphs
from tconv.codegen.headers.sweep import swept
from tconv.codegen.headers.syntax import Text
from tconv.codegen.marks import unmarked
from tconv.kernels.source import (
    PROGRAMS,
    LaunchNumbers,
    configuration,
    family_header,
    header_texts,
    prepares,
)
from tconv.planner import Kernel
from tconv.pointwise.functor import functor
from tconv.pointwise.program import parse

#: What families share.
PRIMITIVES = "primitives"
#: What the host's side asks of them.
_HOST_ASKS = "Sizes index_limit " + " ".join(f".{name}" for name in LaunchNumbers._fields[:-1])
_FIRST_MACRO = "#define TCONV_CONSTANT "
#: What a header says of itself, which names other files.
_FIRST_COMMENT = re.compile(r"\A(//[^\n]*\n)+")


def kernel_texts(kernels: Sequence[Kernel[Any]]) -> dict[str, str]:
    """The headers of the families of `kernels`, after `PRIMITIVES`.

    Each text is to be pasted into one `in_namespace`, a family's behind that of the primitives. What the constants of
    its kernels decide is decided in a family's text.
    """
    families = sorted({kernel.family for kernel in kernels})
    # What instances call.
    asked = [f"{name}() {name}_launch()" for name in families]
    asked += sorted({f"{kernel.family}_weights()" for kernel in kernels if kernel.prepares_weights})
    asked += ["preparing_threads"] * prepares(kernels)
    user = " ".join([_HOST_ASKS, *asked, *(configuration(kernel, "any") for kernel in kernels)])
    user = " ".join([user, *sorted({f"{kernel.family}_inputs()" for kernel in kernels if kernel.prepares_inputs})])
    programs = sorted({kernel.layer.epilogue for kernel in kernels} - {""})
    user = " ".join([user, *(functor(parse(program), "program") for program in programs)])
    headers = header_texts([*map(family_header, families), *[PROGRAMS] * bool(programs)])
    primitives = "\n".join(text for name, text in headers.items() if name.startswith(f"{PRIMITIVES}/"))
    texts = {PRIMITIVES: listed(primitives, kernels)}
    for family in families:
        of_family = [
            unmarked(text) if name == family_header(family) else _FIRST_COMMENT.sub("", text)
            for name, text in header_texts([family_header(family)]).items()
            if not name.startswith(f"{PRIMITIVES}/")
        ]
        parsed = [Text(text) for text in of_family]
        constants = Constants(family, [kernel for kernel in kernels if kernel.family == family], parsed)
        of_family = [folded(text, constants) for text in parsed]
        texts[family] = "\n".join(of_family)
    while True:
        texts[PRIMITIVES] = used_paragraphs(texts[PRIMITIVES], "\n".join([user, *(texts[name] for name in families)]))
        less = dict(zip(texts, swept(list(texts.values()), user), strict=True))
        if less == texts:
            texts = {name: compact(filled(text)).lstrip("\n") for name, text in texts.items()}
            texts[PRIMITIVES] = texts[PRIMITIVES].replace(
                _FIRST_MACRO, f'#define {UNROLL} _Pragma("unroll")\n{_FIRST_MACRO}'
            )
            return texts
        texts = less
