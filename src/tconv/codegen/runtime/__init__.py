"""The part of a generated file that is the same in all of them: modules of this folder, copied one behind the other.

`PARTS` has their order. Of each the text below its mark is copied, so what stands above it is for those who read or
check the module here. Some parts only some files have, and within a part what stands between two marks
(`tconv.codegen.marks`). `generate` fills in the places that are empty here, as ``_RECORDED = {}``.

All of it runs where generated files run: Python 3.8 and PyTorch 1.13 on.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tconv.codegen.marks import marks, only, unmarked

#: What marks ask: whether the file has layers with something behind them; a program among that; one with tensors that
#: scale, for whose gradients there are programs of their own; modules in a row that it hands to a layer.
EPILOGUES, PROGRAMS, SCALES, SEQUENCES = (
    "where epilogues are fused",
    "where programs are computed",
    "where tensors scale",
    "where sequences are fused",
)
#: Whether it calls functions of torch; whether layers come to the model that its text does not construct, or lazy ones;
#: and whether weights are put into another order.
FUNCTIONS, ELSEWHERE, LAZY, PREPARED = (
    "where functions are called",
    "where layers are built elsewhere",
    "where layers are lazy",
    "where weights are prepared",
)
#: In the order in which they stand in a file, with what a file has them for; "" where every file has them.
PARTS = (
    ("records", ""),
    ("known_epilogues", PROGRAMS),
    ("dispatch", ""),
    ("launch", ""),
    ("conv_transpose", ""),
    ("functions", FUNCTIONS),
    ("epilogues", EPILOGUES),
    ("gradients", PROGRAMS),
    ("equal", ""),
    ("modules", ""),
    ("built_elsewhere", ELSEWHERE),
    ("sequences", SEQUENCES),
    ("model", ""),
)
#: What stands at its end.
BELOW = "binding"
#: By which epilogues are handed to layers.
_OF_EPILOGUES = ("epilogues", "gradients", "equal", "sequences")
_MARK = "# ---- copied from here on\n"


@cache
def part(name: str) -> str:
    """The text of a part, with its marks."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return text.partition(_MARK)[2].strip("\n") + "\n"


def text_for(wanted: Mapping[str, bool]) -> str:
    """What stands above the model in a file, by what that needs."""
    parts = [part(name) for name, when in PARTS if not when or wanted[when]]
    return "\n\n\n".join(only(text, {mark: wanted[mark] for mark in marks(text)}).strip("\n") for text in parts)


def epilogues_text() -> str:
    """What hands epilogues to layers."""
    return "\n\n\n".join(unmarked(part(name)) for name in _OF_EPILOGUES)


@cache
def names() -> dict[str, bool]:
    """The module-level names of all parts; True for those that an import binds."""
    found: dict[str, bool] = {}
    for name in (*(name for name, _ in PARTS), BELOW):
        for node in ast.parse(part(name)).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.update({alias.asname or alias.name: True for alias in node.names})
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = False
            elif isinstance(node, ast.Assign | ast.For):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update({n.id: False for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)})
    return found
