"""The headers in a written file: what its kernels reach, by the same machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from textwrap import dedent
from typing import Any

import pytest
from kernel_runs import INSTANCES
from machine_code import machine_code

from tconv.codegen.headers import PRIMITIVES, kernel_texts
from tconv.codegen.headers.arguments import (
    with_one_argument,
    with_one_struct_argument,
    without_unused_parameters,
)
from tconv.codegen.headers.calls import with_bodies, with_expressions
from tconv.codegen.headers.constants import Constants
from tconv.codegen.headers.evaluate import World
from tconv.codegen.headers.fold import folded
from tconv.codegen.headers.layout import filled
from tconv.codegen.headers.other_names import without_other_names
from tconv.codegen.headers.simplify import Simplifying
from tconv.codegen.headers.singles import without_single_places, without_single_structs
from tconv.codegen.headers.sweep import swept
from tconv.codegen.headers.syntax import Text, declared_name, field, walk, words
from tconv.jit.loader import compile_kept
from tconv.kernels import source
from tconv.planner import FAMILIES, Kernel

#: On CUDA cores in float64 texts are folded.
FOLDED = [n for n, i in INSTANCES.items() if i.kernel.family == "direct" and i.kernel.layer.precision == "fp64"]
EVALUATED = [name for name in INSTANCES if name not in FOLDED]
ON_TENSOR_CORES = [name for name, i in INSTANCES.items() if i.kernel.family != "direct"]


def of_family(family: str) -> dict[str, Text]:
    headers = source.header_texts([source.family_header(family)])
    return {name: Text(text) for name, text in headers.items() if not name.startswith("primitives/")}


def written(kernels: Sequence[Kernel[Any]]) -> str:
    """What a file that records `kernels` would compile for the first of them."""
    texts = kernel_texts(kernels)
    families = {kernel.family for kernel in kernels}
    carried = source.in_namespace(text for name, text in texts.items() if name in (PRIMITIVES, *families))
    return f"{carried}\n{source.functions(kernels[0], 'tconv_kernel')}"


# ---- what the grammar makes of the headers ---------------------------------------------------------------------------


@cache
def template_names(header: str) -> set[str]:
    text = Text(source.header_files()[header].read_text(encoding="utf-8"))
    declared = [node.named_children[-1] for node in walk(text.root) if node.type == "template_declaration"]
    names = [node.child_by_field_name("declarator") or node.child_by_field_name("name") for node in declared]
    return {
        words(name.child_by_field_name("name") or name) if name.type == "template_type" else declared_name(name)
        for name in names
        if name is not None
    }


@pytest.mark.parametrize("name", source.header_files())
def test_headers_are_understood(name: str) -> None:
    """No part is taken for another: above all ``a < b && c > d`` not for a template."""
    text = Text(source.header_files()[name].read_text(encoding="utf-8"))
    templates = {"static_cast", "reinterpret_cast"}.union(*map(template_names, source.header_files()))
    asserted = {
        below.id for node in walk(text.root) if node.type == "static_assert_declaration" for below in walk(node)
    }
    for node in walk(text.root):
        if node.type == "template_argument_list" and node.id not in asserted:
            before = node.prev_sibling
            assert before is not None and words(before) in templates, words(node.parent or node)
        if node.type == "ERROR":  # macros alone
            assert words(node).startswith(("#define", "TCONV_")), words(node)


def test_other_letters_are_refused() -> None:
    with pytest.raises(ValueError, match="ASCII"):
        Text("// größer\n")


# ---- constants -------------------------------------------------------------------------------------------------------


@pytest.mark.rotates(72)
@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_constants_are_the_compilers(name: str) -> None:
    kernel = INSTANCES[name].kernel
    known = Constants(kernel.family, [kernel], list(of_family(kernel.family).values())).shape()
    some = {"item_bytes", "row_tiles", "step_channels", "stages_ahead"}
    if kernel.family == "col2im_wgmma":
        some = {"item_bytes", "row_tiles", "step_channels", "stages_ahead", "factors_in_stages"}
    elif kernel.family == "col2im_rows":
        some = {"item_bytes", "shift_columns", "step_channels", "whole_k_tiles", "team_threads"}
    elif kernel.family != "col2im":
        some = {"item_bytes", "planes", "exact", "phases", "by_channel", "place_bytes"}
    assert some <= known.keys()
    shape = f"tconv::{FAMILIES[kernel.family].shape.__name__}<k_layer, k_tile>"
    configuration = source.configuration(kernel, "k")
    # Enumerators are no numbers by themselves.
    numbers = {f"static_cast<long long>({shape}::{name})": value for name, value in known.items()}
    checks = "".join(f'static_assert({number} == {value}, "{number}");\n' for number, value in numbers.items())
    include = f'#include "{source.family_header(kernel.family)}"\n'
    compile_kept(include + configuration + checks, "sm_90a", name="tconv_kernel", headers=True)


def test_a_constant_that_kernels_disagree_on_is_not_known() -> None:
    kernels = [i.kernel for i in INSTANCES.values() if i.kernel.family == "mma"]
    assert len({kernel.layer.item_bytes for kernel in kernels}) > 1
    texts = list(of_family("mma").values())
    alone, together = (Constants("mma", some, texts).shape() for some in (kernels[:1], kernels))
    assert "item_bytes" in alone and "item_bytes" not in together
    assert together.items() <= alone.items()


@pytest.mark.rotates(72)
@pytest.mark.parametrize("name", INSTANCES)
def test_the_planners_constants_are_worked_out(name: str) -> None:
    """From the headers' text alone."""
    kernel = INSTANCES[name].kernel
    family = FAMILIES[kernel.family]
    configuration = source.configuration(kernel, "k").partition("\n")[2]
    asked = f"using Asked = {family.shape.__name__}<k_layer, k_tile>;"
    headers = source.header_texts([source.family_header(kernel.family)]).values()
    texts = [Text(text) for text in [*headers, configuration, asked]]
    world = World([text.root for text in texts])
    shape = world.type(field(texts[-1].root.named_children[0], "type"), world.scope)
    constants = family.constants(kernel)
    assert {constant: world.member(shape, constant) for constant in constants} == constants


