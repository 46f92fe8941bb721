"""The whole CUDA text of a file's kernels, made of the library's headers."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from tconv.codegen.headers.arguments import (
    with_one_argument,
    with_one_struct_argument,
    with_same_arguments,
    without_unused_parameters,
)
from tconv.codegen.headers.calls import with_bodies, with_expressions
from tconv.codegen.headers.declarations import (
    with_values_at_once,
    without_unused_members,
    without_unused_specializations,
)
from tconv.codegen.headers.evaluate import Type, World
from tconv.codegen.headers.layout import UNROLL, compact, filled, with_bodies_in_place, with_comments_filled, wrapped
from tconv.codegen.headers.listed import listed
from tconv.codegen.headers.other_names import without_other_names
from tconv.codegen.headers.paragraphs import used_paragraphs
from tconv.codegen.headers.resolve import KERNEL, Constant, Kernels, Resolving, constant_name
from tconv.codegen.headers.simplify import Simplifying
from tconv.codegen.headers.singles import without_single_places, without_single_structs
from tconv.codegen.headers.sweep import swept
from tconv.codegen.headers.syntax import STRUCTS, Text, declared_name, edited, field, parsed, walk, words
from tconv.codegen.marks import marks, only
from tconv.kernels import source
from tconv.kernels.source import reads_channels_last
from tconv.planner import FAMILIES, Kernel
from tconv.pointwise.functor import functor
from tconv.pointwise.program import parse

_PRIMITIVES, _EPILOGUE = "primitives/", "primitives/epilogue.cuh"
_ABOUT_NOTHING = re.compile(r"\n\n(?://[^\n]*\n)+(?=\n)")
#: What comments call by its name, and words in it.
_CODE, _WORD = re.compile(r"`[^`\n]+`"), re.compile(r"\b[a-z]\w*")
_FIRST_COMMENT = re.compile(r"\A(//[^\n]*\n)+")
_ARROW = "\N{RIGHTWARDS ARROW}"
_FIRST_MACRO = "#define TCONV_CONSTANT "
_BEFORE_PRAGMA = re.compile(r"\n\s*\n(?=#pragma)")
_KERNELS = 'extern "C"'
#: What is said of the constants of a layer and of a tile, by their ranks.
_GIVEN = {0: "// Of the layer.", 1: "// Of the tile: what a block, a warp and a thread have."}
_TEMPLATE = re.compile(r"template <([^<>]*)>(\s+)(?:(?:struct|class|using) (\w+)|[^;{(]*?(\w+)\()")


def resolved(kernels: Sequence[tuple[Kernel[Any], str]]) -> str:
    """The headers of kernels of one family, and their functions, with what is the same in all of them decided."""
    family = kernels[0][0].family
    functors = _functors(kernels)
    headers = source.header_texts([source.family_header(family), *[source.PROGRAMS] * bool(functors)])
    epilogue = headers.pop(_EPILOGUE)  # it may have a functor as a member
    plain = [kernel for kernel, _ in kernels]
    primitives = listed(
        "\n".join(
            text if "language" in name else _FIRST_COMMENT.sub("", text)
            for name, text in headers.items()
            if name.startswith(_PRIMITIVES)
        ),
        plain,
    )
    own = [
        text if name == source.family_header(family) else _FIRST_COMMENT.sub("", text)
        for name, text in headers.items()
        if not name.startswith(_PRIMITIVES)
    ]
    texts = [Text(text) for text in [primitives, *functors.values(), _FIRST_COMMENT.sub("", epilogue), *own]]
    layers = [Text(source.configuration(kernel, name).partition("\n")[2]) for kernel, name in kernels]
    worlds = [World([text.root for text in [*texts, layer]]) for layer in layers]
    programs = [_program_name(kernels, kernel) for kernel in plain]
    common = Kernels(worlds, [name for _, name in kernels], programs, FAMILIES[family].shape.__name__, texts)
    made = [Resolving(text, common).of(text.root, common.scopes) for text in texts]
    constants = _in_order([each for each in common.constants.values() if not each.alias])
    lines = list(_declared(constants))
    first, *rest = made
    last = rest.pop()
    head = _FIRST_COMMENT.match(last)
    assert head is not None, "a family's header says what it computes"
    last = last[head.end() :]
    functions = map("{}\n".format, common.functions.values())
    text = "\n".join([_said(head[0], common), *lines, "", first, *functions, *rest, last])
    text = _ABOUT_NOTHING.sub("\n\n", text)
    text += "\n" + "\n".join(_structs(kernels, common)) + "\n"
    text += "".join(_launch_function(kernel, name) for kernel, name in kernels) + "\n"
    text += "\n".join(
        _functions(kernel, name, programs[n], common.scopes[n].names["Element"])
        for n, (kernel, name) in enumerate(kernels)
    )
    return swept([without_kernel(text)], _asked(kernels))[0]


def _said(head: str, common: Kernels) -> str:
    """What a family's header says of these kernels, with constants by their names in the text."""
    head = only(head, {mark: common.holds(mark.removeprefix("where ")) for mark in marks(head)})

    def named(word: re.Match[str]) -> str:
        name = constant_name("", word[0])
        return name if name in common.constants else word[0]

    return _CODE.sub(lambda code: _WORD.sub(named, code[0]), head)


