"""From a model file's text and its plans to the text of the generated file."""

from __future__ import annotations

import ast
import builtins
import hashlib
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tconv import problem
from tconv.codegen.excerpt import excerpt, methods
from tconv.codegen.headers import PRIMITIVES, kernel_texts
from tconv.codegen.headers.layout import compact, filled
from tconv.codegen.loading import calls_its_own
from tconv.codegen.names import Names
from tconv.codegen.rewrite import FORWARD, Rewritten
from tconv.kernels import source as kernel_source
from tconv.planner import FAMILIES, Gpu, Kernel, Plan
from tconv.planner.direct.tile import DirectTile
from tconv.pointwise.functor import functor
from tconv.pointwise.program import parse
from tconv.problem import Layer, Precision, Problem, Triple
from tconv.sandbox.behind import FUSED, POINTWISE
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.source_scan import GENERATED_MARK
from tconv.version import __version__

_MARK, _KERNELS_MARK = "# ---- copied from here on\n", "# ---- the kernels from here on\n"
#: Of the operator that compilers see: two files in one process have two.
_OPERATOR_NAME = '"tconv_DIGEST"'
#: Names by which a file may come to modules, or to torch's classes for them, in other ways than by constructing them.
_BRINGS_MODULES = re.compile(
    r"(Lazy)?ConvTranspose[123]d|__class__|__dict__|__import__|eval|exec|getattr|globals|hub|import_module|jit|load|vars"
)
_RELATIVE = re.compile(r"^[ \t]*from[ \t]*\.", re.MULTILINE)
#: A base class that the rewriter has left, with what stands before it.
_DERIVED = re.compile(rf"{FORWARD}, [\w.]+")
#: A class for layers: of those that the model does not name only what is built elsewhere needs any.
_CLASS = re.compile(r"^(Cuda\w+) = _on_cuda\(.*\n", re.MULTILINE)
#: Around what only some files have.
_ONLY = re.compile(r"^ *(?:#|//) ---- (where .*)\n", re.MULTILINE)
_TAILS, _PROGRAMS, _SEQUENCES = (
    "where tails are fused",
    "where programs are computed",
    "where sequences are fused",
)
#: Where the text begins by which tails are handed to layers, and what stands behind it.
_OF_TAILS = (
    ("_COMPARISONS = ", "# ---- the modules ---"),
    ("class _Equal(", "class _CudaForward:"),
    ("class CudaSequential(", "CudaSequential.__name__"),
)
#: What has no tail in other files.
_TAIL_ARGUMENTS = ((", tail=None", ""), ("*options, tail)", "*options)"))
_BLANK = "\r\n"
#: An equals sign at which no line is broken.
_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
#: What the functor of a program is called before it has the name of a kernel's.
_PROGRAM = "PROGRAM"
#: Tiles are CUDA text already.
_RENAMED = {"tile_members": "str"}
#: Both types of 16 bits take the same tiles.
_TWINS: dict[Precision, Precision] = {"fp16": "bf16", "bf16": "fp16"}
_LINE = "# " + "-" * 118 + "\n"
#: What stands between the generated part and the user's, and above the kernels.
_MODEL_MARK, _TEXT_MARK = f"{_LINE}# The model file\n{_LINE}", f"{_LINE}# The kernels\n{_LINE}"
#: In the head, the lines at which they stand.
_LINES = {"LINE OF THE MODEL": _MODEL_MARK, "LINE OF THE KERNELS": _TEXT_MARK}


class Behind(NamedTuple):
    """What becomes of a layer's outputs in its kernel.

    Args:
        program: what is computed of them; "" where nothing is.
        into: how many channels the tensor has of which they are a slice; 0 where they are all of it.
    """

    program: str = ""
    into: int = 0

    def kernel(self, kernel: Kernel[Any]) -> Kernel[Any]:
        """The same tile for a layer with this behind it."""
        return replace(kernel, layer=self.layer(kernel.layer))

    def layer(self, layer: Layer) -> Layer:
        """A layer with this behind it."""
        return replace(layer, tail=self.program, into=self.into)

    def describe(self) -> str:
        """``then max(y, 0), into 128 channels``."""
        said = [f"then {self.program}"] * bool(self.program) + [f"into {self.into} channels"] * bool(self.into)
        return ", ".join(said)