# ---- decided branches ------------------------------------------------------------------------------------------------


def decided(body: str) -> str:
    """A function's body in a kernel of exact float32 whose tile has one warp high, and inputs that are contiguous."""
    kernel = next(
        i.kernel
        for i in INSTANCES.values()
        if i.kernel.family == "mma" and i.kernel.layer.precision == "fp32" and not i.kernel.tile.channels_last
    )
    texts = list(of_family("mma").values())
    head = "template <class Layer, class Tile>\nTCONV_DEVICE void f(int x) {\n"
    text = head + "".join(f"  {line}\n" for line in body.split("\n")) + "  end();\n  end();\n}\n"
    made = filled(folded(Text(text), Constants("mma", [kernel], texts)))
    assert made.startswith(head)
    lines = made.removeprefix(head).removesuffix("  end();\n}\n")
    return dedent(lines).removesuffix("end();\n").strip("\n")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("g(Shape::exact ? 2 : x);", "g(2);"),
        ("g(x + (Tile::channels_last ? 1 : x));", "g(x + x);"),
        ("g((Tile::channels_last ? x : 1) * x, (Shape::exact ? 0 : 1) * x);", "g(x, 0);"),
        ("if (Shape::planes == 2 && x > 1) g(1);", "if (x > 1) g(1);"),
        ("if (Shape::planes != 2 && x > 1) g(1);\ng(2);", "g(2);"),
        ("// about this\nif (!Shape::exact) g(1);  // and this\n// about that\ng(2);", "// about that\ng(2);"),
        ("if (Shape::exact) {\n  const int y = x;\n  g(y);\n} else {\n  g(2);\n}", "const int y = x;\ng(y);"),
        # Braces that keep two names apart stay.
        ("const int y = 1;\nif (Shape::exact) {\n  const int y = x;\n  g(y);\n}",
         "const int y = 1;\n{\n  const int y = x;\n  g(y);\n}"),
        # So do braces around a name that means another thing behind them: a member.
        ("if (Shape::exact) {\n  const int member = x;\n  g(member);\n}\ng(member);",
         "{\n  const int member = x;\n  g(member);\n}\ng(member);"),
        ("if (x > 1) {\n  g(1);\n} else if (Shape::exact) {\n  g(2);\n} else {\n  g(3);\n}",
         "if (x > 1) {\n  g(1);\n} else {\n  g(2);\n}"),
        ("if (x > 1) {\n  g(1);\n} else if (!Shape::exact) {\n  g(2);\n}", "if (x > 1) {\n  g(1);\n}"),
        ("if (x > 0) {\n  if (Shape::exact) {\n    g(1);\n    return;\n  }\n  g(2);\n}",
         "if (x > 0) {\n  g(1);\n  return;\n}"),
        ("for (int i = 0; i < x; ++i)\n  if (!Shape::exact) g(i);", ""),
        ("for (int i = 0; i < x; ++i) {\n  if (Shape::exact) continue;\n  g(i);\n}", ""),
        ("do {\n  g(x);\n} while (Tile::channels_last && x > 1);", "g(x);"),
        ("do {\n  if (x > 2) break;\n  g(x);\n} while (Tile::channels_last);",
         "do {\n  if (x > 2) break;\n  g(x);\n} while (Tile::channels_last);"),
        ("#pragma unroll(Shape::exact ? 1 : 4)\nfor (int i = 0; i < x; ++i) g(i);",
         "#pragma unroll(1)\nfor (int i = 0; i < x; ++i) g(i);"),
        ("using A = typename Choice<Shape::exact, B, C>::type;\ng(A());", "using A = B;\ng(A());"),
        # What is done to find out is done.
        ("if (++x > 1 || Shape::exact) g(x);", "if (++x > 1 || Shape::exact) g(x);"),
        ("if (Shape::exact || ++x > 1) g(x);", "g(x);"),
        # A parameter hides the constant of its name.
        ("const auto h = [](int planes) { return planes == 2 ? 1 : 3; };\ng(h(x));",
         "const auto h = [](int planes) { return planes == 2 ? 1 : 3; };\ng(h(x));"),
        ("constexpr int y = Shape::planes * 2;\ng(y == 4 ? 1 : x);", "constexpr int y = Shape::planes * 2;\ng(1);"),
        ("g(Shape::unheard_of ? 1 : 2);", "g(Shape::unheard_of ? 1 : 2);"),
        ('static_assert(Shape::exact, "it is");\ng(1);', "g(1);"),
    ],
)  # fmt: skip
def test_branches_that_constants_decide(body: str, expected: str) -> None:
    assert decided(body) == expected


