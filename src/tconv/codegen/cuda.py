"""The CUDA text of a written file, a family of kernels at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tconv.codegen.headers import kernel_texts
from tconv.codegen.headers.layout import wrapped
from tconv.codegen.headers.whole import whole
from tconv.codegen.marks import only
from tconv.kernels import source
from tconv.planner import Kernel


class Written(NamedTuple):
    """A kernel, and what its function is called in the text."""

    kernel: Kernel[Any]
    name: str


def cuda_texts(kernels: Sequence[Written]) -> dict[str, str]:
    """The text of each family: its templates, a section for each kernel, and what launches them."""
    texts = {}
    for family in sorted({each.kernel.family for each in kernels}):
        own = [each for each in kernels if each.kernel.family == family]
        text = _sectioned(whole(own), own) if _evaluates(own) else _folded(own)
        texts[family] = f"{text}\n{_host(family, own)}"
    return texts


def _evaluates(kernels: Sequence[Written]) -> bool:
    """Whether the headers are evaluated for these kernels of a family, rather than folded.

    Not for those on CUDA cores in float64: there evaluated texts take up to 16 registers more than the library's.
    """
    return not any(each.kernel.family == "direct" and each.kernel.layer.precision == "fp64" for each in kernels)


def _folded(kernels: Sequence[Written]) -> str:
    headers = kernel_texts([each.kernel for each in kernels])
    return source.in_namespace(headers.values()) + "".join(map(_section, kernels))


def _sectioned(text: str, kernels: Sequence[Written]) -> str:
    """A whole text with the mark of its section in front of each kernel's functions."""
    for _, name in kernels:
        head = rf'^extern "C" __global__ void __launch_bounds__\([^)]*\)\n{name}\('
        text = re.sub(head, rf"{source.SECTION}{name}\n\g<0>", text, count=1, flags=re.MULTILINE)
    return text


def _section(written: Written) -> str:
    """A kernel's part of its family's text."""
    lines = source.functions(*written).splitlines()
    return f"\n{source.SECTION}{written.name}\n" + "".join(map(wrapped, lines))


def _host(family: str, kernels: Sequence[Written]) -> str:
    wanted = {
        "where a kernel prepares": (prepares := source.prepares([each.kernel for each in kernels])),
        "where none prepares": not prepares,
        "where weights are prepared": any(each.kernel.prepares_weights for each in kernels),
        "where inputs are prepared": any(each.kernel.prepares_inputs for each in kernels),
        "where programs are computed": any(each.kernel.layer.epilogue for each in kernels),
    }
    cases = "".join(
        wrapped(f"    case {place}: {_launched(each, prepares)}") for place, each in enumerate(kernels)
    ).rstrip()
    return only(_host_text(), wanted).replace("KERNELS", cases)


@cache
def _host_text() -> str:
    return Path(__file__).with_name("host.cuh").read_text(encoding="utf-8")


def _launched(written: Written, prepares: bool) -> str:
    kernel, name = written
    functions = [(name, True)]
    if prepares:
        functions += [
            (source.PREPARING.format(name), kernel.prepares_weights),
            (source.PREPARING_INPUTS.format(name), kernel.prepares_inputs),
        ]
    pointers = [f"(void*){function}" if there else "nullptr" for function, there in functions]
    return f"return launched({', '.join(['numbers', f'tconv::{source.launch_name(name)}', *pointers])});"