def _in_order(constants: Sequence[Constant]) -> list[Constant]:
    """The constants by their places, but each behind those that it is computed by: these may be of another header."""
    names, ordered = {each.name: each for each in constants}, dict[str, Constant]()

    def add(constant: Constant) -> None:
        for used in re.findall(r"\bk[A-Z]\w*", constant.text):
            if used in names and used not in ordered:
                add(names[used])
        ordered[constant.name] = constant

    for each in sorted(constants, key=lambda each: each.place):
        if each.name not in ordered:
            add(each)
    return list(ordered.values())


def _declared(constants: Sequence[Constant]) -> Iterator[str]:
    """Declarations of constants; those of the layer and of its tile, of which there is nothing to say, in one each."""
    for (of, given), each in groupby(constants, lambda each: (each.place[0], each.type == "int" and each.is_given)):
        if given and of in _GIVEN:
            yield _GIVEN[of]
            text = "constexpr int " + ", ".join(f"{one.name} = {one.text}" for one in each) + ";"
            yield from wrapped(text).splitlines()
            continue
        for one in each:
            yield from one.comment.split("\n") if one.comment else ()
            yield f"constexpr {one.type} {one.name} = {one.text};" + (f"  {one.behind}" if one.behind else "")


def _asked(kernels: Sequence[tuple[Kernel[Any], str]]) -> str:
    """What the host's side mentions."""
    preparing = ["preparing_threads"] * source.prepares(kernel for kernel, _ in kernels)
    members = [f".{name}" for name in source.LaunchNumbers._fields[:-1]]
    return " ".join(["Sizes index_limit", *preparing, *members, *(source.launch_name(name) for _, name in kernels)])


def whole(kernels: Sequence[tuple[Kernel[Any], str]]) -> str:
    """The CUDA text of kernels of one family, each with its name: complete, and as simple as it can be made.

    Functions are those of `tconv.kernels.source.functions`: ``NAME``, ``NAME_weights``, ``NAME_inputs``. How a kernel
    is launched says the function of that `source.launch_name`, in ``tconv``.
    """
    return _whole(tuple(kernels))


@lru_cache(maxsize=64)
def _whole(kernels: tuple[tuple[Kernel[Any], str], ...]) -> str:
    """Kept, as it takes seconds: where one family's kernels give way to others, a file is built again."""
    asked = _asked(kernels)
    with _no_collection():
        text = _simplified(resolved(kernels), asked)
    text = with_bodies_in_place(text)
    text = _BEFORE_PRAGMA.sub("\n", text)  # where a paragraph would begin
    text = used_paragraphs(text, asked + "\n" + text[text.index(_KERNELS) :])
    text = compact(filled(with_comments_filled(text))).lstrip("\n")
    text = text.replace(_FIRST_MACRO, f'#define {UNROLL} _Pragma("unroll")\n{_FIRST_MACRO}', 1)
    library, _, functions = text.partition(_KERNELS)
    library = f"namespace tconv {{\n{library.rstrip()}\n}}  // namespace tconv\nusing namespace tconv;\n\n"
    return library + _KERNELS + functions


