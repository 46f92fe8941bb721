"""The runtime of generated files: modules of this folder, copied one after the other in the order of `PARTS`.

Only the text below a module's mark is copied. The lines above the mark serve readers and checkers of the module here.
A file gets only the parts that it needs. Within a part, the same holds for lines between two equal marks
(`tconv.codegen.marks`). `generate` fills in the places that are empty here, as ``_RECORDED = {}``.

All of it runs where generated files run: on Python 3.8 and PyTorch 1.13 or newer.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tconv.codegen.marks import marks, only, unmarked

#: What marks ask of a file: whether layers have epilogues; whether kernels compute any of them, by programs; whether a
#: program scales by a tensor, whose gradient needs its own program; whether operands may promote a result of 16 bits to
#: float32, for which the file has kernels, too; whether a layer gets modules of a Sequential.
EPILOGUES, PROGRAMS, SCALES, PROMOTES, SEQUENCES = (
    "where epilogues are fused",
    "where programs are computed",
    "where tensors scale",
    "where results are promoted",
    "where sequences are fused",
)
#: Whether the file calls functions of torch.nn.functional; whether the model may have layers that the file's text does
#: not construct; whether it may have lazy layers; whether kernels put weights or inputs into another order first;
#: whether kernels copy several elements at once, at multiples of their bytes.
FUNCTIONS, ELSEWHERE, LAZY, PREPARED, ALIGNED = (
    "where functions are called",
    "where layers are built elsewhere",
    "where layers are lazy",
    "where a kernel prepares",
    "where copies are aligned",
)
#: The parts in the order of a file, each with what a file must have to get it; "" where every file gets it.
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
#: The part at a file's end.
BELOW = "binding"
#: The parts that hand epilogues to layers.
_OF_EPILOGUES = ("epilogues", "gradients", "equal", "sequences")
_MARK = "# ---- copied from here on\n"


@cache
def part(name: str) -> str:
    """The text of a part, with its marks."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return text.partition(_MARK)[2].strip("\n") + "\n"


def text_for(wanted: Mapping[str, bool]) -> str:
    """The text above the model in a file; `wanted` says what the file has."""
    parts = [part(name) for name, when in PARTS if not when or wanted[when]]
    return "\n\n\n".join(only(text, {mark: wanted[mark] for mark in marks(text)}).strip("\n") for text in parts)


def epilogues_text() -> str:
    """The text of the parts that hand epilogues to layers, without marks."""
    return "\n\n\n".join(unmarked(part(name)) for name in _OF_EPILOGUES)


@cache
def names() -> dict[str, bool]:
    """The module-level names of all parts; True for a name that an import binds."""
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
