"""From a model file's text and its plans to the text of the generated file."""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tconv import problem
from tconv.codegen.excerpt import excerpt, methods
from tconv.codegen.headers import PRIMITIVES, kernel_texts
from tconv.codegen.loading import calls_its_own
from tconv.codegen.names import Names
from tconv.codegen.rewrite import Rewritten
from tconv.kernels import source as kernel_source
from tconv.planner import FAMILIES, Gpu, Kernel, Plan
from tconv.problem import Layer, Precision, Triple
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.source_scan import GENERATED_MARK
from tconv.version import __version__

_MARK, _KERNELS_MARK = "# ---- copied from here on\n", "# ---- the kernels from here on\n"
#: Of the operator that compilers see: two files in one process have two.
_OPERATOR_NAME = '"tconv_DIGEST::conv_transpose"'
#: Around what only those files have whose kernels' inputs, or weights, are prepared.
_INPUTS_MARK, _WEIGHTS_MARK = "// ---- where inputs are prepared\n", "// ---- where weights are prepared\n"
_BLANK = "\r\n"
#: An equals sign at which no line is broken.
_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
_RENAMED = {
    "Axis": "_Axis",
    # Tiles are CUDA text already.
    "tile_members": "str",
}
#: Of an axis: what runtime.py itself asks.
_OF_AXES = ("positions", "output_size")
#: Both types of 16 bits take the same tiles.
_TWINS: dict[Precision, Precision] = {"fp16": "bf16", "bf16": "fp16"}
#: Of a layer: what runtime.py has itself.
_NOT_OF_LAYERS = {"axes"}
_LINE = "# " + "-" * 118 + "\n"
#: What stands between the generated part and the user's, and above the kernels.
_MODEL_MARK, _TEXT_MARK = f"{_LINE}# The model file\n{_LINE}", f"{_LINE}# The kernels\n{_LINE}"


