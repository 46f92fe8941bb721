"""The CUDA text of a written file, a family of kernels at a time."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tconv.codegen.headers import PRIMITIVES, kernel_texts
from tconv.codegen.headers.whole import whole
from tconv.codegen.marks import only
from tconv.kernels import source
from tconv.planner import Kernel

_WIDTH = 120
#: An equals sign at which no line is broken.
_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"


class Written(NamedTuple):
    """A kernel, and what its function is called in the text."""

    kernel: Kernel[Any]
    name: str


def cuda_texts(kernels: Sequence[Written]) -> tuple[str, dict[str, str]]:
    """What families share, and the text of each: its templates, a section for each kernel, and what launches them.

    A family's text stands behind the shared one, which is empty where there is one family: then all is the family's.
    """
    if not kernels:
        return "", {}
    if _evaluates(kernels):
        family = kernels[0].kernel.family
        return "", {family: f"{_sectioned(whole(kernels), kernels)}\n{_host(family, kernels)}"}
    headers = kernel_texts([each.kernel for each in kernels], "")
    shared = headers.pop(PRIMITIVES)
    one = len(headers) == 1
    texts = {
        family: source.in_namespace([shared, text] if one else [text])
        + "".join(section(each) for each in kernels if each.kernel.family == family)
        + f"\n{_host(family, [each for each in kernels if each.kernel.family == family])}"
        for family, text in headers.items()
    }
    return ("" if one else source.in_namespace([shared])), texts


def _evaluates(kernels: Sequence[Written]) -> bool:
    """Whether the headers are evaluated for these kernels, rather than folded.

    So far they are for kernels on CUDA cores in one type, where a file has no others, and no programs behind layers.
    Not in float64: there evaluated texts take up to 16 registers more than the library's.
    """
    precisions = {each.kernel.layer.precision for each in kernels}
    return (
        len(precisions) == 1
        and precisions != {"fp64"}
        and all(each.kernel.family == "direct" and not each.kernel.layer.tail for each in kernels)
    )


def _sectioned(text: str, kernels: Sequence[Written]) -> str:
    """A whole text with the mark of its section in front of each kernel's functions."""
    for _, name in kernels:
        head = rf'^extern "C" __global__ void __launch_bounds__\([^)]*\)\n{name}\('
        text = re.sub(head, rf"{source.SECTION}{name}\n\g<0>", text, count=1, flags=re.MULTILINE)
    return text


def section(written: Written) -> str:
    """A kernel's part of its family's text."""
    lines = source.functions(*written).splitlines()
    return f"\n{source.SECTION}{written.name}\n" + "".join(map(_wrapped, lines))


def _host(family: str, kernels: Sequence[Written]) -> str:
    wanted = {
        "where weights are prepared": source.prepares_weights(family),
        "where inputs are prepared": any(source.prepares_inputs(each.kernel) for each in kernels),
        "where programs are computed": any(each.kernel.layer.tail for each in kernels),
    }
    cases = "".join(_wrapped(f"    case {place}: {_launched(each)}") for place, each in enumerate(kernels)).rstrip()
    return only(_host_text(), wanted).replace("KERNELS", cases)


@cache
def _host_text() -> str:
    return Path(__file__).with_name("host.cuh").read_text(encoding="utf-8")


def _launched(written: Written) -> str:
    kernel, name = written
    functions = [name, "nullptr", "nullptr"]
    if source.prepares_weights(kernel.family):
        functions[1] = source.PREPARING.format(name)
    if source.prepares_inputs(kernel):
        functions[2] = source.PREPARING_INPUTS.format(name)
    pointers = [each if each == "nullptr" else f"(void*){each}" for each in functions]
    return f"return launched({', '.join(['numbers', f'tconv::{source.launch_name(name)}', *pointers])});"


def _wrapped(line: str) -> str:
    """A line in several where it is long, none of which ends within ``a = 1``."""
    if len(line) <= _WIDTH:
        return f"{line}\n"
    indent = line[: len(line) - len(line.lstrip())]
    comment = line.lstrip().startswith("//")
    further = f"{indent}//   " if comment else f"{indent}    "
    text = line.strip().replace(" = ", _EQUALS)
    pieces = textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False)
    return "\n".join(pieces).replace(_EQUALS, " = ") + "\n"
