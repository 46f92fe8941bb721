"""The text of the generated file: what it contains, what it must not, and that it is the same every time."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from codegen_helpers import (
    DENSE,
    EXAMPLES,
    executed,
    fused_text,
    generated_text,
    kernels_of,
    planned_layers,
    settled_layers,
)
from machine_code import machine_code

from tconv.codegen import runtime
from tconv.codegen.generate import builtins_needed
from tconv.codegen.head import header
from tconv.codegen.headers.paragraphs import used_paragraphs
from tconv.codegen.headers.whole import _whole
from tconv.codegen.planned import types_of
from tconv.jit.compile import compile_source
from tconv.jit.loader import compile_kept
from tconv.kernels import source
from tconv.kernels.source import alone
from tconv.rewriter.pipeline import build
from tconv.sandbox.model_file import ModelFileError

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
#: Of these the kernels take the epilogues of their layers, of one layer and of a sequence.
WITH_EPILOGUES = ("residual_3d", "dcgan")
#: A file is written in seconds: of all examples, which do much the same, the same few in every test.
rotates = pytest.mark.rotates(10, by="name", always=("strided_dilated",))


def of_every_example(test: Callable[..., None]) -> Callable[..., None]:
    return rotates(pytest.mark.parametrize("name", NAMES)(test))


def of_every_file(test: Callable[..., None]) -> Callable[..., None]:
    return rotates(pytest.mark.parametrize("name", [*NAMES, *WITH_EPILOGUES])(test))


#: What checkers of such files look for, as they look for it: in the raw text, comments included.
BANNED = [
    r"\btry\b",
    r"\bexcept\b",
    r"\bpass\b",
    r"import\s+threading|threading\.|\bThread\(|ThreadPool|ProcessPool|multiprocessing|concurrent",
    r"cuda\.Stream\(|with\s+torch\.cuda\.stream|\.wait_stream\(|\.record_stream\(",
    r"_make_subclass|class\s+\w+.*\((?:torch\.)?Tensor\)|Tensor\.__new__",
    r"Event|elapsed_time|perf_counter|time\.time|\bimport time\b|synchronize\s*=",
    r"\.half\(|\.float16\(|__float2half|\(\s*__half\s*\)|\.to\(\s*(?:dtype\s*=\s*)?torch\.(?:float16|half)\b",
    r"__file__|getsource|\beval\(|\bexec\(|subprocess|os\.system",
]


class Texts(dict[str, str]):
    """By name, each written when it is asked for."""

    def __missing__(self, name: str) -> str:
        self[name] = _with_epilogues(name) if name in WITH_EPILOGUES else generated_text(EXAMPLES / f"{name}.py")
        return self[name]


def _with_epilogues(name: str) -> str:
    text = fused_text(EXAMPLES.parent / "benchmarks" / "fused" / f"{name}.py")
    return text.replace("self.eval()", "")  # the model's own


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return Texts()


@of_every_file
def test_is_python_3_8(texts: dict[str, str], name: str) -> None:
    tree = ast.parse(texts[name], feature_version=(3, 8))
    # Syntax alone does not tell: these are evaluated where the file is loaded.
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in {"tuple", "list", "dict", "type"}, ast.unparse(node)
        if isinstance(node, ast.Call):
            assert not any(keyword.arg == "strict" for keyword in node.keywords), ast.unparse(node)


@of_every_file
def test_contains_no_banned_word(texts: dict[str, str], name: str) -> None:
    lines = texts[name].splitlines()
    assert not [line for line in lines if any(re.search(pattern, line) for pattern in BANNED)]


@of_every_example
def test_the_head_says_where_the_model_and_the_kernels_begin(texts: dict[str, str], name: str) -> None:
    lines = texts[name].splitlines()
    said = r"^# The model file begins at line (\d+), the kernels at line (\d+)\.$"
    found = re.search(said, texts[name], re.MULTILINE)
    assert found is not None
    assert [lines[int(number) - 1] for number in found.groups()] == ["# The model file", "# The kernels"]


def test_all_lines_end_as_the_model_files_do(tmp_path: Path, texts: dict[str, str]) -> None:
    path = tmp_path / "model.py"
    path.write_bytes((EXAMPLES / "strided_dilated.py").read_bytes().replace(b"\n", b"\r\n"))
    text = generated_text(path)
    assert text.replace("\r\n", "\n") == texts["strided_dilated"]
    assert text.count("\n") == text.count("\r\n")
    assert builtins_needed(text) == builtins_needed(texts["strided_dilated"])
    assert "ModelNew" in executed(text)


def test_uses_only_torch_and_the_standard_library(texts: dict[str, str]) -> None:
    imported = set()
    for node in ast.walk(ast.parse(texts["strided_dilated"])):
        if isinstance(node, ast.Import):
            imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).split(".")[0])
    own = {"collections", "functools", "hashlib", "inspect", "itertools", "operator", "warnings"}
    assert imported == {*own, "torch"} and own <= sys.stdlib_module_names


def test_same_bytes_twice_and_whatever_the_file_is_called(tmp_path: Path, texts: dict[str, str]) -> None:
    copy = tmp_path / "another name.py"
    copy.write_bytes((EXAMPLES / "strided_dilated.py").read_bytes())
    _whole.cache_clear()
    assert generated_text(copy) == texts["strided_dilated"]


@of_every_example
def test_committed_examples_are_up_to_date(texts: dict[str, str], name: str) -> None:
    """Of the examples, in the U-Net alone something stands behind layers that their kernels take."""
    planned = fused_text(EXAMPLES / f"{name}.py") if name == "unet" else texts[name]
    committed = (EXAMPLES / "generated" / f"{name}_new.py").read_text(encoding="utf-8")
    assert committed == planned or committed == settled_text(name), (
        f"regenerate it: python -m tconv optimize examples/{name}.py -o examples/generated/{name}_new.py --force"
    )


@pytest.mark.rotates(12, by="name", always=("strided_dilated",))  # whose planned kernel spills
@pytest.mark.parametrize("name", [name for name in NAMES if name != "unet"])
def test_committed_examples_have_kernels_that_do_not_spill(name: str) -> None:
    """What is planned may; asking NVRTC of all of them takes long."""
    committed = (EXAMPLES / "generated" / f"{name}_new.py").read_text(encoding="utf-8")
    assert committed == settled_text(name)


def settled_text(name: str) -> str:
    path = EXAMPLES / f"{name}.py"
    return build(path, settled_layers(path))


@of_every_example
def test_the_users_text_is_in_it_but_for_the_redirections(texts: dict[str, str], name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    body = texts[name].partition("# The model file\n")[2].partition("\n\n")[2]
    body = body.partition("# The kernels\n")[0].rpartition("\n\n\n# ---")[0] + "\n"
    back = re.sub(r"\bCuda(?=ConvTranspose\dd\()", "nn.", body.replace("@_cuda_model\nclass ModelNew(", "class Model("))
    assert source.endswith(back)
    docstring = source.removesuffix(back)
    assert docstring == "" or texts[name].split("\n\n")[1] == docstring.strip("\n")
    assert bool(docstring) == (name in ("unet", "vocoder"))


@pytest.mark.parametrize(
    ("statement", "builds"),
    [
        ("x = 3", False),
        ("torch.manual_seed(0)", False),
        ("model = Model()", True),
        ("if __name__ == '__main__':\n    print(Model())", True),
        ("made = [make() for make in [Model]]", True),
        ("model = globals()['get_inputs']()", True),
        ("for make in (Model,):\n    make()", True),
        ("def build(model=Model()):\n    return model", True),
        ("def build():\n    return Model()", False),
        ("class Other(Model):\n    one = get_inputs()", True),
        ("class Other(Model):\n    two = 2", False),
    ],
)
def test_the_kernels_stand_last_but_where_loading_may_build_the_model(
    model_file: Callable[[str], Path], statement: str, builds: bool
) -> None:
    text = generated_text(model_file(f"{dedent(DENSE)}\n\n{statement}\n"), families=("direct",))
    marks = [text.index(f"\n# {part}\n") for part in ("The model file", "The kernels")]
    assert marks == sorted(marks, reverse=builds)
    assert len(executed(text)["ModelNew"]().state_dict()) == 1


def test_header_says_what_was_replaced_with_which_plan() -> None:
    head = header(planned_layers(EXAMPLES / "unet.py"), "Model", ("1", "2"))
    assert head.startswith("# generated by tconv ")
    assert all(line.startswith("#") for line in head.splitlines())
    for up in range(4):
        assert re.search(rf"#   ups\.{up}\.up +2-D \d+→\d+ k2 s2 bias \w+ +\w*mma: \d+ blocks of \d+, ", head)


def test_header_says_each_kernels_use(model_file: Callable[[str], Path]) -> None:
    layers = planned_layers(model_file(DENSE), types=("float16", "bfloat16"))
    head = header(layers, "Model", ("1", "2"))
    uses = re.findall(r"#   up .* \(?(wgmma: \d)|^# +([a-z][a-z0-9, ]*): wgmma: \d", head, re.MULTILINE)
    found = [use for _, use in uses if use]
    assert found == ["any size", "float16", "float16, any size", "bfloat16", "bfloat16, any size"]
    assert found == [use for use in layers[0].variants if use]
    assert head.splitlines()[-3:] == [
        "# Made for float32 and float16 and bfloat16 only (others: --types), at any batch and map size.",
        "# Runs on tensor cores of Hopper, 9.0.",
        "# All else PyTorch runs, with a warning that says why; ELSEWHERE below makes it an error.",
    ]
    assert types_of(layers) == ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize(
    ("families", "gpus"),
    [
        (("direct",), "CUDA cores from compute capability 7.5 on"),
        (("mma",), "tensor cores from 8.0 on"),
        (("wgmma",), "tensor cores of Hopper, 9.0"),
    ],
)
def test_header_says_which_gpus_run_it(model_file: Callable[[str], Path], families: tuple[str, ...], gpus: str) -> None:
    head = header(planned_layers(model_file(DENSE), families=families), "Model", ("1", "2"))
    assert f"# Runs on {gpus}.\n" in head


def test_header_says_what_is_left(model_file: Callable[[str], Path]) -> None:
    (layer,) = planned_layers(model_file(DENSE), families=("direct",))
    head = header([replace(layer, left=True)], "Model", ("1", "2"))
    assert re.search(r"^#   up  .*  left to PyTorch$", head, re.MULTILINE)
    assert "direct: " not in head and "# Made for no type" in head


# ---- the kernels' text


def sections(text: str) -> list[str]:
    """The names of the sections of a family's text, behind which stands what launches them."""
    found = re.findall(r"^// ==== (.*)$", text, re.MULTILINE)
    assert found[-1] == "launching, on the host; left out where only device code is compiled"
    return found[:-1]


