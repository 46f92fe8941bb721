"""What a generated file records, as pieces of Python: its kernels, and the epilogues of its layers."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tconv.codegen.cuda import Written
from tconv.codegen.planned import LayerEpilogue, PlannedLayer
from tconv.kernels import source as kernel_source
from tconv.planner import FAMILIES, Kernel, Plan
from tconv.pointwise.calls import known_gradient
from tconv.pointwise.derivative import BY_RESULT, Computed, Gradient, Source
from tconv.pointwise.program import parse
from tconv.problem import TF32, Layer, Triple
from tconv.sandbox.epilogues import POINTWISE, KnownEpilogue

#: So long an entry for a kernel may be that it stands in one line.
_ENTRY = 110
#: What epilogues call that autocast computes in float32, and gives in that.
_IN_FLOAT = frozenset(
    {"exp", "expm1", "log", "log1p", "pow", "reciprocal", "rsqrt", "rdiv", "softplus", "rtruediv"}
    | {"special_expm1", "special_log1p"}
)


class Recorded(NamedTuple):
    """A kernel of the file, what is recorded of its launch, and the input size that it takes if that is one alone."""

    written: Written
    shared_bytes: int
    weight_bytes: int
    input_size: Triple | None


def record_of(plan: Plan, written: Written) -> Recorded:
    """A kernel that was written for a plan."""
    prepared = 0 if plan.preparation is None else plan.preparation.bytes
    alone = None if FAMILIES[plan.kernel.family].any_size else plan.problem.input_size
    return Recorded(written, plan.shared_bytes, prepared, alone)


def recorded_of(layers: Sequence[PlannedLayer]) -> dict[Layer, list[Recorded]]:
    """The kernels of each layer, alone and with each epilogue; of each kind the one that runs at any size last."""
    found: dict[Layer, dict[Kernel[Any], Recorded]] = {}
    names: set[str] = set()
    own = {plan.problem.layer.dtype for layer in layers for plan in layer.groups[0]}
    # At some sizes the first one does not run: who has both says the order.
    for layer in sorted(layers, key=lambda layer: -max(map(len, layer.groups))):
        for plans in layer.groups:
            of_layer = found.setdefault(plans[0].problem.layer, {})
            for number, epilogue in enumerate((LayerEpilogue(), *layer.kernel_epilogues)):
                for plan, size in zip(plans[:1] if number else plans, ("", "any_size"), strict=False):
                    kernel = epilogue.kernel(plan.kernel)
                    if kernel in of_layer:
                        continue
                    dtype = kernel.layer.dtype if len(own) > 1 or kernel.layer.dtype not in own else ""
                    own_name = layer.name if layer.name.startswith("conv") else f"conv_{layer.name}"
                    ending = f"backward_{number}" if epilogue.backward else f"then_{number}"
                    parts = [own_name, dtype, ending if number else "", size]
                    name = _name(parts, names)
                    of_layer[kernel] = record_of(plan, Written(kernel, name))
    order = [plans[0].problem.layer for layer in layers for plans in layer.groups]
    return {layer: list(found[layer].values()) for layer in dict.fromkeys(order)}


def _name(parts: Sequence[str], names: set[str]) -> str:
    """A name for CUDA text that is not among `names`, which gains it and what a kernel makes of it."""
    words = "_".join(filter(None, (re.sub(r"\W+", "_", part, flags=re.ASCII).strip("_") for part in parts)))

    def of_kernel(name: str) -> set[str]:
        return {name, *(f"{name}_{ending}" for ending in kernel_source.ENDINGS)}

    numbered = itertools.chain([words], map(f"{words}_{{}}".format, itertools.count(2)))
    name = next(each for each in numbered if not of_kernel(each) & names)
    names |= of_kernel(name)
    return name


def places_of(kernels: Sequence[Written]) -> dict[str, int]:
    """By its name, the number of each kernel among those of its family."""
    found: dict[str, int] = {}
    for family in dict.fromkeys(each.kernel.family for each in kernels):
        of_family = [each.name for each in kernels if each.kernel.family == family]
        found.update({name: number for number, name in enumerate(of_family)})
    return found


def entry(layer: Layer, kernels: Sequence[Recorded], places: Mapping[str, int], constants: Mapping[str, str]) -> str:
    """What is recorded for a layer; `constants` are the file's names of programs."""
    made = "".join(f"        {_kernel(layer, each, places[each.written.name], constants)},\n" for each in kernels)
    return f"{_layer(layer)}: [\n{made}    ]"


def _kernel(layer: Layer, recorded: Recorded, place: int, constants: Mapping[str, str]) -> str:
    kernel, name = recorded.written
    columns = FAMILIES[kernel.family].launch_traits(kernel.layer, kernel.tile, 1).columns_together
    single = tuple(axis for axis in range(3) if kernel.layer.stride[axis] != layer.stride[axis])
    told = {
        "shared_bytes": recorded.shared_bytes,
        "columns": columns if columns > 1 else None,
        "single": single or None,
        "input_size": recorded.input_size,
        "tf32": kernel.layer.precision in TF32 or None,
        "weight_bytes": recorded.weight_bytes or None,
        "prepares_inputs": kernel.prepares_inputs or None,
        "program": constants.get(kernel.layer.epilogue),
    }
    words = [f'"{kernel.family}"', f'"{name}"', str(place)]
    words += [f"{name}={value}" for name, value in told.items() if value is not None]
    line = f"_Kernel({', '.join(words)})"
    if len(line) < _ENTRY and "\n" not in line:
        return line
    return "_Kernel(\n" + "".join(f"            {word},\n" for word in words) + "        )"


