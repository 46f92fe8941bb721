"""From a `Kernel` to CUDA text: a few generated lines that instantiate one template of a shipped header."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tconv.planner import FAMILIES, Kernel
from tconv.pointwise.functor import functor
from tconv.pointwise.program import parse
from tconv.problem import Precision

#: What a kernel reads and writes where that is not float, and how it rounds factors, in CUDA text.
ELEMENT: dict[Precision, str] = {"fp16": "tconv::Half", "bf16": "tconv::BFloat16", "fp64": "double"}
ROUNDING: dict[Precision, str] = {"tf32": "ties_to_even", "tf32_rna": "ties_away"}
#: The header of what programs behind layers are made of.
PROGRAMS = "primitives/programs.cuh"
_INPUT = "int batch, int input_depth, int input_height, int input_width"
_OUTPUT = "int output_depth, int output_height, int output_width"
#: The parameters of a kernel's functions, by how their names end, T being its element type: of the kernel itself, and
#: of what puts its weights and its inputs into another order.
PARAMETERS = {
    "": "const T* x, const T* weight, const T* bias, T* y, int y_channels, " + _INPUT + ", " + _OUTPUT,
    "_weights": "const T* weight, T* prepared",
    "_inputs": "const T* x, T* prepared, " + _INPUT,
}
#: What the functions are called that prepare the weights and the inputs of the kernel NAME.
PREPARING, PREPARING_INPUTS = "{}_weights", "{}_inputs"
#: What the function is called that tells how the kernel NAME is launched.
LAUNCH_NUMBERS = "{}_launch_numbers"
#: What the text of the kernel NAME calls its other parts: ``NAME_layer``, …
ENDINGS = ("layer", "tile", "shape", "program", "weights", "inputs", "launch_numbers")
#: In texts of several kernels of a family, begins the part of one, up to the next one's.
SECTION = "// ==== "
_LOCAL_INCLUDE = re.compile(r'^#include "([\w./]+)"\n', re.MULTILINE)
_OPENED, _CLOSED = "namespace tconv {\n\n", "\n}  // namespace tconv\n"


def header_directory() -> Path:
    """Where the headers' names start: the include path of every compiler that builds a unit."""
    return Path(__file__).parent


