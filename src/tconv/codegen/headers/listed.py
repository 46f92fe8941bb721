"""Macros of the primitives that define products of some types and sizes, for those that kernels take."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from tconv.kernels.source import ELEMENT
from tconv.planner import FAMILIES, Kernel

#: Macros that make one product each of their first argument, a type or rows of weights; and what the latter call.
_OF_TYPES = "TCONV_MATRIX_PRODUCT"
_OF_ROWS, _OF_BOTH = "TCONV_(?:WARPGROUP|SHARED)_PRODUCTS", "TCONV_(?:WARPGROUP|SHARED)_PRODUCT"
_LINE = re.compile(rf"^( *)({_OF_TYPES}|{_OF_ROWS}|{_OF_BOTH})\((\w+), [^\n]*\)( *\\)?\n", re.MULTILINE)
#: Eight rows have a register: macros by how often eight of those, each made of a smaller one.
_ROWS_OF_OCTET = 16
_REGISTERS = re.compile(r"^#define (TCONV_(?:NUMBERS|ACCUMULATORS)_\d+) ((?:.*\\\n)*.*)\n", re.MULTILINE)
_MACRO = re.compile(r"^#define (\w+)\(([^)]*)\) *((?:[^\n]*\\\n)*[^\n]*)\n", re.MULTILINE)
_CALL = re.compile(r"^ *(TCONV_\w+)\(([^\n]*)\)\n", re.MULTILINE)
#: So many products are written out; more are shorter as calls of macros.
_MOST_WRITTEN_OUT = 2
_STRING = r'"(?:[^"\\]|\\.)*"'
_STRINGS = re.compile(rf"(?P<indent> *){_STRING}(?:\s+{_STRING})+|(?<=\(){_STRING}(?:\s+{_STRING})+")
_COLUMNS, _INDENT = 100, 8 * " "


def listed(text: str, kernels: Sequence[Kernel[Any]]) -> str:
    """The primitives for products that `kernels` take."""
    rows = {
        constants["product_rows"] for k in kernels if "product_rows" in (constants := FAMILIES[k.family].constants(k))
    }
    types = {ELEMENT.get(k.layer.precision, "float").removeprefix("tconv::") for k in kernels}
    counts = set(map(str, rows))

    def needed(line: re.Match[str]) -> str:
        return line[0] if line[3] in (counts if line[2].endswith("S") else types) or line[3] == "element" else ""

    text = _LINE.sub(needed, text)
    text = re.sub(r" *\\\n(?=TCONV|#undef)", "\n", text)  # a macro's last line went
    macros = {match[1]: match[0] for match in _REGISTERS.finditer(text)}
    names = {f"TCONV_{kind}_{count // _ROWS_OF_OCTET}" for kind in ("NUMBERS", "ACCUMULATORS") for count in rows}
    used: set[str] = set()
    while names - used:
        used |= names
        names = {name for macro in used for name in macros if re.search(rf"\b{name}\b", macros[macro])}
    text = _REGISTERS.sub(lambda macro: macro[0] if macro[1] in used else "", text)
    return text if len(rows) * len(types) > _MOST_WRITTEN_OUT else _written_out(text)


def _written_out(text: str) -> str:
    """With what is defined by macros that end with an ``#undef``, in place of their calls."""
    macros = {match[1]: match for match in _MACRO.finditer(text) if f"#undef {match[1]}\n" in text}
    pieces = {match[1]: " ".join(match[2].replace("\\\n", " ").split()) for match in _REGISTERS.finditer(text)}

    def written(call: re.Match[str]) -> str:
        if call[1] not in macros:
            return call[0]
        _, parameters, body = macros[call[1]].groups()
        arguments = re.split(r", (?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", call[2])
        body = _with_arguments(body, dict(zip(parameters.split(", "), arguments, strict=True)))
        while (more := re.sub(r"\bTCONV_(?:NUMBERS|ACCUMULATORS)_\d+\b", lambda piece: pieces[piece[0]], body)) != body:
            body = more
        return _STRINGS.sub(_joined, _CALL.sub(written, body))

    for macro in macros.values():
        text = text.replace(macro[0], "").replace(f"#undef {macro[1]}\n", "")
    return _REGISTERS.sub("", _CALL.sub(written, text))


def _with_arguments(body: str, arguments: dict[str, str]) -> str:
    """A macro's body as the preprocessor writes it, with the lines that it has."""
    names = "|".join(arguments)
    pattern = re.compile(rf"({_STRING})|##({names})\b|#({names})\b|\b({names})\b(?!##)")

    def of(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        return arguments[match[2]] if match[2] else f'"{arguments[match[3]]}"' if match[3] else arguments[match[4]]

    lines = [line.rstrip("\\").rstrip() for line in pattern.sub(of, body).split("\n")]
    return "\n".join(line for line in textwrap.dedent("\n".join(lines)).split("\n") if line) + "\n"


def _joined(strings: re.Match[str]) -> str:
    """Strings beside each other as few as fit into lines."""
    text = "".join(each[1:-1] for each in re.findall(_STRING, strings[0]))
    indent = strings["indent"] or ""
    lines = textwrap.wrap(text, _COLUMNS, drop_whitespace=False, break_long_words=False, break_on_hyphens=False)
    return indent + f"\n{indent or _INDENT}".join(f'"{line}"' for line in lines)
