"""What the kernels' templates say of many kernels at once, as g++ evaluates it; and where the planner differs."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tconv.emulator
from tconv.kernels import source
from tconv.kernels.source import LaunchNumbers
from tconv.planner import FAMILIES, Gpu, Kernel
from tconv.planner.block_tiles import PREPARING_THREADS
from tconv.problem import Layer, Problem

#: Only the templates' constants are wanted: no engine is linked, and nothing is optimised.
_COMMAND = (
    *("g++", "-std=c++17", "-O0", "-fmax-errors=0", "-DTCONV_EMULATOR"),
    *(f"-I{source.header_directory()}", f"-I{Path(tconv.emulator.__file__).parent / 'include'}"),
    *("-include", "tconv_emulator.h", "-x", "c++", "-", "-o"),
)
#: Of the GPU that launches are asked for.
_MULTIPROCESSORS = 132
_INSTANTIATED = re.compile(r"In instantiation of '[^']*\bkernel_(\d+)_tile>")
_ERROR = re.compile(r"error: (?:static assertion failed: )?(.*)")


@dataclass(frozen=True)
class Evaluated:
    """What a template makes of one kernel.

    Args:
        numbers: by the names of `Family.constants`; empty where something is violated.
        violated: what the compiler says against the kernel: the texts of static assertions above all.
    """

    numbers: dict[str, int]
    violated: tuple[str, ...] = ()


def numbers(kernel: Kernel[Any]) -> Mapping[str, int]:
    """What the planner says of a kernel: its constants, and of `problems` how it is launched."""
    launches = {
        f"{field} of launch {number}": value
        for number, problem in enumerate(problems(kernel))
        for field, value in _launched(kernel, problem).items()
    }
    return {**FAMILIES[kernel.family].constants(kernel), **launches}


def problems(kernel: Kernel[Any]) -> list[Problem]:
    """One of few positions, one of some, and one so large that offsets need 64 bits."""
    layer = kernel.layer

    def problem(batch: int, size: int) -> Problem:
        sizes = [size + 2 * axis.padding if used else 1 for axis, used in zip(layer.axes, _used(layer), strict=True)]
        return Problem(layer, batch, (sizes[0], sizes[1], sizes[2]))

    return [problem(1, 2), problem(7, 45), problem(3, 30_000)]


def _used(layer: Layer) -> list[bool]:
    return [axis >= 3 - layer.spatial_dims for axis in range(3)]


def _launched(kernel: Kernel[Any], problem: Problem) -> dict[str, int]:
    """`LaunchNumbers` by the planner's rules."""
    family = FAMILIES[kernel.family]
    of_kernel = family.launch_traits(kernel.layer, kernel.tile, _MULTIPROCESSORS)
    inputs = family.input_preparation(problem, kernel, replace(Gpu.h200(), multiprocessors=_MULTIPROCESSORS))
    numbers = LaunchNumbers(
        blocks=family.rules.grid(problem, kernel.layer, of_kernel),
        counted=family.counted(problem, kernel, of_kernel),
        threads=of_kernel.threads,
        shared_bytes=of_kernel.shared_bytes,
        wide_index=family.rules.needs_wide_index(problem, kernel.layer, of_kernel),
        weight_blocks=of_kernel.preparing_blocks,
        weight_bytes=of_kernel.weight_bytes,
        input_blocks=inputs.grid if inputs else 0,
        preparing_threads=PREPARING_THREADS,
    )
    # A constant of the headers, which kernels read whose weights are prepared.
    read = numbers._fields if kernel.prepares_weights else numbers._fields[:-1]
    return {name: int(getattr(numbers, name)) for name in read}


