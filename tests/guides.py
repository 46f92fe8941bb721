"""The code in a guide: blocks of Python and of shell, and the lines that begin with a command of tconv.

    python tests/guides.py GUIDE.md [--with-gpu]    runs them in order, in this process and this working directory

The words after a block's language say what becomes of it: `gpu` needs one, and a name as `model.py` is where the block
is written before it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

#: Languages of blocks that are no code to run.
_SHOWN = ("mermaid", "text")


@dataclass(frozen=True)
class Block:
    """Code of a guide.

    Args:
        line: of the guide, in which the code begins, from 1.
        language: "python" or "sh".
        file: where it is written before it runs; empty where it is not.
    """

    line: int
    language: str
    code: str
    needs_gpu: bool = False
    file: str = ""


def blocks(text: str) -> Iterator[Block]:
    """The code of a guide, in order.

    Raises:
        ValueError: a block has another language, or a word that says nothing here.
    """
    lines = list(enumerate(text.splitlines(), 1))
    while lines:
        number, line = lines.pop(0)
        if line.startswith("    tconv "):
            yield Block(number, "sh", line.strip())
        elif line.startswith("```"):
            inside = []
            while lines and not lines[0][1].startswith("```"):
                inside.append(lines.pop(0)[1])
            if not lines:
                raise ValueError(f"line {number}: the block does not end")
            lines.pop(0)
            yield from _block(number, line.removeprefix("```").split(), "\n".join(inside))


def _block(number: int, words: list[str], code: str) -> Iterator[Block]:
    language, *others = words or [""]
    if language in _SHOWN:
        return
    files = [word for word in others if word.endswith(".py")]
    unknown = [word for word in others if word != "gpu" and word not in files]
    if language not in ("python", "sh") or unknown or len(files) > (language == "python"):
        raise ValueError(f"line {number}: got ```{' '.join(words)}; allowed are python, sh, {' and '.join(_SHOWN)}")
    yield Block(number + 1, language, code, "gpu" in others, "".join(files))


def run(guide: Path, with_gpu: bool) -> None:
    """Runs a guide's code in this process, all of it in one namespace, and ends with what its first error raises."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    if with_gpu:
        _register_backend()
    for block in blocks(guide.read_text(encoding="utf-8")):
        if block.needs_gpu and not with_gpu:
            continue
        print(f"---- {guide.name}, line {block.line}", flush=True)
        if block.file:
            Path(block.file).write_text(block.code + "\n", encoding="utf-8")
        if block.language == "sh":
            subprocess.run(["sh", "-e", "-c", block.code], check=True)
        else:  # with the guide's own lines in a traceback
            exec(compile("\n" * (block.line - 1) + block.code, guide, "exec"), namespace)


def _register_backend() -> None:
    """Tells torch.compile of tconv where tconv was not installed, but lies on the path."""
    if entry_points(group="torch_dynamo_backends", name="tconv"):
        return
    from torch._dynamo import register_backend

    from tconv.compiler import backend

    register_backend(backend, name="tconv")


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # a guide imports the files that it writes
    run(Path(sys.argv[1]), "--with-gpu" in sys.argv[2:])