# ---- definitions that nothing uses -----------------------------------------------------------------------------------


def test_definitions_that_nothing_uses_go() -> None:
    library = dedent("""\
        // What it is for.
        struct Used {
          static constexpr int first = 1, second = 2, third = first;

          // Gone with what it is about.
          static TCONV_DEVICE int gone() { return second; }
          TCONV_DEVICE int kept() const { return third; }
        };

        // A template and what it is for one type.
        template <class T>
        struct Special {};
        template <>
        struct Special<int> {};

        // With its condition.
        #if !defined(TCONV_EMULATOR)
        TCONV_DEVICE void alone() { alone(); }
        #endif

        TCONV_DEVICE int f(const Used& used) {
          const int unused = used.kept(), own = used.kept();
          using Own = Used;
          for (int i = 0; i < own; ++i) {
            const int item = 2 * i;
          }
          for (int i = 0; i < own; ++i) {
            const int item = 3 * i;
            if (i > 4) return item;
          }
          return own;
        }
    """)
    (kept,) = swept([library], "f(x)")
    assert filled(kept) == dedent("""\
        // What it is for.
        struct Used {
          static constexpr int first = 1, third = first;

          TCONV_DEVICE int kept() const { return third; }
        };

        TCONV_DEVICE int f(const Used& used) {
          const int own = used.kept();
          for (int i = 0; i < own; ++i) {
          }
          for (int i = 0; i < own; ++i) {
            const int item = 3 * i;
            if (i > 4) return item;
          }
          return own;
        }
    """)


# ---- a text made simpler ---------------------------------------------------------------------------------------------