@dataclass(frozen=True)
class PlannedLayer:
    """A transposed convolution of the model and how it is computed.

    Args:
        name: the module's qualified name, or where the function is called.
        plan: what was planned for the sizes of ``get_inputs()``.
        count: how often a forward pass runs it.
        called: it is a call of a function, not a module.
        line: of the model file, for a call that stands there.
        left: it stays PyTorch's, for this reason.
        portable: what runs the layer at other sizes and on other GPUs, where that is not `plan`.
        cast: what runs it in the other width of floating point, float32 or 16 bits; the best one first.
    """

    name: str
    plan: Plan
    count: int = 1
    called: bool = False
    line: int | None = None
    left: bool = False
    reason: str = ""
    portable: Plan | None = None
    cast: tuple[Plan, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Of every kernel that the file records for its own type, the best one first."""
        return (self.plan,) if self.portable is None else (self.plan, self.portable)

    @property
    def variants(self) -> dict[str, Plan]:
        """The plans of every kernel that the file has for it, by their use: ``""``, ``"elsewhere"``, ``"float16"``, …

        Those for the model's own type come first, and of each type the best one.
        """
        recorded = (self.plans, self.cast)
        found: dict[str, Plan] = {}
        for plans in (*recorded, *(tuple(filter(None, map(_twin, plans))) for plans in recorded)):
            for plan, where in zip(plans, ("", "elsewhere"), strict=False):
                dtype = plan.problem.layer.dtype
                found[", ".join(filter(None, ["" if dtype == self.plan.problem.layer.dtype else dtype, where]))] = plan
        return found


def generate(source: Rewritten, layers: Sequence[PlannedLayer], gpu: Gpu, float32: str = "match") -> str:
    """The text of the file. The same arguments give the same bytes.

    Args:
        source: the user's file, rewritten.
        layers: every transposed convolution that one forward of the model runs.
        gpu: what was planned for.
        float32: the precision that was asked for: ``"match"``, ``"tf32"`` or ``"fp32"``.

    Raises:
        ModelFileError: the user's file uses a name that the generated part needs.
    """
    _check_names(source)
    planned = [layer for layer in layers if not layer.left]
    kernels = _kernels(planned)
    plans = [plan for layer in planned for plan in layer.variants.values()]
    parts = ["instance"]
    weights_prepared = any(plan.preparation is not None for plan in plans)
    if weights_prepared:
        parts.append("weights_instance")
    inputs_prepared = any(plan.inputs is not None for plan in plans)
    if inputs_prepared:
        parts.append("inputs_instance")
    configuration = excerpt([kernel_source], parts, _RENAMED)
    asked = set(re.findall(r"\w+", configuration))
    compiled = list(dict.fromkeys(plan.kernel for plan in plans))
    headers = {name: _cuda(text) for name, text in kernel_texts(compiled, configuration).items()}
    runtime = _filled(
        {
            '_PRIMITIVES = r""\n': f"_PRIMITIVES = {headers.pop(PRIMITIVES)}\n",
            "_KERNELS = {}\n": _dict_of("_KERNELS", [f'"{name}": {text}' for name, text in headers.items()]),
            "_RECORDED = {}\n": _dict_of("_RECORDED", [_recorded(layer, of) for layer, of in kernels.items()]),
            "_CALLED = ()\n": _tuple_of("_CALLED", [_layer(p.plan.problem.layer) for p in planned if p.called]),
            "_LEFT = ()\n": _tuple_of("_LEFT", [f'"{p.name}"' for p in layers if p.left and not p.called]),
            '_FLOAT32 = "match"\n': f'_FLOAT32 = "{float32}"\n',
            "_PLANNED = _Gpu(227 * 1024, True, 1)\n": f"_PLANNED = _Gpu(227 * 1024, True, {gpu.multiprocessors})\n",
            _place("    # ", "what an axis knows of itself"): methods(problem, "Axis", {*asked, *_OF_AXES}),
            _place("    # ", "what a layer knows of itself"): methods(
                problem, "Layer", asked, _RENAMED, there=_NOT_OF_LAYERS
            ),
            _place("# ", "the configuration of a kernel as CUDA text"): configuration,
        }
    )
    runtime, _, text = runtime.partition(_KERNELS_MARK)
    for mark, prepared in ((_INPUTS_MARK, inputs_prepared), (_WEIGHTS_MARK, weights_prepared)):
        before, start, behind = text.split(mark)
        text = f"{before}{start if prepared else ''}{behind}"
    prologue = f"{source.prologue.rstrip()}\n\n" if source.prologue else ""
    model = f"{_MODEL_MARK}\n{source.body.strip(_BLANK)}"
    text = f"{_TEXT_MARK}\n{text.strip()}"
    # Who reads the file comes to the model first. One that is built while the file is loaded needs the kernels there.
    rest = (text, model) if calls_its_own(source.body) else (model, text)
    text = f"{_header(layers)}\n{prologue}{runtime.rstrip()}\n\n\n" + "\n\n\n".join(rest) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return text.replace(_OPERATOR_NAME, _OPERATOR_NAME.replace("DIGEST", digest), 1)


@cache
def runtime_text() -> str:
    """The parts that every generated file shares, with their places still empty."""
    text = Path(__file__).with_name("runtime.py").read_text(encoding="utf-8")
    return text.partition(_MARK)[2].lstrip("\n")


def _place(indent: str, words: str) -> str:
    return f"{indent}({words})\n"


def _filled(values: Mapping[str, str]) -> str:
    runtime = runtime_text()
    for place, value in values.items():
        if runtime.count(place) != 1:
            raise ValueError(f"runtime.py has the place {place!r} {runtime.count(place)} times; it needs it once")
        runtime = runtime.replace(place, value)
    return runtime


@cache
def _runtime_names() -> dict[str, bool]:
    """The module-level names of the shared part; True for those that an import binds."""
    names: dict[str, bool] = {}
    for node in ast.parse(runtime_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update({alias.asname or alias.name: True for alias in node.names})
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = False
        elif isinstance(node, ast.Assign | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update({n.id: False for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)})
    return names


def builtins_needed(text: str) -> set[str]:
    """The builtin functions and classes that the generated part of a file's `text` uses."""
    return Names(ast.parse(text.partition(_MODEL_MARK)[0])).builtins() & set(dir(builtins))


def _check_names(source: Rewritten) -> None:
    """The user's part must not rebind what the generated part uses; importing the same module is no harm."""
    for name, imported in _runtime_names().items():
        if name in source.module_names and not (imported and source.module_names[name] == _import_of(name)):
            raise ModelFileError(f"the model file binds the name {name}, which the generated file needs; rename it")


def _import_of(name: str) -> str:
    return {"nn": "torch.nn", "namedtuple": "collections.namedtuple"}.get(name, name)


def _header(layers: Sequence[PlannedLayer]) -> str:
    rows: list[tuple[str, str, str]] = []
    for layer in layers:
        rows.append((layer.name, layer.plan.problem.layer.describe(), plan_words(layer.plan, layer.left)))
        if not layer.left:
            recorded = (*layer.plans[1:], *layer.cast)
            others = [(use, plan) for use, plan in layer.variants.items() if plan in recorded]
            rows += [("", "", f"{use}: {plan_words(plan)}") for use, plan in others]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [
        f"{GENERATED_MARK} {__version__}",
        "#",
        "# ModelNew is the Model of the file below, with its transposed convolutions on the CUDA kernels in this file.",
        "# torch.utils.cpp_extension.load_inline builds them when a ModelNew is constructed on a machine with a GPU.",
        "#",
    ]
    lines += [f"#   {name:{widths[0]}}  {problem:{widths[1]}}  {plan}" for name, problem, plan in rows]
    return "\n".join(lines) + "\n"


def plan_words(plan: Plan, left: bool = False) -> str:
    """A plan in few words."""
    if left:
        return "left to PyTorch"
    kernel = plan.kernel
    return f"{kernel.family}: {plan.grid} blocks of {kernel.threads}, {plan.shared_bytes} bytes of shared memory"


def _kernels(layers: Sequence[PlannedLayer]) -> dict[Layer, list[Kernel[Any]]]:
    """The kernels that are recorded for each layer, the one that runs at every size and on every GPU last."""
    kernels: dict[Layer, list[Kernel[Any]]] = {}
    groups = [plans for layer in layers for plans in (layer.plans, layer.cast)]
    # At some sizes the first one does not run: who has both says the order.
    for plan in (plan for plans in sorted(groups, key=len, reverse=True) for plan in plans):
        of_layer = kernels.setdefault(plan.problem.layer, [])
        if plan.kernel not in of_layer:
            of_layer.append(plan.kernel)
    return {plan.problem.layer: kernels[plan.problem.layer] for plans in groups for plan in plans}


def _twin(plan: Plan) -> Plan | None:
    """The same in the other type of 16 bits; None for other types."""
    precision = _TWINS.get(plan.problem.layer.precision)
    return None if precision is None else in_precision(plan, precision)


def in_precision(plan: Plan, precision: Precision) -> Plan:
    """The plan of a kernel of the same tile."""
    problem, kernel = plan.problem, plan.kernel
    return replace(
        plan,
        problem=replace(problem, layer=replace(problem.layer, precision=precision)),
        kernel=replace(kernel, layer=replace(kernel.layer, precision=precision)),
    )


def _recorded(layer: Layer, kernels: Sequence[Kernel[Any]]) -> str:
    """What is recorded for a layer."""
    made = "".join(textwrap.indent(f"{recorded_kernel(kernel)},\n", " " * 8) for kernel in kernels)
    return f"{_layer(layer)}: [\n{made}    ]"


def recorded_kernel(kernel: Kernel[Any]) -> str:
    """The text that makes a kernel in a generated file."""
    launching = FAMILIES[kernel.family].launching(kernel.layer, kernel.tile, 1)
    numbers = {
        "threads": kernel.threads,
        "blocks": kernel.blocks,
        "shared_bytes": launching.shared_bytes,
        "weight_bytes": launching.weight_bytes,
        "columns_together": launching.columns_together,
        "prepares_inputs": kernel_source.prepares_inputs(kernel),
    }
    tile = list(map(_literal, kernel_source.tile_members(kernel.tile).splitlines()))
    lines = [
        f'"{kernel.family}",',
        f"{_layer(kernel.layer)},",
        *tile[:-1],
        f"{tile[-1]},",
        ", ".join(f"{name}={value}" for name, value in numbers.items()) + ",",
    ]
    return "_Kernel(\n" + "".join(f"    {line}\n" for line in lines) + ")"


def _literal(line: str) -> str:
    """A line of CUDA text as Python's, where it is long in several pieces, none of which ends within ``a = 1``."""
    pieces = textwrap.wrap(line.replace(" = ", _EQUALS), 100, drop_whitespace=False)
    return '"' + '"\n    "'.join(pieces).replace(_EQUALS, " = ") + '\\n"'


def _layer(layer: Layer) -> str:
    def triple(values: Triple) -> str:
        return "({}, {}, {})".format(*values)

    axes = ", ".join(map(triple, (layer.kernel, layer.stride, layer.padding, layer.dilation)))
    channels = f"{layer.spatial_dims}, {layer.in_channels}, {layer.out_channels}"
    return f'_Layer({channels}, {axes}, {layer.groups}, {layer.bias}, "{layer.precision}")'


def _cuda(text: str) -> str:
    """Headers as a piece of Python."""
    return f'r"""\n{kernel_source.in_namespace([text])}"""'


def _dict_of(name: str, entries: Sequence[str]) -> str:
    if not entries:
        return f"{name} = {{}}\n"
    return f"{name} = {{\n" + "".join(f"    {entry},\n" for entry in entries) + "}\n"


def _tuple_of(name: str, items: Sequence[str]) -> str:
    if not items:
        return f"{name} = ()\n"
    return f"{name} = (\n" + "".join(f"    {item},\n" for item in dict.fromkeys(items)) + ")\n"