@of_every_file
def test_sections_places_and_names_agree(texts: dict[str, str], name: str) -> None:
    file = executed(texts[name])
    kernels = kernels_of(file)
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert set(file["_CUDA"]) == {kernel.family for kernel in kernels}
    for family, text in file["_CUDA"].items():
        of_family = sorted((each for each in kernels if each.family == family), key=lambda each: each.place)
        assert [kernel.place for kernel in of_family] == list(range(len(of_family)))
        assert sections(text) == [kernel.name for kernel in of_family]
        found = re.findall(r"case (\d+): return\s+launched\(numbers,\s+tconv::(\w+)_launch,\s+([^;]*)\);", text)
        cases = [(place, kernel, " ".join(pointers.split())) for place, kernel, pointers in found]
        assert [(int(place), kernel) for place, kernel, _ in cases] == [(k.place, k.name) for k in of_family]
        for kernel, (_, _, pointers) in zip(of_family, cases, strict=True):
            prepares = any(each.weight_bytes or each.prepares_inputs for each in of_family)
            endings = ("", "_weights", "_inputs") if prepares else ("",)
            given = [f"(void*){kernel.name}{ending}" for ending in endings]
            wanted = [True, kernel.weight_bytes > 0, kernel.prepares_inputs][: len(endings)]
            expected = [each if there else "nullptr" for each, there in zip(given, wanted, strict=True)]
            assert pointers.split(", ") == expected
            own = alone(text, kernel.name)
            assert sections(own + text[text.rindex("// ==== ") :]) == [kernel.name]
        assert text.count('extern "C"') == sum(1 + (k.weight_bytes > 0) + k.prepares_inputs for k in of_family)