def test_of_several_constants_in_one_declaration_those_go_that_nothing_uses() -> None:
    (kept,) = swept(["constexpr int a = 8, b = a + 1, c = 2,\n    d = 3;\nint f() { return b; }\n"], "f")
    assert kept == "constexpr int a = 8, b = a + 1;\nint f() { return b; }\n"


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (lambda text: Simplifying(Text(text)).whole(), "x = (a * 1 + 0) / 1 % 1;", "x = 0;"),
        (lambda text: Simplifying(Text(text)).whole(), "x = a - 1 + 1;", "x = a;"),
        (lambda text: Simplifying(Text(text)).whole(), "x = a * (b + 1) - (c * 2);", "x = a * (b + 1) - c * 2;"),
        # One of two pairs, in each round.
        (lambda text: Simplifying(Text(text)).whole(), "x = ((a + b)) * c;", "x = (a + b) * c;"),
        (lambda text: Simplifying(Text(text)).whole(), "x = (0 + (a + b)) * c;", "x = ((a + b)) * c;"),
        (lambda text: Simplifying(Text(text)).whole(), "for (int i = 2; i < 3; ++i) g(i);", "g(2);"),
        (
            lambda text: Simplifying(Text(text)).whole(),
            "for (int i = 2; i < 4; ++i) g(i);",
            "for (int i = 2; i < 4; ++i) g(i);",
        ),
        (without_other_names, "const int y = x;\n  g(y);", "const int y = x;\n  g(x);"),
        # It changes meanwhile.
        (without_other_names, "const int y = x;\n  ++x;\n  g(y);", "const int y = x;\n  ++x;\n  g(y);"),
        (without_single_places, "float sums[2][1];\n  g(sums[x][0]);", "float sums[2];\n  g(sums[x]);"),
        (without_single_places, "float sums[2][1];\n  g(sums[x]);", "float sums[2][1];\n  g(sums[x]);"),
    ],
)
def test_statements_made_simpler(change: Callable[[str], str], before: str, after: str) -> None:
    around = "void f(int x, int a, int b, int c) {{\n  {}\n}}\n"
    assert change(around.format(before)) == around.format(after)


def test_functions_in_place_of_their_calls() -> None:
    text = dedent("""\
        inline int twice(int x) { return 2 * x; }

        template <bool known, int rest> inline int choose(int x) { return known ? x : rest; }

        // Adds up.
        //
        // `unused` is not used.
        void add(int* sums, int count, int unused) {
          for (int i = 0; i < count; ++i) sums[i] += choose<true, 3>(i);
        }

        void kept(int* sums, int y) { sums[0] = 0; }

        void f(int* all) {
          add(all, twice(4 + all[0]), 7);
          kept(all, 1);
          kept(all, 2);
        }
    """)
    none: frozenset[str] = frozenset()
    text = with_bodies(with_expressions(with_one_argument(with_one_argument(text, none), none), none), none)
    text = without_unused_parameters(text, none)
    assert text.partition("void kept")[2] == dedent("""\
        (int* sums) { sums[0] = 0; }

        void f(int* all) {
          // Adds up.
          const int count = 2 * (4 + all[0]);
          for (int i = 0; i < count; ++i) all[i] += true ? i : 3;
          kept(all);
          kept(all);
        }
    """)


def test_a_struct_loses_parameters_that_are_the_same_unless_defaults_stand_for_some() -> None:
    struct = "template <int A, int B> struct S { static constexpr int value = A + B; };\n"
    uses = "using X = S<1, 2>;\nusing Y = S<1, 3>;\n"
    assert "struct S { static constexpr int value = 1 + B; };" in with_one_struct_argument(struct + uses, frozenset())
    with_default = struct.replace("int B", "int B = 2") + "using X = S<1>;\nusing Y = S<1, 3>;\n"
    assert with_one_struct_argument(with_default, frozenset()) == with_default


def test_structs_of_one_array() -> None:
    text = "struct Sums {\n  float values[2];\n};\n\nvoid f() {\n  Sums sums = {};\n  g(sums.values[1]);\n}\n"
    assert without_single_structs(text) == "\nvoid f() {\n  float sums[2] = {};\n  g(sums[1]);\n}\n"
    passed = text.replace("sums.values[1]", "sums")
    assert without_single_structs(passed) == passed


# ---- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.rotates(24)
@pytest.mark.parametrize("name", FOLDED)
def test_a_folded_kernel_is_the_librarys(name: str) -> None:
    """Instruction by instruction, alone and beside another of its family."""
    kernel = INSTANCES[name].kernel
    expected = machine_code(compile_kept(source.unit(kernel), "sm_90", name="tconv_kernel", headers=True).cubin)
    assert expected and all(expected.values())
    for kernels in ([kernel], [kernel, beside(name)]):
        assert machine_code(compile_kept(written(kernels), "sm_90", name="tconv_kernel").cubin) == expected


def beside(name: str, turn: int = 7, types: bool = False) -> Kernel[Any]:
    """Another kernel of a family, for the same type or for any."""
    kernel = INSTANCES[name].kernel
    others = [
        i.kernel
        for i in INSTANCES.values()
        if i.kernel.family == kernel.family
        and i.kernel != kernel
        and (types or i.kernel.layer.precision == kernel.layer.precision)
    ]
    return others[len(name) * turn % len(others)]