@dataclass(frozen=True)
class PlannedLayer:
    """A transposed convolution of the model and how it is computed.

    Args:
        name: the module's qualified name, or where the function is called.
        plan: what was planned for the sizes of ``get_inputs()``.
        count: how often a forward pass runs it.
        called: it is a call of a function, not a module.
        line: of the model file, for a call that stands there.
        compiled: of the model file, lines that TorchScript compiles with it.
        left: it stays PyTorch's, for this reason.
        portable: what runs the layer at other sizes and on other GPUs, where that is neither `plan` nor `gemm`.
        cast: what is recorded for the other width of floating point, float32 or 16 bits; the best one first.
        gemm: the problems that the file's kernel for dense layers runs instead: this one at other sizes and on other
            GPUs, and in the other width.
        tails: what becomes of its outputs in the model as it is built.
        in_evaluation: the same in evaluation mode, where that is another one.
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
    gemm: tuple[Problem, ...] = ()
    tails: tuple[Behind, ...] = (Behind(),)
    in_evaluation: tuple[Behind, ...] = ()
    compiled: tuple[int, ...] = ()

    @property
    def behind(self) -> tuple[Behind, ...]:
        """What its kernels do beside computing the layer."""
        return tuple(dict.fromkeys(each for each in (*self.tails, *self.in_evaluation) if any(each)))

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Of every kernel that the file records for its own type, the best one first."""
        return (self.plan,) if self.portable is None else (self.plan, self.portable)

    @property
    def variants(self) -> dict[str, Plan]:
        """The plans of every kernel that the file has for it, by their use: ``""``, ``"elsewhere"``, ``"float16"``, …

        Those for the model's own type come first, and of each type the best one.
        """
        own, dense = self.plan.problem.layer.dtype, [_any_dense(problem) for problem in self.gemm]
        elsewhere = [plan for plan in dense if plan.problem.layer.dtype == own]
        cast = self.cast or tuple(plan for plan in dense if plan not in elsewhere)
        recorded = ((*self.plans, *elsewhere), cast)
        found: dict[str, Plan] = {}
        for plans in (*recorded, *(tuple(filter(None, map(_twin, plans))) for plans in recorded)):
            for plan, where in zip(plans, ("", "elsewhere"), strict=False):
                dtype = plan.problem.layer.dtype
                found[", ".join(filter(None, ["" if dtype == own else dtype, where]))] = plan
        return found


@dataclass(frozen=True)
class Tails:
    """What a file knows of the tails in its text.

    Args:
        programs: by what tails call, as the file notes it.
        modules: the classes of modules that they call, by their names in `torch.nn`.
    """

    programs: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()


NO_TAILS = Tails()


