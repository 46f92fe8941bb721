"""Which lines of a written file's kernels the emulator executes: g++'s own counts, by gcov."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tconv.emulator import program
from tconv.emulator.program import Fibers, Mode

#: A line: of which text, and its number there.
Line = tuple[str, int]


class Coverage:
    """Builds programs for the emulator that count, in place of `tconv.emulator.program.build`.

    Args:
        directory: where programs and counts are kept.
        texts: the parts of the sources that are of interest, by name.
    """

    def __init__(self, directory: Path, texts: Mapping[str, str]) -> None:
        self._directory = directory
        self._texts = {name: text.strip("\n").split("\n") for name, text in texts.items()}
        self._sources: dict[Path, str] = {}

    def build(self, source: str, mode: Mode = "plain", *, fibers: Fibers = "native") -> Path:
        """As `tconv.emulator.program.build`, without its cache."""
        folder = self._directory / hashlib.sha256(source.encode()).hexdigest()[:16]
        if folder not in self._sources:
            folder.mkdir()
            names = program.kernel_names(source)
            (folder / "kernel.cu").write_text(source + "\n" + program._registration(names), encoding="utf-8")
            command = [program._compiler(), *program._LANGUAGE, "-O0", "--coverage", "-fprofile-update=atomic"]
            command += [*program._processor_flags(), "-DTCONV_EMULATOR", f"-I{program._INCLUDE}"]
            command += ["-include", "tconv_emulator.h", "-x", "c++", "kernel.cu", "-x", "none"]
            command += [str(program._engine("plain", fibers)), "-o", "program"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            self._sources[folder] = source
        return folder / "program"

    def counts(self) -> dict[Line, int]:
        """How often each line was executed of which there is machine code in some program."""
        found: dict[Line, int] = {}
        for folder, source in self._sources.items():
            lines = source.split("\n")
            places = {name: start for name, text in self._texts.items() if (start := _find(lines, text)) is not None}
            for number, count in _counted(folder):
                for name, start in places.items():
                    if start <= number < start + len(self._texts[name]):
                        line = (name, number - start)
                        found[line] = found.get(line, 0) + count
        return found

    def text(self, line: Line) -> str:
        name, number = line
        return self._texts[name][number]


def _find(lines: list[str], part: list[str]) -> int | None:
    """Where a part begins, whose first line may stand in others, too."""
    places = (n for n, line in enumerate(lines) if line == part[0] and lines[n : n + len(part)] == part)
    return next(places, None)


def _counted(folder: Path) -> Iterator[tuple[int, int]]:
    """Lines of the unit, the first being 0, with their counts; a template's lines once for each instance."""
    command = ["gcov", "--json-format", "--stdout", *(path.name for path in folder.glob("*.gcda"))]
    told = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    for report in map(json.loads, told.splitlines()):
        files: list[dict[str, Any]] = report["files"]
        for file in files:
            if file["file"].endswith("kernel.cu"):
                yield from ((line["line_number"] - 1, line["count"]) for line in file["lines"])