@of_every_file
def test_no_name_of_the_text_stands_for_two_things(texts: dict[str, str], name: str) -> None:
    for text in executed(texts[name])["_CUDA"].values():
        check_names(text)


def check_names(text: str) -> None:
    """Of kernels, their configurations and their programs: each is an identifier, and there is one of it."""
    functions = re.findall(r"__launch_bounds__\(.*\)\n(\w+)\(", text)
    structs = re.findall(r"^struct (conv\w*) \{", text, re.MULTILINE)
    assert functions
    found = [*functions, *structs]
    assert len(set(found)) == len(found), sorted(name for name in found if found.count(name) > 1)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", each) for each in found)


NAMED = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            for number, name in enumerate({names!r}):
                self.add_module(name, nn.ConvTranspose2d(16, 16 + 8 * number, 3, padding=1))
        def forward(self, x):
            return sum(module(x).mean() for module in self.children())

    def get_inputs():
        return [torch.rand(4, 16, 16, 16)]
"""


@pytest.mark.rotates(18)
@pytest.mark.parametrize(
    ("names", "kernels"),
    [
        (("double_", "int", "void", "class", "int32_t"), ["double", "int", "void", "class", "int32_t"]),
        (("größe", "gr_e", "gr e"), ["gr_e", "gr_e_2", "gr_e_3"]),
        (("0", "1"), ["0", "1"]),
        (("up", "up_2", "up_any_size", "up_"), None),
        (("up", "up_weights", "up_inputs"), None),
        (("up", "up_layer", "up_tile", "up_program", "up_shape", "up_launch_numbers"), None),
        (("up_weights", "up"), None),
        (("层", "卷积"), None),
    ],
)
def test_names_of_modules_are_names_of_kernels(
    model_file: Callable[[str], Path], names: tuple[str, ...], kernels: list[str] | None
) -> None:
    """Whatever modules are called, kernels have names of their own, which the compiler takes."""
    text = generated_text(model_file(NAMED.format(names=names)), families=("mma",))
    file = executed(text)
    found = [kernel.name for kernel in kernels_of(file)]
    assert len(set(found)) == len(found) == 2 * len(names)
    if kernels is not None:
        assert [name for name in found if "any_size" not in name] == [f"conv_{name}" for name in kernels]
    check_names(file["_CUDA"]["mma"])
    assert sections(file["_CUDA"]["mma"]) == found
    compile_kept(file["_CUDA"]["mma"], "sm_80", name="tconv_kernel")


@of_every_file
def test_no_line_is_too_long(texts: dict[str, str], name: str) -> None:
    text = texts[name]
    assert not [line for line in text.splitlines() if len(line) > 120]


@pytest.mark.rotates(12)
@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_take_what_the_librarys_take(name: str) -> None:
    """Spilled bytes are the same, registers to two, and code is as long to a thirtieth.

    Of the first two of each file, with what prepares for them, beside the others of its family, as they are built.
    """
    path = EXAMPLES / f"{name}.py"
    layers = settled_layers(path)
    file = executed(build(path, layers))
    plans = dict.fromkeys(plan.kernel for layer in layers for plan in layer.variants.values())
    for written, kernel in list(zip(kernels_of(file), plans, strict=True))[:2]:
        arch = "sm_90a" if "wgmma" in kernel.family else "sm_80"
        unit = source.unit(kernel, written.name)
        own = compile_source(file["_CUDA"][kernel.family], arch)
        librarys = compile_source(unit, arch, headers=source.header_directory())
        expected, taken_here = taken(librarys.log), taken(own.log)
        assert expected
        for section, (stores, loads, registers) in expected.items():
            assert taken_here[section][:2] == [stores, loads]
            assert abs(taken_here[section][2] - registers) <= 2
        lengths, found = (
            {section: len(code) for section, code in machine_code(each.cubin).items()} for each in (librarys, own)
        )
        assert all(abs(found[section] - length) <= max(length / 30, 128) for section, length in lengths.items())


def taken(log: str) -> dict[str, list[int]]:
    """By function the bytes of spilled registers that are stored and loaded, and the registers, as ptxas has them."""
    of_function = r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    return {name: list(map(int, numbers)) for name, *numbers in re.findall(of_function, log, re.DOTALL)}


@of_every_example
def test_defines_no_name_twice(texts: dict[str, str], name: str) -> None:
    """What is copied into a file must not take a name that the shared part has for something else."""
    found = [node.name for node in ast.parse(texts[name]).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(found) == len(set(found)), sorted(found)


@of_every_file
def test_has_no_paths_and_no_dates(texts: dict[str, str], name: str) -> None:
    assert not re.search(r"/work|/tmp|/home|\b20\d\d-\d\d", texts[name])


def test_carries_only_the_primitives_that_are_used() -> None:
    library = dedent("""
        // what it is

        #define USED(x) __x__##x

        namespace tconv {

        TCONV_DEVICE float by_used(float x) {
          const int blank_lines = 1;

          return x;
        }

        template <class T, int N>
        struct alignas(sizeof(T) * N) MACRO Used {
          T values[N];

          TCONV_DEVICE int method() { return by_used(USED(1)); }
        };

        TCONV_DEVICE void unused(Used<int, 2> u) {}

        constexpr int constant = 3;

        template <class T>
        TCONV_DEVICE T generic(T value) { return value; }
        template <>
        TCONV_DEVICE int generic<int>(int value) { return constant; }

        struct Unused {};

        }  // namespace tconv
    """)
    kept = used_paragraphs(library, "int f(Used<int, 2> u);")
    unused = r"(TCONV_DEVICE void unused|constexpr|template <class T>|struct Unused)[^\0]*?\n\n"
    assert kept == re.sub(unused, "", library)
    assert used_paragraphs(library, "unused generic Unused") == library


def test_carries_macros_whose_names_are_put_together() -> None:
    library = "#define ONE_1 1\n\n#define ONE_2 2\n\n#define ONE(n) ONE_##n\n\n#define ANOTHER_1 1\n"
    assert used_paragraphs(library, "ONE(2)") == library.partition("\n#define ANOTHER")[0]


def test_carries_macros_that_define_what_is_used() -> None:
    library = "#define MAKE(name) TCONV_DEVICE void name() {}\nMAKE(first)\nMAKE(second)\n\n#define OTHER(x) x\n"
    assert used_paragraphs(library, "second()") == library.partition("\n#define OTHER")[0]
    assert used_paragraphs(library, "third()") == ""


@of_every_file
def test_places_of_the_shared_part_are_all_filled(texts: dict[str, str], name: str) -> None:
    assert "_CUDA = {}\n" in runtime.part("binding") and "_RECORDED = {}\n" in runtime.part("records")
    text = texts[name]
    assert "_CUDA = {}\n" not in text and "_RECORDED = {}\n" not in text and "# ---- where" not in text
    assert '_define("tconv_DIGEST")' not in text and "LINE OF" not in text
    cuda = "".join(executed(text)["_CUDA"].values())
    assert "FAMILY" not in cuda and "KERNELS" not in cuda and "// ---- where" not in cuda


def test_executes_without_a_file_and_without_a_module_name() -> None:
    namespace: dict[str, object] = {}
    exec(generated_text(EXAMPLES / "strided_dilated.py"), namespace)
    model = namespace["ModelNew"](*namespace["get_init_inputs"]())  # type: ignore[operator]
    assert isinstance(model.conv_transpose2d, torch.nn.ConvTranspose2d)


@of_every_example
def test_same_seed_gives_the_same_state(texts: dict[str, str], name: str) -> None:
    theirs: dict[str, object] = {}
    exec((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"), theirs)
    ours = executed(texts[name])
    arguments = ours["get_init_inputs"]()
    torch.manual_seed(3)
    expected = theirs["Model"](*arguments).state_dict()  # type: ignore[operator]
    torch.manual_seed(3)
    got = ours["ModelNew"](*arguments).state_dict()
    assert list(got) == list(expected)
    assert all(torch.equal(got[key], expected[key]) for key in expected)


def test_refuses_names_that_it_needs(model_file: Callable[[str], Path]) -> None:
    path = model_file("""
        import torch
        from torch import nn
        import math  # the same module: no harm

        def _launch(x):
            return x

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.up = nn.ConvTranspose1d(2, 2, 2)
            def forward(self, x):
                return _launch(self.up(x))

        def get_inputs():
            return [torch.rand(1, 2, 4)]
    """)
    with pytest.raises(ModelFileError, match="binds the name _launch"):
        generated_text(path)
