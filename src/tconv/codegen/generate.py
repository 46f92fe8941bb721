"""From a model file's text and its plans to the text of the generated file."""

from __future__ import annotations

import ast
import builtins
import hashlib
import io
import itertools
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tconv.codegen import runtime
from tconv.codegen.cuda import Written, cuda_texts
from tconv.codegen.loading import calls_its_own
from tconv.codegen.names import Names
from tconv.codegen.rewrite import FORWARD, Rewritten
from tconv.codegen.spelled import spelled
from tconv.kernels import source as kernel_source
from tconv.planner import FAMILIES, Kernel, Plan
from tconv.pointwise.calls import known_gradient
from tconv.pointwise.derivative import BY_RESULT, Computed, Gradient, Source
from tconv.pointwise.program import parse
from tconv.problem import TF32, Layer, Problem
from tconv.sandbox.behind import FUSED, POINTWISE, KnownTail
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.source_scan import GENERATED_MARK
from tconv.version import __version__

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
#: What has no tail in other files.
_TAIL_ARGUMENTS = ((", tail=None", ""), ("*options, tail)", "*options)"))
#: And what computes nothing behind a layer.
_PROGRAM_ARGUMENTS = ((", *operands", ""), (", *of_part", ""))
_BLANK = "\r\n"
_LINE = "# " + "-" * 118 + "\n"
#: What stands between the generated part and the user's, and above the kernels.
_MODEL_MARK, _TEXT_MARK = f"{_LINE}# The model file\n{_LINE}", f"{_LINE}# The kernels\n{_LINE}"
#: So long an entry for a kernel may be that it stands in one line.
_ENTRY = 110
#: Where the kernels of a family run.
_GPUS = {
    "direct": "CUDA cores from compute capability 7.5 on",
    "mma": "tensor cores from 8.0 on",
    "wgmma": "tensor cores of Hopper, 9.0",
}
#: What tails call that autocast computes in float32, and gives in that.
_IN_FLOAT = frozenset(
    {"exp", "expm1", "log", "log1p", "pow", "reciprocal", "rsqrt", "rdiv", "softplus", "rtruediv"}
    | {"special_expm1", "special_log1p"}
)
#: In the head, the lines at which they stand.
_LINES = {"LINE OF THE MODEL": _MODEL_MARK, "LINE OF THE KERNELS": _TEXT_MARK}


class Behind(NamedTuple):
    """What becomes of a layer's outputs in its kernel.

    Args:
        program: what is computed of them; "" where nothing is.
        into: how many channels the tensor has of which they are a slice; 0 where they are all of it.
        backward: the program gives the gradient of the layer's result.
    """

    program: str = ""
    into: int = 0
    backward: bool = False

    def kernel(self, kernel: Kernel[Any]) -> Kernel[Any]:
        """The same tile with the program behind the layer; where outputs are written is no part of a kernel."""
        return replace(kernel, layer=replace(kernel.layer, tail=self.program))

    def problem(self, problem: Problem) -> Problem:
        """A problem with this behind its layer."""
        return replace(problem, layer=replace(problem.layer, tail=self.program), into=self.into)

    def describe(self) -> str:
        """``then max(y, 0), into 128 channels``."""
        when = "backward: " if self.backward else "then "
        said = [when + self.program] * bool(self.program) + [f"into {self.into} channels"] * bool(self.into)
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
        any_size: what runs it where `plan` does not: at rows of any width. None where `plan` does.
        types: the same two of each further element type that was asked for.
        tails: what becomes of its outputs in the model as it is built.
        in_evaluation: the same in evaluation mode, where that is another one.
        backward: what becomes of them in backward passes through those.
    """

    name: str
    plan: Plan
    count: int = 1
    called: bool = False
    line: int | None = None
    left: bool = False
    reason: str = ""
    any_size: Plan | None = None
    types: tuple[tuple[Plan, ...], ...] = ()
    tails: tuple[Behind, ...] = (Behind(),)
    in_evaluation: tuple[Behind, ...] = ()
    backward: tuple[Behind, ...] = ()
    compiled: tuple[int, ...] = ()

    @property
    def behind(self) -> tuple[Behind, ...]:
        """What its kernels do beside computing the layer."""
        all_of_them = (*self.tails, *self.in_evaluation, *self.backward)
        return tuple(dict.fromkeys(each for each in all_of_them if any(each)))

    @property
    def groups(self) -> tuple[tuple[Plan, ...], ...]:
        """The plans that the file records, those for the model's own type first, and of each type the best one."""
        own = (self.plan,) if self.any_size is None else (self.plan, self.any_size)
        return (own, *self.types)

    @property
    def variants(self) -> dict[str, Plan]:
        """The same by their use: ``""``, ``"any size"``, ``"float16"``, ``"float16, any size"``."""
        own = self.plan.problem.layer.dtype
        found: dict[str, Plan] = {}
        for plans in self.groups:
            for plan, size in zip(plans, ("", "any size"), strict=False):
                dtype = plan.problem.layer.dtype
                found[", ".join(filter(None, ["" if dtype == own else dtype, size]))] = plan
        return found

    @property
    def fused(self) -> dict[str, Plan]:
        """Of `variants` those that the file has with what stands behind the layer, too: of each type the best one.

        At sizes that these do not run, it stands behind the kernel for any size.
        """
        return {use: plan for use, plan in self.variants.items() if plan in [plans[0] for plans in self.groups]}


