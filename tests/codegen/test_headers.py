"""The headers in a written file: what its kernels reach, by the same machine code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from textwrap import dedent
from typing import Any

import pytest
from kernel_runs import INSTANCES
from machine_code import machine_code

from tconv.codegen.headers import PRIMITIVES, kernel_texts
from tconv.codegen.headers.constants import Constants
from tconv.codegen.headers.fold import folded
from tconv.codegen.headers.layout import filled
from tconv.codegen.headers.sweep import swept
from tconv.codegen.headers.syntax import Text, declared_name, walk, words
from tconv.jit.compile import compile_source
from tconv.kernels import source
from tconv.planner import FAMILIES, Kernel

ON_TENSOR_CORES = [name for name, i in INSTANCES.items() if i.kernel.family != "direct"]


def of_family(family: str) -> dict[str, Text]:
    headers = source.header_texts([source.family_header(family)])
    return {name: Text(text) for name, text in headers.items() if name.startswith(f"{family}/")}


def written(kernels: Sequence[Kernel[Any]]) -> str:
    """What a file that records `kernels` would compile for the first of them."""
    texts = kernel_texts(kernels, "")
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


@pytest.mark.rotates(24)
@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_constants_are_the_compilers(name: str) -> None:
    kernel = INSTANCES[name].kernel
    known = Constants(kernel.family, [kernel], list(of_family(kernel.family).values())).shape()
    assert {"item_bytes", "planes", "exact", "phases", "by_channel", "place_bytes"} <= known.keys()
    shape = f"tconv::{FAMILIES[kernel.family].shape.__name__}<k_layer, k_tile>"
    configuration = source.configuration(kernel, "k")
    checks = "".join(f'static_assert({shape}::{name} == {value}, "{name}");\n' for name, value in known.items())
    include = f'#include "{source.family_header(kernel.family)}"\n'
    compile_source(include + configuration + checks, "sm_90a", headers=source.header_directory())


def test_a_constant_that_kernels_disagree_on_is_not_known() -> None:
    kernels = [i.kernel for i in INSTANCES.values() if i.kernel.family == "mma"]
    assert len({kernel.layer.item_bytes for kernel in kernels}) > 1
    texts = list(of_family("mma").values())
    alone, together = (Constants("mma", some, texts).shape() for some in (kernels[:1], kernels))
    assert "item_bytes" in alone and "item_bytes" not in together
    assert together.items() <= alone.items()


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


# ---- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.rotates(128)
@pytest.mark.parametrize("name", INSTANCES)
def test_a_written_kernel_is_the_librarys(name: str) -> None:
    """Instruction by instruction, alone and beside another of its family."""
    kernel = INSTANCES[name].kernel
    arch = "sm_90a" if kernel.family == "wgmma" else "sm_90"
    expected = machine_code(compile_source(source.unit(kernel), arch, headers=source.header_directory()).cubin)
    assert expected and all(expected.values())
    others = [i.kernel for i in INSTANCES.values() if i.kernel.family == kernel.family and i.kernel != kernel]
    beside = others[len(name) * 7 % len(others)]
    for kernels in ([kernel], [kernel, beside]):
        assert machine_code(compile_source(written(kernels), arch).cubin) == expected


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", ["mma", "wgmma"])
def test_a_kernel_alone_carries_less(name: str) -> None:
    kernels = [i.kernel for i in INSTANCES.values() if i.kernel.family == name]
    alone, all_of_them = (kernel_texts(some, "")[name] for some in (kernels[:1], kernels))
    complete = "\n".join(text.bytes.decode() for text in of_family(name).values())
    assert len(alone.splitlines()) < 0.85 * len(all_of_them.splitlines()) < 0.95 * len(complete.splitlines())


@pytest.mark.slow
def test_files_name_no_headers() -> None:
    texts = kernel_texts([i.kernel for i in INSTANCES.values() if i.kernel.family != "direct"], "")
    assert not [line for text in texts.values() for line in text.splitlines() if ".cuh" in line]
    assert not [line for text in texts.values() for line in text.splitlines() if len(line) > 120]
