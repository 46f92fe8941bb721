"""Options that several commands share."""

from __future__ import annotations

import ast
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tconv.errors import Trouble

if TYPE_CHECKING:
    from tconv.sandbox.model_file import Interface

#: One input: sizes of its axes and, behind a colon, its type.
_INPUT = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")
FLOATS = ("float32", "float16", "bfloat16", "float64")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
_NAMED = re.compile(r"([^\W\d]\w*)\s*=(?!=)(.*)", re.DOTALL)


class Precision(str, Enum):
    """What --precision takes: the arithmetic of float32 convolutions."""

    match = "match"
    tf32 = "tf32"
    fp32 = "fp32"


class Elsewhere(str, Enum):
    """What --elsewhere takes: what a written file does with calls that it has no kernel for."""

    pytorch = "pytorch"
    error = "error"


ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.py", help="A file with Model, get_inputs, get_init_inputs.")]
ModelName = Annotated[str, typer.Option("--model", metavar="NAME", help="The name of the model's class.")]
InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--inputs", metavar="SHAPE[:TYPE]", help="An input, as 8x3x64x64:bfloat16, for files without get_inputs()."
    ),
]
InitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--init", metavar="[NAME=]VALUE", help="An argument of the class, for files without get_init_inputs()."
    ),
]
CandidateFile = Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="A file with ModelNew.")]
PrecisionOption = Annotated[
    Precision, typer.Option("--precision", help="What float32 may use: PyTorch's choice on the layer, TF32, or fp32.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="REPORT.json", help="Write the report here, too.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="REPORT.html", help="Write it as a web page, too.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Every check by itself, and those against candidates that mean to deceive.")
]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="Also time the model and the file under torch.compile, which takes a while.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="For each step in the candidate's process.")
]


def interface_of(model: str, inputs: list[str] | None, init: list[str] | None) -> Interface:
    """By what a model file is used, from ``--model``, ``--inputs`` and ``--init``.

    Raises:
        Trouble: one of them cannot be read.
    """
    from tconv.sandbox.model_file import Interface

    shapes = [shape for text in inputs or [] for shape in _shapes(text)]
    return Interface(
        model,
        f"[{', '.join(map(_random_tensor, shapes))}]" if shapes else "",
        _arguments(init) if init else "",
    )


def _shapes(text: str) -> list[str]:
    """The shapes in one ``--inputs``, with their types."""
    shapes = [part.strip() for part in text.split(",") if part.strip()]
    if len(shapes) > 2 and all(map(str.isdecimal, shapes)):
        one = "x".join(shapes)
        raise Trouble(
            f"got --inputs {text}, {len(shapes)} tensors of one axis; write one tensor as {one}, and for several of "
            "one axis repeat --inputs"
        )
    return shapes


def _random_tensor(text: str) -> str:
    """Python text for an input: normal numbers, or zeros and ones, which are indices into any table."""
    found = _INPUT.fullmatch(text)
    dtype = found[2] or "float32" if found else ""
    if found is None or dtype not in (*FLOATS, *_INTEGERS):
        allowed = f"the types are {', '.join((*FLOATS, *_INTEGERS))}"
        raise Trouble(f"got --inputs {text}; write it as 8x3x64x64 or 8x3x64x64:bfloat16: {allowed}")
    sizes = ", ".join(str(int(size)) for size in found[1].split("x"))
    if dtype in FLOATS:
        return f"torch.randn({sizes})" + ("" if dtype == "float32" else f".to(torch.{dtype})")
    return f"torch.randint(0, 2, ({sizes},), dtype=torch.{dtype})"


def _arguments(given: list[str]) -> str:
    """Python text of what `get_init_inputs()` returns, for values and ``name=value``, all of them literals."""
    values, named = [], {}
    for text in given:
        name = _NAMED.fullmatch(text.strip())
        value = _literal(name[2] if name else text, text)
        if name:
            named[name[1]] = value
        else:
            values.append(value)
    positional = f"[{', '.join(values)}]"
    # Two values could be taken for positional and named ones.
    if not named and len(values) != 2:
        return positional
    return f"[{positional}, {{{', '.join(f'{name!r}: {value}' for name, value in named.items())}}}]"


def _literal(value: str, text: str) -> str:
    try:
        ast.literal_eval(value.strip())
        return ast.unparse(ast.parse(value.strip(), mode="eval"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Trouble(
            f"got --init {text}; write a Python literal, as 64, (2, 3), True or \"'same'\", or name=64"
        ) from None