@dataclass(frozen=True)
class Tails:
    """What a file knows of the tails in its text.

    Args:
        known: those that it can tell of others, by what they read.
        programs: by what tails call.
        modules: the classes of modules that they call, by their names in `torch.nn`.
    """

    known: Sequence[KnownTail] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()


NO_TAILS = Tails()


def generate(
    source: Rewritten,
    layers: Sequence[PlannedLayer],
    tails: Tails = NO_TAILS,
    left: Sequence[str] = (),
    elsewhere: str = "pytorch",
) -> str:
    """The text of the file. The same arguments give the same bytes.

    Args:
        source: the user's file, rewritten.
        layers: every transposed convolution that one forward of the model runs.
        tails: none in a file without programs.
        left: names of modules that stay PyTorch's, and of calls, which have none.
        elsewhere: what the file does with calls that none of its kernels runs: `ELSEWHERE` in runtime/records.py.

    Raises:
        ModelFileError: the user's file uses a name that the generated part needs.
    """
    _check_names(source)
    left = [*(layer.name for layer in layers if layer.left and not layer.called), *left]
    planned = [layer for layer in layers if not layer.left]
    recorded = _recorded(planned)
    kernels = [each.written for of_layer in recorded.values() for each in of_layer]
    texts = cuda_texts(kernels)
    programs = list(dict.fromkeys(each.kernel.layer.tail for each in kernels if each.kernel.layer.tail))
    places = _places(kernels)
    constants = dict(zip(programs, _free("_PROGRAM_{}", source), strict=False))
    # Of a layer that is left to PyTorch there is no kernel with the program.
    known = [each for each in tails.known if (program := tails.programs.get(each.calls)) == "" or program in constants]
    called_behind = dict.fromkeys(each.calls for each in known if tails.programs[each.calls])
    again = dict(zip(called_behind, _free("_behind_{}", source), strict=False))
    gradients = [_gradient(each, constants) if each.calls in again else None for each in known]
    types = {plan.kernel.layer.dtype for layer in planned for plans in layer.groups for plan in plans}
    tailed = [
        _tailed(
            each, gradient, constants.get(tails.programs[each.calls], '""'), again.get(each.calls), constants, types
        )
        for each, gradient in zip(known, gradients, strict=True)
    ]
    entries = [_entry(layer, of_layer, places, constants) for layer, of_layer in recorded.items()]
    scales = any(
        isinstance(source, Computed) and learns
        for tail, gradient in zip(known, gradients, strict=True)
        for source, learns in zip(gradient.sources if gradient else (), tail.learns, strict=False)
    )
    # The text may hand tails to layers all of which are left to PyTorch.
    hands_over = any(layer.behind for layer in planned) or f"{FUSED}(" in source.body
    called = any(layer.called for layer in layers)
    wanted = {
        runtime.FUNCTIONS: called or "cuda_conv_transpose" in source.body,
        runtime.ELSEWHERE: (built_elsewhere := bool(left) or _built_elsewhere(source)),
        runtime.LAZY: built_elsewhere or "CudaLazyConvTranspose" in source.body,
        runtime.PREPARED: any(kernel_source.prepares_weights(each.kernel.family) for each in kernels),
        runtime.TAILS: hands_over,
        runtime.PROGRAMS: bool(programs),
        runtime.SCALES: scales,
        runtime.SEQUENCES: bool(programs) and bool(tails.modules),
    }
    values = {
        'ELSEWHERE = "pytorch"\n': f'ELSEWHERE = "{elsewhere}"\n',
        "_CUDA = {}\n": _cuda(texts),
        "_RECORDED = {}\n": _dict_of("_RECORDED", entries),
        "_TEXTS = ()\n": "".join(f"{name} = {_string(text, 0)}\n" for text, name in constants.items()),
        "_PROGRAMS = {}\n": _dict_of("_PROGRAMS", [f"{constants[each]}: {_operands(each)}" for each in programs]),
        "_BEHIND = ()\n": "\n".join(spelled(calls, name) for calls, name in again.items()),
        "_TAILS = {}\n": _dict_of("_TAILS", tailed),
        "_POINTWISE = {}\n": _dict_of("_POINTWISE", list(map(_pointwise, tails.modules))),
        "_LEFT = ()\n": _tuple_of("_LEFT", [f'"{name}"' for name in left]),
    }
    above = _filled(runtime.text_for(wanted), values)
    below = _filled(runtime.part(runtime.BELOW), values)
    for argument, bare in (*(() if hands_over else _TAIL_ARGUMENTS), *(() if programs else _PROGRAM_ARGUMENTS)):
        above = above.replace(argument, bare)
    if not built_elsewhere:
        above = _CLASS.sub(lambda line: line[0] if line[1] in source.body else "", above)
    # The user's own part stays as it is.
    above = above.replace("\n\n\n", "\n\n")
    prologue = f"{source.prologue.rstrip()}\n\n" if source.prologue else ""
    model = f"{_MODEL_MARK}\n{source.body.strip(_BLANK)}"
    text = f"{_TEXT_MARK}\n{below.strip()}"
    # Who reads the file comes to the model first. One that is built while the file is loaded needs the kernels there.
    rest = (text, model) if calls_its_own(source.body) else (model, text)
    text = f"{_header(layers, source.model)}\n{prologue}{above.rstrip()}\n\n\n" + "\n\n\n".join(rest) + "\n"
    ends, text = "\r\n" if "\r\n" in text else "\n", text.replace("\r\n", "\n")
    for place, mark in _LINES.items():
        text = text.replace(place, str(text[: text.rindex(mark)].count("\n") + 2), 1)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return text.replace(_OPERATOR_NAME, _OPERATOR_NAME.replace("DIGEST", digest), 1).replace("\n", ends)