def generate(
    source: Rewritten,
    layers: Sequence[PlannedLayer],
    gpu: Gpu,
    float32: str = "match",
    tails: Tails = NO_TAILS,
    left: Sequence[str] = (),
) -> str:
    """The text of the file. The same arguments give the same bytes.

    Args:
        source: the user's file, rewritten.
        layers: every transposed convolution that one forward of the model runs.
        gpu: what was planned for.
        float32: the precision that was asked for: ``"match"``, ``"tf32"`` or ``"fp32"``.
        tails: none in a file without programs.
        left: names of modules that stay PyTorch's, and of calls, which have none.

    Raises:
        ModelFileError: the user's file uses a name that the generated part needs.
    """
    _check_names(source)
    left = [*(layer.name for layer in layers if layer.left and not layer.called), *left]
    planned = [layer for layer in layers if not layer.left]
    plans = [plan for layer in planned for plan in layer.variants.values()]
    behind = list(dict.fromkeys(each for layer in planned for each in layer.behind))
    programs = list(dict.fromkeys(each.program for each in behind if each.program))
    parts = ["configuration", "function", *["is_dense"] * any(layer.gemm for layer in planned)]
    parts += ["reads_and_program"] * bool(programs)
    configuration = excerpt([kernel_source], parts, _RENAMED)
    kernels = [plan.kernel for plan in plans] + [
        each.kernel(plan.kernel) for layer in planned for each in layer.behind for plan in layer.variants.values()
    ]
    headers = {name: _cuda(text) for name, text in kernel_texts(kernels, "").items()}
    recorded = [_recorded(layer, of) for layer, of in _kernels(planned).items()]
    runtime = _filled(
        {
            '_PRIMITIVES = r""\n': f"_PRIMITIVES = {headers.pop(PRIMITIVES)}\n",
            "_KERNELS = {}\n": _dict_of("_KERNELS", [f'"{name}": {text}' for name, text in headers.items()]),
            "_RECORDED = {}\n": _dict_of("_RECORDED", recorded),
            "_PROGRAMS = {}\n": _dict_of("_PROGRAMS", list(map(_program, programs))),
            "_CALLS = {}\n": _dict_of(
                "_CALLS",
                [f"{_string(calls)}: {_string(text)}" for calls, text in sorted(tails.programs.items())],
            ),
            "_BEHIND = {}\n": _dict_of("_BEHIND", _behind(planned)),
            "_POINTWISE = {}\n": _dict_of("_POINTWISE", list(map(_pointwise, tails.modules))),
            "_CALLED = ()\n": _tuple_of("_CALLED", [_layer(p.plan.problem.layer) for p in planned if p.called]),
            "_LEFT = ()\n": _tuple_of("_LEFT", [f'"{name}"' for name in left]),
            '_FLOAT32 = "match"\n': f'_FLOAT32 = "{float32}"\n',
            "_PLANNED = _Gpu(227 * 1024, True, 1)\n": f"_PLANNED = _Gpu(227 * 1024, True, {gpu.multiprocessors})\n",
            _place("    # ", "what a layer knows of itself"): methods(problem, "Layer", {"describe"}),
            _place("# ", "the configuration of a kernel as CUDA text"): configuration,
        }
    )
    families = set(headers)
    # The text may hand tails to layers all of which are left to PyTorch.
    tailed = bool(behind) or f"{FUSED}(" in source.body
    called = any(layer.called for layer in layers)
    wanted = {
        "where functions are called": called or "cuda_conv_transpose" in source.body,
        "where layers are built elsewhere": (elsewhere := bool(left) or _built_elsewhere(source)),
        "where layers are lazy": elsewhere or "CudaLazyConvTranspose" in source.body,
        "where a kernel runs any dense layer": kernel_source.ANY_DENSE_LAYER in families,
        "where tiles run other channels": any(map(kernel_source.adapts, families)),
        "where weights are prepared": any(map(kernel_source.prepares_weights, families)),
        "where inputs are prepared": any(kernel_source.prepares_inputs(plan.kernel) for plan in plans),
        _TAILS: tailed,
        _PROGRAMS: bool(programs),
        _SEQUENCES: bool(programs) and bool(tails.modules),
    }
    runtime = _only(runtime, wanted)
    for argument, bare in () if tailed else _TAIL_ARGUMENTS:
        runtime = runtime.replace(argument, bare)
    runtime, _, text = runtime.partition(_KERNELS_MARK)
    if not elsewhere:
        runtime = _CLASS.sub(lambda line: line[0] if line[1] in source.body else "", runtime)
    # The user's own part stays as it is.
    runtime = runtime.replace("\n\n\n", "\n\n")
    prologue = f"{source.prologue.rstrip()}\n\n" if source.prologue else ""
    model = f"{_MODEL_MARK}\n{source.body.strip(_BLANK)}"
    text = f"{_TEXT_MARK}\n{text.strip()}"
    # Who reads the file comes to the model first. One that is built while the file is loaded needs the kernels there.
    rest = (text, model) if calls_its_own(source.body) else (model, text)
    text = f"{_header(layers, source.model)}\n{prologue}{runtime.rstrip()}\n\n\n" + "\n\n\n".join(rest) + "\n"
    ends, text = "\r\n" if "\r\n" in text else "\n", text.replace("\r\n", "\n")
    for place, mark in _LINES.items():
        text = text.replace(place, str(text[: text.rindex(mark)].count("\n") + 2), 1)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return text.replace(_OPERATOR_NAME, _OPERATOR_NAME.replace("DIGEST", digest), 1).replace("\n", ends)