def _of_conditions(text: str) -> frozenset[str]:
    """The functions and structs that the emulator has in its own words: they stay as they are."""
    conditions = [node for node in walk(Text(text).root) if node.type.startswith("preproc_if")]
    below = [node for of in conditions for node in walk(of)]
    functions = {declared_name(field(node, "declarator")) for node in below if node.type == "function_definition"}
    structs = [node.child_by_field_name("name") for node in below if node.type in STRUCTS]
    return frozenset(functions | {words(name) for name in structs if name is not None})


def _simplified(text: str, asked: str) -> str:
    kept = _of_conditions(text)
    known: dict[tuple[str, str], str] = {}  # by definition, what is made of it
    settled: set[str] = set()  # definitions that lose no names of variables, and those that lose no variables
    used: set[str] = set()

    def simpler(text: str) -> str:
        less = without_other_names(Simplifying(parsed(text)).whole(known), settled)
        less = with_one_argument(with_expressions(less, kept), kept)
        less = with_same_arguments(with_one_struct_argument(less, kept), kept)
        less = without_single_places(without_single_structs(less))
        less = without_unused_members(without_unused_specializations(with_values_at_once(less)), asked)
        return swept([less], asked, used)[0]

    while True:
        text = _until_same(simpler, text)
        less = without_unused_parameters(_until_same(partial(with_bodies, kept=kept), text), kept)
        if less == text:
            return text
        text = less


@contextmanager
def _no_collection() -> Iterator[None]:
    """Inside, no cycles are looked for among the many nodes of syntax trees, which takes as long as all else."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _until_same(change: Callable[[str], str], text: str) -> str:
    while (less := change(text)) != text:
        text = less
    return text


def _program_name(kernels: Sequence[tuple[Kernel[Any], str]], kernel: Kernel[Any]) -> str:
    """The functor of a kernel's program: that of the first kernel which has the same; none where it has no program."""
    wanted = kernel.layer.epilogue, reads_channels_last(kernel)
    first = next(name for other, name in kernels if (other.layer.epilogue, reads_channels_last(other)) == wanted)
    return f"{first}_program" if kernel.layer.epilogue else ""


def _functors(kernels: Sequence[tuple[Kernel[Any], str]]) -> dict[str, str]:
    """The functors of the programs of kernels, by their names."""
    made = {}
    for kernel, _ in kernels:
        if name := _program_name(kernels, kernel):
            text = (
                functor(parse(kernel.layer.epilogue), name).replace("tconv::", "").replace(", bool channels_last>", ">")
            )
            made[name] = re.sub(r"\bchannels_last\b", str(reads_channels_last(kernel)).lower(), text)
    return made


def _structs(kernels: Sequence[tuple[Kernel[Any], str]], common: Kernels) -> list[str]:
    """What differs among kernels."""
    made = []
    for number, (kernel, name) in enumerate(kernels if common.differing else ()):
        types = {n: v[number] for n, v in common.differing.items() if isinstance(v[number], Type)}
        members = [
            f"using {n} = {common.type_text(v, number).replace(KERNEL, f'{name}_layer')};" for n, v in types.items()
        ]
        for of, wide in (("int", False), ("long long", True)):
            values = [
                f"{n} = {v[number]}"
                for n, v in common.differing.items()
                if n not in types and n not in common.enumerated and (n in common.wide) == wide
            ]
            members += [f"static constexpr {of} {', '.join(values)};"] if values else []
        for n, of in sorted(common.enumerated.items()):
            enumerator = common.enumerators(of)[common.differing[n][number]]  # type: ignore[index]
            members.append(f"static constexpr {of} {n} = {of}::{enumerator};")
        made.append(
            f"// {kernel.layer.describe().replace(_ARROW, '->')}\nstruct {name}_layer {{\n"
            + "".join(f"  {m}\n" for m in members)
            + "};\n"
        )
    return made