def _built_elsewhere(source: Rewritten) -> bool:
    """Whether the model may have modules that the file's own text does not construct."""
    imported = {path.partition(".")[0] for path in source.module_names.values() if path}
    if imported - {"torch", *sys.stdlib_module_names} or _RELATIVE.search(source.body):
        return True
    own = _DERIVED.sub("", source.prologue + source.body)
    tokens = tokenize.generate_tokens(io.StringIO(own).readline)
    return any(token.type == tokenize.NAME and _BRINGS_MODULES.fullmatch(token.string) for token in tokens)


def _filled(text: str, values: Mapping[str, str]) -> str:
    """A part of the runtime with its places filled in."""
    for place, value in values.items():
        if text.count(place) > 1:
            raise ValueError(f"the runtime has the place {place!r} {text.count(place)} times")
        text = text.replace(place, value)
    return text


def builtins_needed(text: str) -> set[str]:
    """The builtin functions and classes that the generated part of a file's `text` uses."""
    above = text.replace("\r\n", "\n").partition(_MODEL_MARK)[0]
    return Names(ast.parse(above)).builtins() & set(dir(builtins))


def _check_names(source: Rewritten) -> None:
    """The user's part must not rebind what the generated part uses; importing the same module is no harm."""
    for name, imported in runtime.names().items():
        if name in source.module_names and not (imported and source.module_names[name] == _import_of(name)):
            raise ModelFileError(f"the model file binds the name {name}, which the generated file needs; rename it")


def _import_of(name: str) -> str:
    return {"nn": "torch.nn", "namedtuple": "collections.namedtuple"}.get(name, name)


