"""From a model file's text and its plans to the text of the generated file."""

from __future__ import annotations

import ast
import builtins
import hashlib
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence

from tconv.codegen import records, runtime
from tconv.codegen.cuda import cuda_texts
from tconv.codegen.head import header
from tconv.codegen.loading import calls_its_own
from tconv.codegen.names import Names
from tconv.codegen.planned import NO_EPILOGUES, Epilogues, PlannedLayer
from tconv.codegen.rewrite import FORWARD, Rewritten
from tconv.codegen.spelled import spelled
from tconv.kernels import source as kernel_source
from tconv.planner import FAMILIES
from tconv.pointwise.derivative import Computed
from tconv.sandbox.epilogues import FUSED
from tconv.sandbox.model_file import ModelFileError

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
#: What has no epilogue in other files.
_EPILOGUE_ARGUMENTS = (
    *((", epilogue=None", ""), ("*options, epilogue)", "*options)")),
    *((' samples others")', ' samples")'), (", samples, {})", ", samples)")),
)
#: And what computes nothing behind a layer.
_PROGRAM_ARGUMENTS = ((", *operands", ""), (", *of_part", ""))
_BLANK = "\r\n"
_LINE = "# " + "-" * 118 + "\n"
#: What stands between the generated part and the user's, and above the kernels.
_MODEL_MARK, _TEXT_MARK = f"{_LINE}# The model file\n{_LINE}", f"{_LINE}# The kernels\n{_LINE}"
#: In the head, the lines at which they stand.
_LINES = {"LINE OF THE MODEL": _MODEL_MARK, "LINE OF THE KERNELS": _TEXT_MARK}


def generate(
    source: Rewritten,
    layers: Sequence[PlannedLayer],
    epilogues: Epilogues = NO_EPILOGUES,
    left: Sequence[str] = (),
    elsewhere: str = "pytorch",
) -> str:
    """The text of the file. The same arguments give the same bytes.

    Args:
        source: the user's file, rewritten.
        layers: every transposed convolution that one forward of the model runs.
        epilogues: none in a file without programs.
        left: names of modules that stay PyTorch's, and of calls, which have none.
        elsewhere: what the file does with calls that none of its kernels runs: `ELSEWHERE` in runtime/records.py.

    Raises:
        ModelFileError: the user's file uses a name that the generated part needs.
    """
    _check_names(source)
    left = [*(layer.name for layer in layers if layer.left and not layer.called), *left]
    planned = [layer for layer in layers if not layer.left]
    recorded = records.recorded_of(planned)
    kernels = [each.written for of_layer in recorded.values() for each in of_layer]
    texts = cuda_texts(kernels)
    programs = list(dict.fromkeys(each.kernel.layer.epilogue for each in kernels if each.kernel.layer.epilogue))
    places = records.places_of(kernels)
    constants = dict(zip(programs, _free("_PROGRAM_{}", source), strict=False))
    # Of a layer that is left to PyTorch there is no kernel with the program.
    known = [
        each
        for each in epilogues.known
        if (program := epilogues.programs.get(each.calls)) == "" or program in constants
    ]
    called_epilogue = dict.fromkeys(each.calls for each in known if epilogues.programs[each.calls])
    again = dict(zip(called_epilogue, _free("_epilogue_{}", source), strict=False))
    gradients = [records.gradient_of(each, constants) if each.calls in again else None for each in known]
    types = {plan.kernel.layer.dtype for layer in planned for plans in layer.groups for plan in plans}
    recorded_epilogues = [
        records.known(
            each, gradient, constants.get(epilogues.programs[each.calls], '""'), again.get(each.calls), constants, types
        )
        for each, gradient in zip(known, gradients, strict=True)
    ]
    entries = [records.entry(layer, of_layer, places, constants) for layer, of_layer in recorded.items()]
    scales = any(
        isinstance(source, Computed) and learns
        for epilogue, gradient in zip(known, gradients, strict=True)
        for source, learns in zip(gradient.sources if gradient else (), epilogue.learns, strict=False)
    )
    # The text may hand epilogues to layers all of which are left to PyTorch.
    hands_over = any(layer.kernel_epilogues for layer in planned) or f"{FUSED}(" in source.body
    called = any(layer.called for layer in layers)
    wanted = {
        runtime.FUNCTIONS: called or "cuda_conv_transpose" in source.body,
        runtime.ELSEWHERE: (built_elsewhere := bool(left) or _built_elsewhere(source)),
        runtime.LAZY: built_elsewhere or "CudaLazyConvTranspose" in source.body,
        runtime.PREPARED: kernel_source.prepares([each.kernel for each in kernels]),
        runtime.ALIGNED: any(FAMILIES[each.kernel.family].alignment > 1 for each in kernels),
        runtime.EPILOGUES: hands_over,
        runtime.PROGRAMS: bool(programs),
        runtime.SCALES: scales,
        runtime.PROMOTES: any("promotes=" in each for each in recorded_epilogues),
        runtime.SEQUENCES: bool(programs) and bool(epilogues.modules),
    }
    reads = [f"{constants[each]}: {records.operands_of(each)}" for each in programs]
    values = {
        'ELSEWHERE = "pytorch"\n': f'ELSEWHERE = "{elsewhere}"\n',
        "_CUDA = {}\n": records.cuda(texts),
        "_RECORDED = {}\n": records.dict_of("_RECORDED", entries),
        "_TEXTS = ()\n": "".join(f"{name} = {records.string(text, 0)}\n" for text, name in constants.items()),
        "_PROGRAMS = {}\n": records.dict_of("_PROGRAMS", reads),
        "_AGAIN = ()\n": "\n".join(spelled(calls, name) for calls, name in again.items()),
        "_EPILOGUES = {}\n": records.dict_of("_EPILOGUES", recorded_epilogues),
        "_POINTWISE = {}\n": records.dict_of("_POINTWISE", list(map(records.pointwise, epilogues.modules))),
        "_LEFT = ()\n": records.tuple_of("_LEFT", [f'"{name}"' for name in left]),
    }
    above = _filled(runtime.text_for(wanted), values)
    below = _filled(runtime.part(runtime.BELOW), values)
    for argument, bare in (*(() if hands_over else _EPILOGUE_ARGUMENTS), *(() if programs else _PROGRAM_ARGUMENTS)):
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
    head = header(layers, source.model, tuple(_LINES))
    text = f"{head}\n{prologue}{above.rstrip()}\n\n\n" + "\n\n\n".join(rest) + "\n"
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


def _free(form: str, source: Rewritten) -> Iterator[str]:
    """Names of that form, numbered, that the user's text does not bind."""
    return (each for each in map(form.format, itertools.count(1)) if each not in source.module_names)