def header_files() -> dict[str, Path]:
    """The shipped headers by the names under which they are included, as in ``"direct/shape.cuh"``."""
    directory = header_directory()
    return {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*.cuh"))}


def header_digest() -> str:
    """SHA-256 over the names and contents of all shipped headers, in hexadecimal."""
    digest = hashlib.sha256()
    for name, path in header_files().items():
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def family_header(family: str) -> str:
    """The header that defines the kernel of a family."""
    return f"{family}/{family}.cuh"


def unit(kernel: Kernel[Any], name: str = "tconv_kernel") -> str:
    """The translation unit of `kernel`, whose one ``extern "C"`` function is called `name`.

    It does not compile if the template computes other constants than the planner.
    """
    headers = [family_header(kernel.family), *[PROGRAMS] * bool(kernel.layer.epilogue)]
    included = "".join(f'#include "{header}"\n' for header in headers) + "\n"
    return included + functions(kernel, name) + assertions(kernel, name)


def inlined(kernels: Sequence[tuple[Kernel[Any], str]]) -> str:
    """One text without local includes that defines every ``(kernel, name)``."""
    families = dict.fromkeys(kernel.family for kernel, _ in kernels)
    names = [*map(family_header, families), *[PROGRAMS] * any(kernel.layer.epilogue for kernel, _ in kernels)]
    headers = headers_text(names)
    return headers + "\n" + "\n".join(functions(kernel, name) for kernel, name in kernels)


def headers_text(names: Sequence[str]) -> str:
    """The contents of the named headers and of those that they include, each once, as one text."""
    return in_namespace(header_texts(names).values())


def header_texts(names: Sequence[str]) -> dict[str, str]:
    """The named headers and those that they include, by name, each behind those that it includes itself.

    The texts are to be pasted into one `in_namespace`: they include nothing.
    """
    texts: dict[str, str] = {}

    def paste(name: str) -> None:
        text = (header_directory() / name).read_text(encoding="utf-8")
        for included in _LOCAL_INCLUDE.findall(text):
            if included not in texts:
                paste(included)
        alone = _LOCAL_INCLUDE.sub("", text).replace("#pragma once\n", "")
        texts[name] = alone.replace(_OPENED, "").replace(_CLOSED, "")

    for name in names:
        if name not in texts:
            paste(name)
    return texts


def in_namespace(texts: Iterable[str]) -> str:
    """What `header_texts` gave, as one text."""
    return "namespace tconv {\n" + "\n".join(texts).strip("\n") + "\n}  // namespace tconv\n"


def alone(text: str, name: str) -> str:
    """A text with sections, of which only that of the kernel `name` is left."""
    first, *sections = text.split(f"\n{SECTION}")
    own = next(each for each in sections if each.partition("\n")[0] == name)
    return f"{first}\n{SECTION}{own}"


def configuration(kernel: Kernel[Any], name: str) -> str:
    """What the kernel `name` is compiled for: the structs of its layer and its tile."""
    layer = kernel.layer
    element, rounding = ELEMENT.get(layer.precision, "float"), ROUNDING.get(layer.precision, "none")
    axes = zip(("Depth", "Height", "Width"), layer.kernel, layer.stride, layer.padding, layer.dilation, strict=True)
    counts = {
        "spatial_dims": layer.spatial_dims,
        "groups": layer.groups,
        "group_in_channels": layer.in_channels // layer.groups,
        "group_out_channels": layer.out_channels // layer.groups,
        "has_bias": int(layer.bias),
        "has_program": int(bool(layer.epilogue)),
        "weights_last": int(layer.weights_last),
    }
    members = [
        f"using Element = {element};",
        f"using Index = {'long long' if kernel.wide_index else 'int'};",
        *(f"using {axis} = tconv::Axis<{', '.join(map(str, values))}>;" for axis, *values in axes),
        f"static constexpr int {', '.join(f'{name} = {value}' for name, value in counts.items())};",
        f"static constexpr tconv::Rounding rounding = tconv::Rounding::{rounding};",
    ]
    of_layer = f"// {layer.describe()}\nstruct {name}_layer {{\n" + "".join(f"  {member}\n" for member in members)
    return of_layer + f"}};\nstruct {name}_tile {{\n" + tile_members(kernel.tile) + "};\n"


def function(kernel: Kernel[Any], name: str, ending: str = "", reads: str = "", program: str = "") -> str:
    """The ``extern "C"`` function ``NAME_ending`` of `PARAMETERS`, which calls a template of the kernel's family.

    Of the layer's epilogue, `reads` are further parameters, and `program` is a further argument.
    """
    parameters = PARAMETERS[ending] + reads
    arguments = ", ".join(parameter.split()[-1] for parameter in PARAMETERS[ending].split(", ")) + program
    parameters = parameters.replace("T*", name + "_layer::Element*")
    bounds = "tconv::preparing_threads"
    if not ending:  # threads of a block, and blocks that shall fit on a multiprocessor
        bounds = f"{kernel.threads}, {kernel.blocks}"
    called = f"tconv::{kernel.family}{ending}<{name}_layer, {name}_tile>({arguments})"
    head = f'extern "C" __global__ void __launch_bounds__({bounds})\n{name}{ending}({parameters})'
    return f"{head} {{\n  {called};\n}}\n"


def reads_and_program(operands: Sequence[str], name: str, channels_last: bool = False) -> tuple[str, str]:
    """What `function` takes for a layer with a program that reads those operands; its functor is ``NAME_program``."""
    members = ["y", "static_cast<long long>(output_depth) * output_height * output_width", *operands]
    template = f"{name}_program<{name}_layer, {str(channels_last).lower()}>"
    made = template + "{" + ", ".join(members) + "}"
    return "".join(f", const T* {operand}" for operand in operands), ",\n      " + made


class LaunchNumbers(NamedTuple):
    """How the text of a kernel is launched: `Launch` of `kernels/primitives/launch.cuh`, which says more.

    Where `wide_index`, the kernel's offsets do not reach.
    """

    blocks: int
    counted: int
    threads: int
    shared_bytes: int
    wide_index: int
    weight_blocks: int
    weight_bytes: int
    input_blocks: int
    preparing_threads: int


def launch_name(name: str) -> str:
    """What the constant function is called that tells how the kernel `name` is launched: from `Sizes` to a `Launch`,
    both in ``tconv``, as it is itself."""
    return f"{name}_launch"


def launch_function(kernel: Kernel[Any], name: str, template: str) -> str:
    """That function, by a template of the kernel's family. What it calls `wide_index` its kernel cannot launch."""
    lines = [f"return {template}(sizes);"]
    if kernel.wide_index:
        lines = [
            f"Launch launch = {template}(sizes);",
            "launch.wide_index = false;  // its offsets reach",
            "return launch;",
        ]
    head = f"TCONV_CONSTANT Launch {launch_name(name)}(const Sizes& sizes) {{"
    return f"{head}\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def launch_numbers(name: str, prepares: bool) -> str:
    """A function that writes the numbers of `LaunchNumbers`, for the kernel `name`, whose text stands above.

    Its arguments are where to, how many multiprocessors there are, batch, input size and output size.
    """
    known = {"preparing_threads": "tconv::preparing_threads" if prepares else "0"}
    values = [known.get(field, f"launch.{field}") for field in LaunchNumbers._fields]
    writes = "".join(f"  numbers[{i}] = {value};\n" for i, value in enumerate(values))
    return f"""
extern "C" __global__ void {LAUNCH_NUMBERS.format(name)}(long long* numbers, int multiprocessors, int batch,
    int input_depth, int input_height, int input_width, int output_depth, int output_height, int output_width) {{
  const tconv::Sizes sizes = {{multiprocessors, batch, {{input_depth, input_height, input_width}},
      {{output_depth, output_height, output_width}}}};
  const tconv::Launch launch = tconv::{launch_name(name)}(sizes);
{writes}}}
"""


def assertions(kernel: Kernel[Any], name: str) -> str:
    """That the template's constants are the planner's; the configuration stands above."""
    family, shape = FAMILIES[kernel.family], f"{name}_shape"
    return f"using {shape} = tconv::{family.shape.__name__}<{name}_layer, {name}_tile>;\n" + "".join(
        f'static_assert({shape}::{constant} == {int(number)}, "{constant} is {int(number)} to the planner");\n'
        for constant, number in family.constants(kernel).items()
    )


def functions(kernel: Kernel[Any], name: str) -> str:
    """The configuration of `kernel` and all its functions."""
    texts, behind = [configuration(kernel, name)], ("", "")
    if kernel.layer.epilogue:
        program = parse(kernel.layer.epilogue)
        texts.append(functor(program, f"{name}_program"))
        operands = [operand.name for operand in program.operands]
        behind = reads_and_program(operands, name, reads_channels_last(kernel))
    template = f"{kernel.family}_launch<::{name}_layer, ::{name}_tile>"
    texts.append(f"namespace tconv {{\n{launch_function(kernel, name, template)}}}\n")
    texts.append(function(kernel, name, "", *behind))
    texts += [function(kernel, name, "_weights")] if kernel.prepares_weights else []
    texts += [function(kernel, name, "_inputs")] if kernel.prepares_inputs else []
    return "".join(texts)


def prepares(kernels: Iterable[Kernel[Any]]) -> bool:
    """Whether any of them has a kernel before it, for its weights or its inputs."""
    return any(kernel.prepares_weights or kernel.prepares_inputs for kernel in kernels)


def reads_channels_last(kernel: Kernel[Any]) -> bool:
    """Whether the kernel's input and output are channels_last; else they are contiguous."""
    return FAMILIES[kernel.family].reads_channels_last(kernel)


def tile_members(tile: Any) -> str:
    """The constants of a tile; those of a part of it in a struct of their own: ``BlockTile::rows``."""
    parts = {part.name: getattr(tile, part.name) for part in fields(tile)}
    structs = [
        f"  struct {member_type(name)} {{ {_constants(vars(value))} }};\n"
        for name, value in parts.items()
        if is_dataclass(value)
    ]
    numbers = {name: value for name, value in parts.items() if not is_dataclass(value)}
    return "".join(structs) + f"  {_constants(numbers)}\n"


def member_type(name: str) -> str:
    """The struct of that part of a tile: ``BlockTile`` of ``block_tile``."""
    return "".join(word.capitalize() for word in name.split("_"))


def _constants(numbers: Mapping[str, int]) -> str:
    return f"static constexpr int {', '.join(f'{name} = {value}' for name, value in numbers.items())};"