def _launch_function(kernel: Kernel[Any], name: str) -> str:
    return source.launch_function(kernel, name, f"{kernel.family}_launch<{name}_layer>")


def _functions(kernel: Kernel[Any], name: str, program: str, element: Type) -> str:
    behind = ("", "")
    if program:
        operands = [operand.name for operand in parse(kernel.layer.epilogue).operands]
        behind = source.reads_and_program(operands, name, reads_channels_last(kernel))
    made = [source.function(kernel, name, "", *behind)]
    made += [source.function(kernel, name, "_weights")] * kernel.prepares_weights
    made += [source.function(kernel, name, "_inputs")] * kernel.prepares_inputs
    text = "".join(made).replace(f"<{name}_layer, {name}_tile>", f"<{name}_layer>").replace("tconv::", "")
    text = re.sub(rf"\b{name}_program<{name}_layer, \w+>", f"{program}<{name}_layer>", text)
    text = re.sub(r"\bconst T\*", f"const {element.name}*", text)
    return text.replace(f"{name}_layer::Element", element.name)


def without_kernel(text: str) -> str:
    """`text` whose templates have no parameter for the kernel where nothing depends on it."""
    while True:
        bound: dict[str, list[bool]] = {}  # whether its definitions depend on it
        for match in _TEMPLATE.finditer(text):
            if f"class {KERNEL}" in match[1]:
                body = text[match.end() : _end_of(text, match.end())]
                name = match[3] or match[4]
                own = re.sub(rf"\b{name}<{KERNEL}>", name, body)
                bound.setdefault(name, []).append(re.search(rf"\b{KERNEL}\b", own) is not None)
        free = {name for name, depends in bound.items() if not any(depends)}
        if not free:
            return text
        heads = [match for match in _TEMPLATE.finditer(text) if (match[3] or match[4]) in free]
        text = edited(text, [(*match.span(), _head_without(match)) for match in heads])
        for name in free:
            text = "".join(_uses_without(text, name))


def _uses_without(text: str, name: str) -> Iterator[str]:
    """The parts of `text`, with the uses of a template without its argument."""
    at = 0
    for match in re.finditer(rf"\b{name}<", text):
        if match.start() < at:
            continue
        arguments, end = _arguments(text, match.end())
        left = [each for each in arguments if each != KERNEL and not each.endswith("_layer")]
        if len(left) == len(arguments):
            continue
        inner = "".join(_uses_without(", ".join(left), name))
        yield text[at : match.end() - 1] + (f"<{inner}>" if left else "")
        at = end
    yield text[at:]


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """The arguments of a template, the first of which begins there, and where they end."""
    made, depth, at = [], 0, start
    for end in range(start, len(text)):
        if text[end] in "<([{":
            depth += 1
        elif text[end] in ">)]}" and depth:
            depth -= 1
        elif text[end] == ">" or (text[end] == "," and not depth):
            made.append(text[at:end].strip())
            at = end + 1
            if text[end] == ">":
                return made, at
    raise ValueError(f"no end of the arguments {text[start : start + 40]!r}")


def _head_without(match: re.Match[str]) -> str:
    left = [parameter for parameter in match[1].split(", ") if not parameter.startswith(f"class {KERNEL}")]
    rest = match[0][match[0].index(">") + 1 :]
    return f"template <{', '.join(left)}>{rest}" if left else rest.lstrip()


def _end_of(text: str, start: int) -> int:
    """Where a definition ends that begins at the left margin."""
    end = re.compile(r"^(?:\};?|[^\s}].*[;}])$", re.MULTILINE)
    line = text.rfind("\n", 0, start) + 1
    match = end.search(text, start if text[line:start].startswith("template") else line)
    return match.end() if match else len(text)