@cache
def runtime_text() -> str:
    """The parts that every generated file shares, with their places still empty."""
    text = Path(__file__).with_name("runtime.py").read_text(encoding="utf-8")
    return text.partition(_MARK)[2].lstrip("\n")


def tails_text() -> str:
    """Of the shared parts those by which tails are handed to layers."""
    text = _ONLY.sub("", runtime_text())
    return "\n".join(text[text.index(first) : text.index(behind)] for first, behind in _OF_TAILS)


def _built_elsewhere(source: Rewritten) -> bool:
    """Whether the model may have modules that the file's own text does not construct."""
    imported = {path.partition(".")[0] for path in source.module_names.values() if path}
    if imported - {"torch", *sys.stdlib_module_names} or _RELATIVE.search(source.body):
        return True
    own = _DERIVED.sub("", source.prologue + source.body)
    tokens = tokenize.generate_tokens(io.StringIO(own).readline)
    return any(token.type == tokenize.NAME and _BRINGS_MODULES.fullmatch(token.string) for token in tokens)


def _only(text: str, wanted: Mapping[str, bool]) -> str:
    """`text` without the parts between two equal marks that are not wanted, and without the marks."""
    parts = _ONLY.split(text)
    if parts[1::4] != parts[3::4] or set(parts[1::4]) != set(wanted):
        raise ValueError(f"runtime.py has the marks {parts[1::2]}; it needs pairs of {sorted(wanted)}")
    return parts[0] + "".join(
        (part if wanted[mark] else "") + behind
        for mark, part, behind in zip(parts[1::4], parts[2::4], parts[4::4], strict=True)
    )


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
    above = text.replace("\r\n", "\n").partition(_MODEL_MARK)[0]
    return Names(ast.parse(above)).builtins() & set(dir(builtins))


def _check_names(source: Rewritten) -> None:
    """The user's part must not rebind what the generated part uses; importing the same module is no harm."""
    for name, imported in _runtime_names().items():
        if name in source.module_names and not (imported and source.module_names[name] == _import_of(name)):
            raise ModelFileError(f"the model file binds the name {name}, which the generated file needs; rename it")


def _import_of(name: str) -> str:
    return {"nn": "torch.nn", "namedtuple": "collections.namedtuple"}.get(name, name)


def _header(layers: Sequence[PlannedLayer], model: str) -> str:
    rows: list[tuple[str, str, str]] = []
    for layer in layers:
        rows.append((layer.name, layer.plan.problem.layer.describe(), plan_words(layer.plan, layer.left)))
        if not layer.left:
            rows += [("", "", f"{', '.join(uses)}: {words}") for words, uses in _others(layer).items()]
            rows += [("", "", each.describe()) for each in layer.behind]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    model_line, kernels_line = _LINES
    lines = [
        f"{GENERATED_MARK} {__version__}",
        "#",
        f"# ModelNew is the model file's {model}, with its transposed convolutions on the CUDA kernels in this file.",
        "# torch.utils.cpp_extension.load_inline builds them when a ModelNew is constructed on a machine with a GPU.",
        f"# The model file begins at line {model_line}, the kernels at line {kernels_line}.",
        "#",
    ]
    lines += [f"#   {name:{widths[0]}}  {problem:{widths[1]}}  {plan}" for name, problem, plan in rows]
    return "\n".join(lines) + "\n"


def _others(layer: PlannedLayer) -> dict[str, list[str]]:
    """What else runs a layer than `plan`, in words, and where; of types that take the same tile, one."""
    found: dict[str, list[str]] = {}
    for use, plan in layer.variants.items():
        if use and (plan.kernel.tile is None or plan in (*layer.plans, *layer.cast)):
            found.setdefault(plan_words(plan), []).append(use.replace(", ", " "))
    return found