def _header(layers: Sequence[PlannedLayer], model: str) -> str:
    rows: list[tuple[str, str, str]] = []
    for layer in layers:
        rows.append((layer.name, layer.plan.problem.layer.describe(), plan_words(layer.plan, layer.left)))
        if not layer.left:
            rows += [("", "", f"{use}: {plan_words(plan)}") for use, plan in layer.variants.items() if use]
            rows += [("", "", each.describe()) for each in layer.behind if not each.backward]
            rows += [("", "", "backward: gradients by the same kernel")] * bool(layer.backward)
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
    lines += ["#", *_made_for(layers)]
    return "\n".join(lines) + "\n"


def types_of(layers: Sequence[PlannedLayer]) -> list[str]:
    """The element types that the file has kernels for, the model's own first, by torch's names."""
    plans = (plan for layer in layers if not layer.left for plans in layer.groups for plan in plans)
    return list(dict.fromkeys(plan.problem.layer.dtype for plan in plans))


def _made_for(layers: Sequence[PlannedLayer]) -> list[str]:
    """What the file is for, and what becomes of all else, as comments."""
    families = {plan.kernel.family for layer in layers if not layer.left for plan in layer.variants.values()}
    gpus = [words for family, words in _GPUS.items() if family in families]
    return [
        f"# Made for {' and '.join(types_of(layers)) or 'no type'} only (others: --types), at any batch and map size.",
        f"# Runs on {'; '.join(gpus)}.",
        "# All else PyTorch runs, with a warning that says why; ELSEWHERE below makes it an error.",
    ]


def plan_words(plan: Plan, left: bool = False) -> str:
    """A plan in few words."""
    if left:
        return "left to PyTorch"
    kernel = plan.kernel
    return f"{kernel.family}: {plan.grid} blocks of {kernel.threads}, {plan.shared_bytes} bytes of shared memory"


class _Recorded(NamedTuple):
    """A kernel of the file, and of the launch what is recorded with it."""

    written: Written
    shared_bytes: int
    weight_bytes: int


def _recorded(layers: Sequence[PlannedLayer]) -> dict[Layer, list[_Recorded]]:
    """The kernels of each layer, with all that stands behind it; of each kind the one that runs at any size last."""
    found: dict[Layer, dict[Kernel[Any], _Recorded]] = {}
    names: set[str] = set()
    own = {plan.problem.layer.dtype for layer in layers for plan in layer.groups[0]}
    # At some sizes the first one does not run: who has both says the order.
    for layer in sorted(layers, key=lambda layer: -max(map(len, layer.groups))):
        for plans in layer.groups:
            of_layer = found.setdefault(plans[0].problem.layer, {})
            for number, behind in enumerate((Behind(), *layer.behind)):
                for plan, size in zip(plans[:1] if number else plans, ("", "any_size"), strict=False):
                    kernel = behind.kernel(plan.kernel)
                    if kernel in of_layer:
                        continue
                    dtype = kernel.layer.dtype if len(own) > 1 or kernel.layer.dtype not in own else ""
                    own_name = layer.name if layer.name.startswith("conv") else f"conv_{layer.name}"
                    ending = f"backward_{number}" if behind.backward else f"then_{number}"
                    parts = [own_name, dtype, ending if number else "", size]
                    name = _name(parts, names)
                    prepared = 0 if plan.preparation is None else plan.preparation.bytes
                    of_layer[kernel] = _Recorded(Written(kernel, name), plan.shared_bytes, prepared)
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


def _places(kernels: Sequence[Written]) -> dict[str, int]:
    """By its name, the number of each kernel among those of its family."""
    found: dict[str, int] = {}
    for family in dict.fromkeys(each.kernel.family for each in kernels):
        of_family = [each.name for each in kernels if each.kernel.family == family]
        found.update({name: number for number, name in enumerate(of_family)})
    return found


def _entry(layer: Layer, kernels: Sequence[_Recorded], places: Mapping[str, int], constants: Mapping[str, str]) -> str:
    """What is recorded for a layer; `constants` are the file's names of programs."""
    made = "".join(f"        {_kernel(layer, each, places[each.written.name], constants)},\n" for each in kernels)
    return f"{_layer(layer)}: [\n{made}    ]"


