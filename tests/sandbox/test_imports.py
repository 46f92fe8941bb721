"""A model file finds what lies beside it, and what it is part of: as a script, and in a package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tconv.cli import app as frame
from tconv.errors import Trouble
from tconv.rewriter.output import check_neighbours
from tconv.sandbox.imports import Place, imported, lies_around, place_of, relative_imports
from tconv.sandbox.model_file import ModelFileError, load
from tconv.sandbox.trace import trace
from tconv.sandbox.worker import Workshop

#: Writes files of these texts, by their paths, and returns the first one's.
Write = Callable[[Mapping[str, str]], Path]
MODEL = """
from torch import nn

class Model(nn.Module): ...

def get_init_inputs():
    return [{value}]
"""
LAYERS = """
from torch import nn

class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 3, 4)
    def forward(self, x):
        return self.up(x)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """In a folder of the test's own; the current one is another, without files."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def write_files(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path / next(iter(files))

    return write_files


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a file has imported here from its own folders is forgotten again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in [*sys.modules.items()]:
        spec = getattr(module, "__spec__", None)
        places = (getattr(module, "__file__", None), *(getattr(spec, "submodule_search_locations", None) or ()))
        if any(str(place).startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


def model(line: str, value: str = "None") -> str:
    return line + MODEL.format(value=value)


# ---- where a file's imports are found

#: The file, its text, other files, and the package, the folders before and those behind that it must have.
PLACES: dict[str, tuple[str, str, str, str, str, str]] = {
    "alone": ("net/model.py", "import torch", "", "", "net", ""),
    "no Python": ("net/model.py", "import (", "", "", "net", ""),
    "a file beside": ("net/model.py", "import helper", "net/helper.py", "", "net", ""),
    "its own package": ("net/model.py", "from net.layers import X", "net/__init__.py", "net", ".", "net"),
    "its own folder": ("net/model.py", "from net.layers import X", "net/layers.py", "", "net .", ""),
    "relative": ("net/model.py", "from .layers import X", "net/__init__.py", "net", ".", "net"),
    "relative without __init__": ("net/model.py", "from .layers import X", "net/layers.py", "net", ".", "net"),
    "two up": ("a/net/model.py", "from ..layers import X", "a/layers.py", "a.net", ".", "a/net"),
    "two up in a function": ("a/net/model.py", "def f():\n    from .. import b", "a/b.py", "a.net", ".", "a/net"),
    "nested": ("a/net/model.py", "import a.b", "a/__init__.py a/net/__init__.py a/b.py", "a.net", ".", "a/net"),
    "nested, the outer one without": (
        "a/net/model.py",
        "import a.b",
        "a/net/__init__.py a/b.py",
        "net",
        "a .",
        "a/net",
    ),
    "beside in a package": ("net/model.py", "import helper", "net/__init__.py net/helper.py", "net", ". net", ""),
    "beside and around": ("net/model.py", "import up", "net/__init__.py net/up.py up.py", "net", ".", "net"),
    "a folder around": ("a/net/model.py", "import shared.b", "shared/b.py", "", "a/net .", ""),
    "not the current folder": ("net/model.py", "import shared", "elsewhere/shared.py", "", "net", ""),
    "nearest first": ("a/net/model.py", "import shared", "a/shared.py shared.py", "", "a/net a", ""),
    "installed": ("a/net/model.py", "import pytest", "a/pytest.py", "", "a/net", ""),
    "its own of an installed name": ("pytest/model.py", "import pytest.b", "pytest/b.py", "", "pytest .", ""),
    "Python's own name": ("net/model.py", "import types", "net/__init__.py net/types.py", "net", ".", "net"),
    "no package's name": ("my-net/model.py", "from .layers import X", "my-net/layers.py", "", "my-net", ""),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_file_has_its_place(write: Write, tmp_path: Path, name: str) -> None:
    file, text, others, package, before, behind = PLACES[name]
    path = write({file: text, **dict.fromkeys(others.split(), "")})
    found = place_of(path, text)
    assert (found.package, found.before, found.behind) == (
        package,
        tuple(tmp_path / each for each in before.split()),
        tuple(tmp_path / each for each in behind.split()),
    )


def test_looking_for_a_place_imports_nothing_and_changes_no_path(write: Write, tmp_path: Path) -> None:
    text = "import helper, net.layers, pytest, no_such_package\nfrom .layers import X\n"
    raises = "raise RuntimeError"
    path = write({"net/model.py": text, "net/__init__.py": raises, "net/layers.py": raises, "helper.py": raises})
    before, modules = [*sys.path], {*sys.modules}
    place_of(path, text)
    lies_around(path, "net")
    with pytest.raises(Trouble):
        check_neighbours(tmp_path / "elsewhere/out.py", path, text)
    assert sys.path == before and {*sys.modules} == modules


def test_python_looks_before_all_others_and_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/installed"])
    Place("", (Path("/a"), Path("/b")), (Path("/c"), Path("/d"))).enter()
    assert sys.path == ["/a", "/b", "/installed", "/c", "/d"]


@pytest.mark.parametrize(
    ("name", "finds"),
    [("beside", True), ("last", True), ("folder", True), ("data", False), ("above", False), ("torch", False)],
)
def test_a_place_finds_modules_and_folders_of_them(write: Write, tmp_path: Path, name: str, finds: bool) -> None:
    write({"above.py": "", "a/beside.py": "", "a/folder/deep/b.py": "", "a/data/torch.txt": "", "b/last.py": ""})
    assert Place("", (tmp_path / "a",), (tmp_path / "b",)).finds(name) is finds


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("helper", "a/net/helper.py"),
        ("net", "a/net"),
        ("a", "a"),
        ("both", "a/both"),
        ("here", None),
        ("data", None),
        ("torch", None),
    ],
)
def test_what_lies_around_a_file(write: Write, tmp_path: Path, name: str, found: str | None) -> None:
    files = ("a/net/model.py", "a/net/helper.py", "a/both/b.py", "both.py", "elsewhere/here.py", "data/x.txt")
    path = write(dict.fromkeys(files, ""))
    assert lies_around(path, name) == (None if found is None else tmp_path / found)


@pytest.mark.parametrize(
    ("text", "absolute", "relative"),
    [
        ("import torch.nn as nn, net.layers\nimport torch", ["torch", "net"], []),
        ("from net.layers import json, os", ["net"], []),
        ("import os.path, json\nfrom collections import abc", [], []),
        ("from . import a\nfrom .b.c import d\nfrom ..e import f", [], [".a", ".b.c", "..e"]),
        ("try:\n    import one\nexcept ImportError:\n    from . import two", ["one"], [".two"]),
        ("def f():\n    import inner\n    from ...g import h", ["inner"], ["...g"]),
        ("text = 'import other'  # import another", [], []),
        ("import (", [], []),
        ("import a\0", [], []),
    ],
)
def test_what_a_text_imports(text: str, absolute: list[str], relative: list[str]) -> None:
    assert imported(text) == absolute
    assert relative_imports(text) == relative


# ---- what a file gets that is run

#: The file, its first line, what it returns, other files with their texts. Each value says where it is from.
LOADED: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "a file beside": ("net/model.py", "import helper", "helper.WIDTH", {"net/helper.py": "WIDTH = 7"}),
    "its own package": (
        "net/model.py",
        "from net.layers import WIDTH",
        "WIDTH",
        {"net/__init__.py": "", "net/layers.py": "from .sizes import WIDTH", "net/sizes.py": "WIDTH = 7"},
    ),
    "its own folder": ("net/model.py", "from net.layers import WIDTH", "WIDTH", {"net/layers.py": "WIDTH = 7"}),
    "relative": (
        "net/model.py",
        "from .layers import WIDTH",
        "WIDTH",
        {"net/__init__.py": "", "net/layers.py": "from net.sizes import WIDTH", "net/sizes.py": "WIDTH = 7"},
    ),
    "relative without __init__": ("net/model.py", "from . import sizes", "sizes.W", {"net/sizes.py": "W = 7"}),
    "two up": ("a/net/model.py", "from ..pkg import W", "W", {"a/pkg.py": "W = 7", "pkg.py": "W = 8"}),
    "nested": (
        "a/b/c/model.py",
        "from a.b.c.d import W\nfrom ...e import V",
        "W + V",
        {"a/__init__.py": "", "a/b/__init__.py": "", "a/b/c/__init__.py": "", "a/b/c/d.py": "W = 3", "a/e.py": "V = 4"},
    ),
    "both ways": (
        "net/model.py",
        "from .sizes import W\nimport helper",
        "W + helper.W",
        {"net/__init__.py": "", "net/sizes.py": "W = 3", "net/helper.py": "W = 4"},
    ),
    "only when it is called": (
        "net/model.py",
        "",
        "__import__('late').W",
        {"net/__init__.py": "", "net/late.py": "W = 7"},
    ),
    "relative when it is called": (
        "net/model.py",
        "def width():\n    from .late import W\n    return W\n",
        "width()",
        {"net/late.py": "W = 7"},
    ),
    "beside Python's own name": (
        "net/model.py",
        "import types\nfrom .types import W",
        "W * (types.__name__ == 'types' and not hasattr(types, 'W'))",
        {"net/__init__.py": "", "net/types.py": "W = 7"},
    ),
    "a neighbour of the package": (
        "net/model.py",
        "from shared.sizes import W",
        "W",
        {"net/__init__.py": "", "shared/sizes.py": "W = 7"},
    ),
    "a package that imports the file": (
        "net/model.py",
        "from .layers import W",
        "W",
        {"net/__init__.py": "from .model import Model", "net/layers.py": "W = 7"},
    ),
}


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("name", LOADED)
def test_a_file_imports_what_lies_around_it(write: Write, name: str) -> None:
    file, line, value, others = LOADED[name]
    assert load(write({file: model(line, value), **others})).init_args == (7,)


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("line", ["from net.layers import W", "from shared import W"])
def test_a_file_imports_from_a_repository_that_is_a_package(write: Write, line: str) -> None:
    others = {"repo/net/layers.py": "W = 7", "repo/shared.py": "W = 7"}
    inits = dict.fromkeys(("repo/__init__.py", "repo/net/__init__.py"), "")
    assert load(write({"repo/net/model.py": model(line, "W"), **others, **inits})).init_args == (7,)


@pytest.mark.usefixtures("own_modules")
def test_a_class_in_a_package_is_found_by_its_modules_name(write: Write) -> None:
    loaded = load(write({"net/model.py": model("from . import layers"), "net/layers.py": ""}))
    assert loaded.model_class.__module__ == "net.tconv_model_model"
    assert sys.modules[loaded.model_class.__module__] is loaded.namespace
    assert loaded.namespace.__spec__ is not None and loaded.namespace.__spec__.parent == "net"


def test_a_traced_file_of_a_package_leaves_this_process_alone(write: Write, workshop: Workshop) -> None:
    text = "import torch\nfrom .layers import Up\nfrom ..shared import W\n\nclass Model(Up): ...\n\n"
    inputs = "def get_inputs():\n    return [torch.ones(1, 2, W)]\n"
    path = write({"a/net/model.py": text + inputs, "a/net/layers.py": LAYERS, "a/shared.py": "W = 9"})
    before, modules = [*sys.path], {*sys.modules}
    (layer,) = trace(path, workshop=workshop).layers
    assert (layer.name, layer.problem.input_size) == ("up", (1, 1, 9))
    assert sys.path == before and not [name for name in {*sys.modules} - modules if name.startswith(("net", "a."))]


# ---- what is said of a module that is not found


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("line", "missing", "near"),
    [
        ("from net.missing import X", "net.missing", "a/net"),
        ("from .missing import X", "net.missing", "a/net"),
        ("import layers.missing", "layers.missing", "a/net/layers.py"),
        ("import shared.missing", "shared.missing", "shared"),
        ("from net.layers.deep import X", "net.layers.deep", "a/net"),
    ],
)
def test_of_what_lies_around_nothing_is_to_be_installed(
    write: Write, tmp_path: Path, line: str, missing: str, near: str
) -> None:
    others = dict.fromkeys(("a/net/layers.py", "shared/b.py"), "")
    with pytest.raises(ModelFileError) as caught:
        load(write({"a/net/model.py": model(line), **others}))
    there = tmp_path / near
    expected = f"model.py imports {missing}, which {there} does not have; PYTHONPATH says where else to look"
    assert str(caught.value) == expected


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("import nobodys_package", "nobodys_package"),
        ("from nobodys_package.part import X", "nobodys_package"),
        ("from net.layers import X", "nobodys_layers"),
        ("from .layers import X", "nobodys_layers"),
        ("import nobodys_data", "nobodys_data"),
    ],
)
def test_a_module_that_is_nowhere_is_to_be_installed(write: Write, line: str, missing: str) -> None:
    others = {"net/layers.py": "import nobodys_layers", "nobodys_data/numbers.txt": ""}
    if missing == "nobodys_data":  # Python takes a folder without Python files for a package, where it looks in it
        line += ".numbers"
    with pytest.raises(ModelFileError, match=rf"imports {missing}, which is not installed: pip install {missing}$"):
        load(write({"net/model.py": model(line), **others}))


# ---- where the written file may stand

#: The line, the other folder's files beside those of the model, and what is lost there; "" for nothing.
NEIGHBOURS: dict[str, tuple[str, str, str]] = {
    "nothing": ("import torch, json", "", ""),
    "no Python": ("import (", "", ""),
    "beside": ("import helper", "", "helper"),
    "one of two": ("import shared, helper", "", "helper"),
    "in a function": ("def f():\n    from helper import x", "", "helper"),
    "there, too": ("import helper", "other/out/helper.py", ""),
    "relative": ("from .helper import x", "", ".helper"),
    "relative before absolute": ("import helper\nfrom .deep.helper import x", "", ".deep.helper"),
    "two up": ("from ..pkg import y", "", "..pkg"),
    "its own package": ("from net.helper import x", "", "net"),
    "around both": ("import shared", "", ""),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_file_is_written_where_its_imports_are_found(write: Write, tmp_path: Path, name: str) -> None:
    line, more, lost = NEIGHBOURS[name]
    others = ("a/net/__init__.py", "a/net/helper.py", "shared.py", "other/out/x.txt")
    path = write({"a/net/model.py": line, **dict.fromkeys((*others, *more.split()), "")})
    check_neighbours(path.with_name("new.py"), path, line)
    output = tmp_path / "other/out/new.py"
    if not lost:
        check_neighbours(output, path, line)
        return
    with pytest.raises(Trouble) as caught:
        check_neighbours(output, path, line)
    assert str(caught.value) == (
        f"model.py imports {lost}, which lies beside it, and would not be found beside {output}: "
        f"write the file there, with -o {path.with_name('model_new.py')}"
    )


def test_another_folder_of_the_package_will_do_for_absolute_imports_alone(write: Write, tmp_path: Path) -> None:
    for line, lost in (("import net.layers", False), ("from .layers import X", True), ("import layers", True)):
        path = write({"net/model.py": line, "net/__init__.py": "", "net/layers.py": "", "net/new/__init__.py": ""})
        if lost:
            with pytest.raises(Trouble, match="would not be found"):
                check_neighbours(tmp_path / "net/new/out.py", path, line)
        else:
            check_neighbours(tmp_path / "net/new/out.py", path, line)


def test_a_place_that_is_the_same_by_a_link_is_no_other(write: Write, tmp_path: Path) -> None:
    path = write({"net/model.py": "import helper", "net/helper.py": ""})
    (tmp_path / "link").symlink_to("net")
    check_neighbours(tmp_path / "link/new.py", path, "import helper")


def test_optimize_refuses_another_place_before_any_work(write: Write, tmp_path: Path) -> None:
    path = write({"net/model.py": model("from .layers import Up"), "net/layers.py": LAYERS})
    output = tmp_path / "elsewhere/out.py"
    result = CliRunner().invoke(frame.app, ["optimize", str(path), "-o", str(output)])
    assert result.exit_code == 2 and not output.exists()
    said = "".join(result.output.split())
    assert "imports.layers," in said and f"-o{path.with_name('model_new.py')}" in said