def plan_words(plan: Plan, left: bool = False) -> str:
    """A plan in few words."""
    if left:
        return "left to PyTorch"
    kernel = plan.kernel
    if kernel.tile is None:
        return kernel.family
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


def _any_dense(problem: Problem) -> Plan:
    """A problem on the kernel for dense layers, whose text says how it is launched."""
    return Plan(problem, Kernel[Any](kernel_source.ANY_DENSE_LAYER, problem.layer, None), 0, 0)


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
    made = "".join(f"        {recorded_kernel(layer, kernel)},\n" for kernel in kernels)
    return f"{_layer(layer)}: [\n{made}    ]"


def _program(text: str) -> str:
    """What is recorded of a program."""
    program = parse(text)
    operands = "".join(f'"{operand.name}", ' for operand in program.operands).rstrip(" ")
    # The mathematics stands above it.
    functor_text = compact(filled(functor(program, _PROGRAM).partition("\n")[2]))
    return f'{_string(text)}: (({operands}), r"""\n{functor_text}""")'


def _string(text: str) -> str:
    """A string, in several lines where it is long."""
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return f'"{text}"'
    return "(\n" + "\n".join(f'        "{line} "' for line in lines[:-1]) + f'\n        "{lines[-1]}"\n    )'


def _pointwise(name: str) -> str:
    """What is recorded of a class of modules."""
    said = (str(tuple(names.split())).replace("'", '"') for names in POINTWISE[name])
    return f"nn.{name}: ({', '.join(said)})"


def _behind(layers: Sequence[PlannedLayer]) -> list[str]:
    """The programs behind each layer as the model is built, for its own type."""
    found: dict[Layer, list[Behind]] = {}
    for layer in layers:
        found.setdefault(layer.plan.problem.layer, []).extend(layer.tails)
    of_layers = ((layer, list(dict.fromkeys(tails))) for layer, tails in found.items())
    return [
        f"{_layer(layer)}: [\n"
        + "".join(f"        ({_string(each.program)}, {each.into}),\n" for each in tails)
        + "    ]"
        for layer, tails in of_layers
        if any(map(any, tails))
    ]


def recorded_kernel(layer: Layer, kernel: Kernel[Any]) -> str:
    """The text that makes a kernel for `layer` in a generated file."""
    launching = FAMILIES[kernel.family].launching(kernel.layer, kernel.tile, 1)
    numbers = {
        "threads": kernel.threads,
        "blocks": kernel.blocks,
        "shared_bytes": launching.shared_bytes,
        "columns_together": launching.columns_together if launching.columns_together > 1 else None,
        "prepares_inputs": kernel_source.prepares_inputs(kernel) or None,
        "stride": kernel.layer.stride if kernel.layer.stride != layer.stride else None,
        **(_adapted_to(layer, kernel.tile) if kernel_source.adapts(kernel.family) else {}),
    }
    told = ", ".join(f"{name}={value}" for name, value in numbers.items() if value is not None)
    tile = kernel_source.tile_members(kernel.tile).splitlines()
    return f'_Kernel("{kernel.family}", {told}, tile="""\\\n' + "".join(map(_wrapped, tile)) + '""")'


def _adapted_to(layer: Layer, tile: DirectTile) -> dict[str, Any]:
    """The layers of the same filter that a tile runs: what the kernel asserts of padding and input channels."""
    staged_alike = tile.chunk_rows == (layer.kernel[1] if tile.stacked else 1)
    return {
        "padding_from": (0, tile.row_origin, tile.origin),
        "channels_to": None if staged_alike else tile.chunk_channels,
    }


def _wrapped(line: str) -> str:
    """A line of CUDA text in several where it is long, none of which ends within ``a = 1``."""
    pieces = textwrap.wrap(line.strip().replace(" = ", _EQUALS), 120, initial_indent="  ", subsequent_indent=" " * 6)
    return "\n".join(pieces).replace(_EQUALS, " = ") + "\n"


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