def _kernel(layer: Layer, recorded: _Recorded, place: int, constants: Mapping[str, str]) -> str:
    kernel, name = recorded.written
    columns = FAMILIES[kernel.family].launching(kernel.layer, kernel.tile, 1).columns_together
    single = tuple(axis for axis in range(3) if kernel.layer.stride[axis] != layer.stride[axis])
    told = {
        "shared_bytes": recorded.shared_bytes,
        "columns": columns if columns > 1 else None,
        "single": single or None,
        "tf32": kernel.layer.precision in TF32 or None,
        "weight_bytes": recorded.weight_bytes or None,
        "prepares_inputs": kernel_source.prepares_inputs(kernel) or None,
        "program": constants.get(kernel.layer.tail),
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


def _cuda(texts: Mapping[str, str]) -> str:
    """The text of each family as a piece of Python."""
    return _dict_of("_CUDA", [f'"{family}": r"""\n{text}"""' for family, text in texts.items()])


def _operands(text: str) -> str:
    """What is recorded of a program: the names of what it reads."""
    return str(tuple(operand.name for operand in parse(text).operands)).replace("'", '"')


def _free(form: str, source: Rewritten) -> Iterator[str]:
    """Names of that form, numbered, that the user's text does not bind."""
    return (each for each in map(form.format, itertools.count(1)) if each not in source.module_names)


def _gradient(tail: KnownTail, constants: Mapping[str, str]) -> Gradient | None:
    """The gradient of a tail; None where the file has not all kernels for it."""
    gradient = known_gradient(tail.calls)
    return gradient if gradient and all(text in constants for text in gradient.programs(tail.learns)) else None


def _tailed(
    tail: KnownTail,
    gradient: Gradient | None,
    program: str,
    again: str | None,
    constants: Mapping[str, str],
    types: set[str],
) -> str:
    """What is recorded of a tail: its program, and whence gradients come behind it.

    Args:
        program: its name.
        again: the name of the function that says the same in PyTorch's operators; None for a tail that calls nothing.
        types: of the file's layers.
    """
    words = [program]
    words += [f"operands={tail.operands}"] * bool(tail.operands)
    words += [f"again={again}"] * bool(again)
    if gradient is not None:
        sources = [_source(*each, constants) for each in zip(gradient.sources, tail.learns, strict=True)]
        words += [f"sources=({', '.join(sources)}{',' * (len(sources) == 1)})"] * bool(sources)
        if gradient.function is None:
            words += [f"backward={constants[gradient.of_sum.program.text]}"]
            words += [f"reads={gradient.of_sum.reads}"] * bool(gradient.of_sum.reads)
        else:
            words += [f"slope=lambda gradient, y: {_slope(gradient.function, gradient.factor)}"]
            words += ["keeps=True"] * bool(gradient.function)
    words += ["wide=True"] * any(name in _IN_FLOAT for name in re.findall(r"\w+(?=\()", tail.calls))
    if not types <= set(tail.types):
        words += [f"types=({' '.join(f'torch.{dtype},' for dtype in tail.types)})"]
    said = ", ".join(f'"{part}"' if isinstance(part, str) and '"' not in part else repr(part) for part in tail.said)
    said = f"({said}{',' * (len(tail.said) == 1)})"
    line = f"{said}: _Tailed({', '.join(words)})"
    if len(line) < _ENTRY and "\n" not in line:
        return line
    return f"{said}: _Tailed(\n" + "".join(f"        {word},\n" for word in words) + "    )"


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


def _string(text: str, indent: int = 4) -> str:
    """A string, in several lines where it is long, in an entry that is so far to the right."""
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return f'"{text}"'
    left = " " * indent
    words = [f'{left}    "{line} "\n' for line in lines[:-1]] + [f'{left}    "{lines[-1]}"\n']
    return f"(\n{''.join(words)}{left})"


def _pointwise(name: str) -> str:
    """What is recorded of a class of modules."""
    said = (str(tuple(names.split())).replace("'", '"') for names in POINTWISE[name])
    return f"nn.{name}: (\n" + "".join(f"        {words},\n" for words in said) + "    )"


def _dict_of(name: str, entries: Sequence[str]) -> str:
    if not entries:
        return f"{name} = {{}}\n"
    return f"{name} = {{\n" + "".join(f"    {entry},\n" for entry in entries) + "}\n"


def _tuple_of(name: str, items: Sequence[str]) -> str:
    if not items:
        return f"{name} = ()\n"
    return f"{name} = (\n" + "".join(f"    {item},\n" for item in dict.fromkeys(items)) + ")\n"
