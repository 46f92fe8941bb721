"""Lines of the primitives that stand for one type or one size of products each, without those that no kernel takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tconv.kernels.source import ELEMENT
from tconv.planner import FAMILIES, Kernel

#: Macros that make one product each of their first argument, a type or rows of weights.
_OF_TYPES, _OF_ROWS = "TCONV_MATRIX_PRODUCT", "TCONV_WARPGROUP_PRODUCTS"
_LINE = re.compile(rf"^({_OF_TYPES}|{_OF_ROWS})\((\w+), .*\)\n", re.MULTILINE)
#: Eight rows have a register: macros by how often eight of those, each made of a smaller one.
_ROWS_OF_OCTET = 16
_REGISTERS = re.compile(r"^#define (TCONV_(?:NUMBERS|SUMS)_\d+) (?:.*\\\n)*.*\n", re.MULTILINE)


def listed(text: str, kernels: Sequence[Kernel[Any]]) -> str:
    """The primitives for products that `kernels` take."""
    rows = {FAMILIES[k.family].constants(k)["product_rows"] for k in kernels if k.family == "wgmma"}
    of_warps = [k for k in kernels if k.family == "mma"]
    types = {ELEMENT.get(k.layer.precision, "float").removeprefix("tconv::") for k in of_warps}
    wanted = {_OF_TYPES: types, _OF_ROWS: set(map(str, rows))}
    text = _LINE.sub(lambda line: line[0] if line[2] in wanted[line[1]] else "", text)
    macros = {match[1]: match[0] for match in _REGISTERS.finditer(text)}
    names = {f"TCONV_{kind}_{count // _ROWS_OF_OCTET}" for kind in ("NUMBERS", "SUMS") for count in rows}
    used: set[str] = set()
    while names - used:
        used |= names
        names = {name for macro in used for name in macros if re.search(rf"\b{name}\b", macros[macro])}
    return _REGISTERS.sub(lambda macro: macro[0] if macro[1] in used else "", text)