def _layer(layer: Layer) -> str:
    used = slice(3 - layer.spatial_dims, None)
    axes = ", ".join(str(values[used]) for values in (layer.kernel, layer.stride, layer.padding, layer.dilation))
    channels = f"{layer.in_channels}, {layer.out_channels}"
    return f"_Layer({channels}, {axes}, {layer.groups}, {layer.bias}, torch.{layer.dtype})"


def cuda(texts: Mapping[str, str]) -> str:
    """The text of each family as a piece of Python."""
    return dict_of("_CUDA", [f'"{family}": r"""\n{text}"""' for family, text in texts.items()])


def operands_of(text: str) -> str:
    """What is recorded of a program: the names of what it reads."""
    return str(tuple(operand.name for operand in parse(text).operands)).replace("'", '"')


def gradient_of(epilogue: KnownEpilogue, constants: Mapping[str, str]) -> Gradient | None:
    """The gradient of an epilogue; None where the file has not all kernels for it."""
    gradient = known_gradient(epilogue.calls)
    return gradient if gradient and all(text in constants for text in gradient.programs(epilogue.learns)) else None


def known(
    epilogue: KnownEpilogue,
    gradient: Gradient | None,
    program: str,
    again: str | None,
    constants: Mapping[str, str],
    types: set[str],
) -> str:
    """What is recorded of an epilogue: its program, and where the gradients after it come from.

    Args:
        program: its name.
        again: the name of the function that says the same in PyTorch's operators; None for one that calls nothing.
        types: of the file's layers.
    """
    words = [program]
    words += [f"operands={epilogue.operands}"] * bool(epilogue.operands)
    words += [f"again={again}"] * bool(again)
    if gradient is not None:
        sources = [_source(*each, constants) for each in zip(gradient.sources, epilogue.learns, strict=True)]
        words += [f"sources=({', '.join(sources)}{',' * (len(sources) == 1)})"] * bool(sources)
        if gradient.function is None:
            words += [f"backward={constants[gradient.of_sum.program.text]}"]
            words += [f"reads={gradient.of_sum.reads}"] * bool(gradient.of_sum.reads)
        else:
            words += [f"slope=lambda gradient, y: {_slope(gradient.function, gradient.factor)}"]
            words += ["keeps=True"] * bool(gradient.function)
    words += ["wide=True"] * any(name in _IN_FLOAT for name in re.findall(r"\w+(?=\()", epilogue.calls))
    if not types <= set(epilogue.types):
        words += [f"types=({' '.join(f'torch.{dtype},' for dtype in epilogue.types)})"]
    promotes = "float32" in types & set(epilogue.types) and types & {"float16", "bfloat16"}
    words += [f"promotes={epilogue.promotes}"] * bool(promotes and epilogue.promotes)
    said = ", ".join(f'"{part}"' if isinstance(part, str) and '"' not in part else repr(part) for part in epilogue.said)
    said = f"({said}{',' * (len(epilogue.said) == 1)})"
    line = f"{said}: _Known({', '.join(words)})"
    if len(line) < _ENTRY and "\n" not in line:
        return line
    return f"{said}: _Known(\n" + "".join(f"        {word},\n" for word in words) + "    )"


def _source(source: Source | None, learns: bool, constants: Mapping[str, str]) -> str:
    """What is recorded of whence a gradient comes: of which one and how many times, or a program and what it reads.

    For an operand that asked for none no kernel is made.
    """
    if isinstance(source, Computed):
        return f"({constants[source.program.text]}, {source.reads})" if learns else '"again"'
    return str(source).replace("'", '"')


def _slope(function: str, factor: float) -> str:
    """The gradient of what a function takes, by its result `y`, times a factor."""
    slope = "gradient"
    if function:
        operator, numbers = BY_RESULT[function]
        slope = f"torch.ops.aten.{operator}(gradient, y{''.join(f', {number}' for number in numbers)})"
    return slope if factor == 1 else f"{slope} * {factor!r}"


def string(text: str, indent: int = 4) -> str:
    """A string, in several lines where it is long, in an entry that is so far to the right."""
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return f'"{text}"'
    left = " " * indent
    words = [f'{left}    "{line} "\n' for line in lines[:-1]] + [f'{left}    "{lines[-1]}"\n']
    return f"(\n{''.join(words)}{left})"


def pointwise(name: str) -> str:
    """What is recorded of a class of modules."""
    said = (str(tuple(names.split())).replace("'", '"') for names in POINTWISE[name])
    return f"nn.{name}: (\n" + "".join(f"        {words},\n" for words in said) + "    )"


def dict_of(name: str, entries: Sequence[str]) -> str:
    """A dictionary of that name, an entry in a line."""
    if not entries:
        return f"{name} = {{}}\n"
    return f"{name} = {{\n" + "".join(f"    {entry},\n" for entry in entries) + "}\n"


def tuple_of(name: str, items: Sequence[str]) -> str:
    """A tuple of that name, an item in a line and each once."""
    if not items:
        return f"{name} = ()\n"
    return f"{name} = (\n" + "".join(f"    {item},\n" for item in dict.fromkeys(items)) + ")\n"