def evaluate(kernels: Sequence[Kernel[Any]]) -> list[Evaluated]:
    """The constants of each kernel, by one program; by a second one where some kernels violate a static assertion."""
    names = {family: [name for k in kernels if k.family == family for name in numbers(k)] for family in FAMILIES}
    rows = {number: _row(number, kernel, dict.fromkeys(names[kernel.family])) for number, kernel in enumerate(kernels)}
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "shapes")
        violated = _compile(rows, program)
        good = {number: row for number, row in rows.items() if number not in violated}
        if violated and good and (left := _compile(good, program)):
            raise AssertionError(f"violated only without the others: {left}")
        printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout if good else ""
    evaluated = {number: Evaluated({}, tuple(dict.fromkeys(texts))) for number, texts in violated.items()}
    for number, line in zip(good, printed.splitlines(), strict=True):
        values = map(int, line.split())
        evaluated[number] = Evaluated(dict(zip(dict.fromkeys(names[kernels[number].family]), values, strict=True)))
    return [evaluated[number] for number in range(len(kernels))]


def differences(kernels: Sequence[Kernel[Any]]) -> list[str]:
    """What planner and templates disagree about: of each kernel that they do a line, with the kernel."""
    found = []
    for kernel, evaluated in zip(kernels, evaluate(kernels), strict=True):
        words = [f"violated: {text}" for text in evaluated.violated]
        if not words:
            words = [
                f"{name} is {int(number)} to the planner, {evaluated.numbers[name]} to the template"
                for name, number in numbers(kernel).items()
                if evaluated.numbers[name] != number
            ]
        if words:
            found.append(f"{'; '.join(words)}: {kernel.layer.describe()}: {kernel}")
    return found


def _row(number: int, kernel: Kernel[Any], names: Iterable[str]) -> tuple[str, str]:
    """The configuration of a kernel, and the values of its shape's constants."""
    name = f"kernel_{number}"
    configuration = source.configuration(kernel, name)
    of = f"<{name}_layer, {name}_tile>"
    for place, problem in enumerate(problems(kernel)):
        sizes = ("{{{}, {}, {}}}".format(*size) for size in (problem.input_size, problem.output_size))
        arguments = f"tconv::Sizes{{{_MULTIPROCESSORS}, {problem.batch}, {', '.join(sizes)}}}"
        made = f"tconv::{kernel.family}_launch{of}({arguments})"
        configuration += f"constexpr tconv::Launch {name}_launch_{place} = {made};\n"
    shape = f"tconv::{FAMILIES[kernel.family].shape.__name__}{of}"

    def value(asked: str) -> str:
        field, launch, place = asked.partition(" of launch ")
        if not launch:
            return f"{shape}::{asked}"
        return "tconv::preparing_threads" if field == "preparing_threads" else f"{name}_launch_{place}.{field}"

    return configuration, ", ".join(map(value, names))


def _compile(rows: Mapping[int, tuple[str, str]], program: Path) -> dict[int, list[str]]:
    """A program that prints a line of values for each row; or else the rows that do not compile, and why."""
    text = "".join(f'#include "{family}/launch.cuh"\n' for family in FAMILIES)
    text += 'extern "C" int printf(const char*, ...);\n'
    for number, (configuration, values) in rows.items():
        text += f"{configuration}const long long values_{number}[] = {{{values}}};\n"
    text += "void print(const long long* values, int count) {\n"
    text += "  for (int i = 0; i < count; ++i) printf(\"%lld%c\", values[i], i + 1 < count ? ' ' : '\\n');\n}\n"
    calls = (f"  print(values_{number}, sizeof values_{number} / sizeof *values_{number});\n" for number in rows)
    text += "int main() {\n" + "".join(calls) + "}\n"
    compiled = subprocess.run(
        [*_COMMAND, program],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    violated: dict[int, list[str]] = {}
    current = None
    for line in compiled.stderr.splitlines():
        if match := _INSTANTIATED.search(line):
            current = int(match[1])
        elif match := _ERROR.search(line):
            if current is None:
                raise AssertionError(f"the shapes do not compile:\n{compiled.stderr}")
            violated.setdefault(current, []).append(match[1])
    if compiled.returncode and not violated:
        raise AssertionError(f"the shapes do not compile:\n{compiled.stderr}")
    return violated
