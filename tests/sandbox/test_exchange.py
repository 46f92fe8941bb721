"""Values reach another process as they were, and nothing that runs code does."""

from __future__ import annotations

import json
import operator
import os
import re
import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tconv.errors import Trouble
from tconv.sandbox import digest
from tconv.sandbox import exchange as exchange_module
from tconv.sandbox.exchange import Exchange, Malformed, tensors
from tconv.sandbox.own_classes import Record, Unportable, restored


def passed(value: Any, directory: Path) -> Any:
    """The value after JSON and files."""
    tree = json.loads(json.dumps(Exchange(directory, "here").write(value)))
    return Exchange(directory, "there").read(tree)


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(2, 3, 4),
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.randn(3).half(),
        torch.randn(3).bfloat16(),
        torch.tensor([True, False]),
        torch.tensor([float("nan"), float("inf"), -0.0]),
        torch.randn(2, dtype=torch.complex64),
    ],
)
def test_tensors_arrive_bit_for_bit(value: torch.Tensor, tmp_path: Path) -> None:
    found = passed(value, tmp_path)
    assert found.shape == value.shape and found.dtype == value.dtype
    assert found.flatten().view(torch.uint8).tolist() == value.flatten().view(torch.uint8).tolist()
    assert list(tmp_path.iterdir()) == []  # read once and removed


@pytest.mark.parametrize("digests", [True, False])
def test_each_reader_has_a_name_of_its_own_for_the_same_bytes(tmp_path: Path, digests: bool) -> None:
    here, there = (Exchange(tmp_path, side, digests=digests) for side in ("here", "there"))
    value = {"x": torch.randn(3, 4).t(), "file": ["file", torch.empty(0, 2)], "scale": 2.0}
    tree = here.write([value])
    (file,) = tmp_path.iterdir()
    for _ in range(2):
        (found,) = there.read(json.loads(json.dumps(here.again(tree))))
        assert torch.equal(found["x"], value["x"]) and found["x"].stride() == (1, 4)
        assert found["file"][0] == "file" and found["file"][1].shape == (0, 2) and found["scale"] == 2.0
        assert list(tmp_path.iterdir()) == [file]
    there.read(tree)
    with pytest.raises(Malformed, match="cannot be read"):
        there.read(here.again(tree))
    assert here.read(here.again(here.write([1, None]))) == [1, None]


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 6).t(),
        torch.randn(11)[1:].view(2, 5),
        torch.randn(2, 8)[:, ::2],
    ],
)
def test_strides_and_offsets_arrive(value: torch.Tensor, tmp_path: Path) -> None:
    found = passed(value, tmp_path)
    assert torch.equal(found, value)
    assert found.stride() == value.stride() and found.storage_offset() == value.storage_offset()


def test_containers_and_plain_values_arrive(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, "text", True], 3: (torch.float16, torch.device("cpu"), [()]), "t": torch.ones(2)}
    found = passed(value, tmp_path)
    assert torch.equal(found.pop("t"), torch.ones(2))
    value.pop("t")
    assert found == value and type(found[3]) is tuple


def test_an_expanded_tensor_arrives_with_memory_of_its_own(tmp_path: Path) -> None:
    found = passed(torch.ones(1, 3).expand(4, 3), tmp_path)
    assert torch.equal(found, torch.ones(4, 3)) and found.is_contiguous()
    found[0, 0] = 2
    assert found[1, 0] == 1


def test_what_is_neither_number_nor_container_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unportable, match=r"torch\.nn\.modules\.linear\.Linear"):
        passed([torch.nn.Linear(1, 1)], tmp_path)
    with pytest.raises(Unportable, match="sparse"):
        passed(torch.eye(3).to_sparse(), tmp_path)


def test_paths_of_tensors() -> None:
    tree = {"y": torch.ones(1), "more": (torch.ones(2), [3, torch.ones(3)])}
    assert [path for path, _ in tensors(tree)] == ["['y']", "['more'][0]", "['more'][1][1]"]
    assert [path for path, _ in tensors(torch.ones(1))] == [""]


def test_a_subclass_of_tensor_is_refused(tmp_path: Path) -> None:
    class Lazy(torch.Tensor):
        pass

    with pytest.raises(Unportable, match="Lazy"):
        passed(torch.ones(2).as_subclass(Lazy), tmp_path)
    assert torch.equal(passed(torch.nn.Parameter(torch.ones(2)), tmp_path), torch.ones(2))


@pytest.fixture
def striped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of more than 64 bytes lie in files of their own, in pieces of 8 bytes."""
    monkeypatch.setattr(exchange_module, "_STRIPED_BYTES", 64)
    monkeypatch.setattr(exchange_module, "_PIECE_BYTES", 8)


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("count", [63, 64, 65, 71, 72, 73, 127, 128, 129, 1000])
@pytest.mark.usefixtures("striped")
def test_large_tensors_lie_in_files_of_their_own(tmp_path: Path, count: int, digests: bool) -> None:
    here, there = (Exchange(tmp_path, side, digests=digests) for side in ("here", "there"))
    value = [torch.randint(0, 255, (count,), dtype=torch.uint8), torch.randn(3), torch.randn(9, 7).t()]
    tree = here.write(value)
    assert len(list(tmp_path.iterdir())) == 1 + (8 if count > 64 else 0) + 8
    for each in (here.again(tree), tree):
        found = there.read(json.loads(json.dumps(each)))
        assert all(map(torch.equal, found, value)) and found[2].stride() == (1, 7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "size"), [(0, 15), (0, 17), (7, 0), (7, 9), (3, None)])
@pytest.mark.usefixtures("striped")
def test_files_of_a_large_tensor_that_are_not_as_they_were_written(
    tmp_path: Path, number: int, size: int | None
) -> None:
    tree = Exchange(tmp_path, "here").write(torch.arange(72, dtype=torch.uint8))
    path = tmp_path / f"{tree['file']}-{number}"
    path.unlink() if size is None else path.write_bytes(bytes(size))
    with pytest.raises(Malformed, match="another number of bytes" if size is not None else "FileNotFoundError"):
        Exchange(tmp_path, "there").read(tree)


@pytest.mark.usefixtures("striped")
def test_no_byte_of_a_large_tensor_counts_twice(tmp_path: Path) -> None:
    tree = Exchange(tmp_path, "here").write(torch.zeros(80, dtype=torch.uint8))
    with pytest.raises(Malformed, match="another number of bytes"):
        Exchange(tmp_path, "there").read([tree, tree])
    tree = Exchange(tmp_path, "here").write(torch.zeros(80, dtype=torch.uint8))
    (tmp_path / f"{tree['file']}-2").write_bytes(bytes([0] * 7 + [1]))
    with pytest.raises(Trouble, match="another process or thread changed values"):
        Exchange(tmp_path, "there").read(tree)


@pytest.mark.usefixtures("striped")
def test_what_cannot_pass_leaves_no_file_of_a_large_tensor(tmp_path: Path) -> None:
    with pytest.raises(Unportable):
        Exchange(tmp_path, "here").write([torch.zeros(80), torch.eye(3).to_sparse()])
    with pytest.raises(Trouble, match=r"cannot write in .*gone: No such file or directory"):
        Exchange(tmp_path / "gone", "here").write(torch.zeros(80))
    assert list(tmp_path.iterdir()) == []


TREE = {"file": "theirs", "striped": False, "at": 0, "dtype": "float32", "shape": [3], "stride": [1], "offset": 0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"file": "../theirs"}, "wrote a tensor that cannot be"),
        ({"file": "/etc/hostname"}, "wrote a tensor that cannot be"),
        ({"file": "link"}, "OSError"),
        ({"file": "pipe"}, "OSError: pipe is no plain file"),
        ({"file": "missing"}, "FileNotFoundError"),
        ({"file": "missing", "striped": True}, "FileNotFoundError"),
        ({"dtype": "load"}, "wrote a dtype that is none"),
        ({"dtype": 3}, "TypeError"),
        ({"shape": [4]}, "another number of bytes"),
        ({"shape": [2]}, "another number of bytes"),
        ({"shape": [-3]}, "cannot be"),
        ({"shape": "abc"}, "TypeError"),
        ({"stride": [-1]}, "cannot be"),
        ({"stride": [1, 1]}, "cannot be"),
        ({"shape": [10**12]}, "spans 4000000000000 bytes; allowed here are 1000"),
        ({"stride": [10**9]}, "spans 8000000004 bytes; allowed here are 1000"),
        ({"offset": 250}, "spans 1012 bytes; allowed here are 1000"),
    ],
)
def test_what_no_exchange_has_written(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    directory = tmp_path / "exchange"
    directory.mkdir()
    for file in (directory / "theirs", tmp_path / "theirs"):
        file.write_bytes(bytes(12))
    (directory / "link").symlink_to(tmp_path / "theirs")
    os.mkfifo(directory / "pipe")
    exchange = Exchange(directory, "here", limit_bytes=1000, digests=False)
    with pytest.raises(Malformed, match=reason):
        exchange.read([{**TREE, **changes}])
    assert (tmp_path / "theirs").exists()


@pytest.mark.parametrize("tree", [{}, {"dict": 3}, {"dict": [[[1], 2]]}, {"tuple": None}, {"device": "moon"}])
def test_trees_that_are_none(tree: Any, tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        Exchange(tmp_path, "here").read(tree)


@dataclass(frozen=True)
class Config:
    width: int
    inner: Any = None
    made: list[int] = field(default_factory=list, init=False)


def test_dataclasses_arrive_as_records_and_are_made_again(tmp_path: Path) -> None:
    value = [Config(3, {"t": torch.ones(2)}), (Config(4, Config(5)),)]
    value[0].made.append(7)  # type: ignore[union-attr]
    found = passed(value, tmp_path)
    assert isinstance(found[0], Record) and found[0].name == "Config" and found[1][0]["inner"]["width"] == 5
    assert [path for path, _ in tensors(found)] == [path for path, _ in tensors(value)] == ["[0]['inner']['t']"]
    first, (second,) = restored(passed(found, tmp_path), {"Config": Config})
    assert isinstance(first, Config) and first.made == [7] and torch.equal(first.inner["t"], torch.ones(2))
    assert second == Config(4, Config(5))


def test_a_record_runs_nothing_of_a_class_that_is_none() -> None:
    class Other:
        def __new__(cls) -> Any:
            raise AssertionError("made")

    for classes in ({}, {"Config": Other}, {"Config": print}):
        with pytest.raises(Unportable, match="no class with fields called Config"):
            restored([Record("Config", {"width": 1})], classes)


class Attributes(dict[str, Any]):
    """Items and attributes are one."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.__dict__ = self


class Both(dict[str, Any]):
    """Each item is an attribute as well; the constructor takes what no other process knows."""

    def __init__(self, source: Path, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self[name] = value


class Named(SimpleNamespace):
    def get(self, name: str) -> Any:
        return getattr(self, name)


def test_a_dict_whose_items_are_its_attributes(tmp_path: Path) -> None:
    value = Attributes(rates=[4, 2], inner=Attributes(x=torch.ones(1)))
    found = passed([value], tmp_path)
    assert isinstance(found[0], Record) and [path for path, _ in tensors(found)] == ["[0]['inner']['x']"]
    (made,) = restored(passed(found, tmp_path), {"Attributes": Attributes})
    assert type(made) is type(made.inner) is Attributes and made == {**made, "rates": [4, 2]} and made.rates == [4, 2]
    made.later = made["rates"]
    assert made["later"] is made.later is made.rates


def test_a_dict_with_attributes_for_items(tmp_path: Path) -> None:
    made = restored(passed(Both(tmp_path, {"inner": Both(tmp_path, {"x": 3})}), tmp_path), {"Both": Both})
    assert type(made) is Both and made.inner is made["inner"] and made.inner.x == made["inner"]["x"] == 3


def test_dicts_of_the_standard_library(tmp_path: Path) -> None:
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    found = restored(passed([ordered, Counter("aab"), defaultdict(list, x=[1])], tmp_path), {})
    assert found == [ordered, {"a": 2, "b": 1}, {"x": [1]}]
    assert list(found[0]) == ["b", "a"] and [type(each) for each in found] == [OrderedDict, Counter, defaultdict]


def test_namespaces(tmp_path: Path) -> None:
    value = [SimpleNamespace(model=Named(width=3, t=torch.ones(2))), Namespace(out=5)]
    assert [path for path, _ in tensors(value)] == ["[0]['model']['t']"]
    one, other = restored(passed(passed(value, tmp_path), tmp_path), {"Named": Named})
    assert type(one) is SimpleNamespace and type(one.model) is Named and one.model.get("width") == 3
    assert type(other) is Namespace and other == Namespace(out=5)


class Act(Enum):
    RELU = "relu"
    SILU = "silu"


class Level(IntEnum):
    LOW = 1


class Word(str, Enum):
    ONE = "1"


def test_members_of_enums(tmp_path: Path) -> None:
    value = [Act.SILU, Level.LOW, Word.ONE, {Act.RELU: 2}, Config(4, Act.RELU)]
    found = passed(value, tmp_path)
    made = restored(passed(found, tmp_path), {each.__name__: each for each in (Act, Level, Word, Config)})
    assert made == value and all(map(operator.is_, made[:3], value[:3])) and made[4].inner is Act.RELU
    with pytest.raises(Unportable, match="no SILU in Act"):
        restored(found[:1], {"Act": Enum("Act", ["RELU"])})
    with pytest.raises(Unportable, match=r"a value of type re\.RegexFlag"):
        passed(re.RegexFlag.I | re.RegexFlag.M, tmp_path)


def test_a_class_of_another_module_is_found_where_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("settings_of_a_test")
    exec("class Config(dict): pass", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = passed(module.Config(width=3), tmp_path)
    assert type(restored(found, {})) is module.Config
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(Unportable, match="no subclass of dict called Config"):
        restored(found, {})
    assert module.__name__ not in sys.modules  # nothing is imported for a tree


@pytest.mark.parametrize("found", [SimpleNamespace, Config, print, int])
def test_a_dict_is_made_of_a_class_of_dicts_only(found: Any) -> None:
    with pytest.raises(Unportable, match="no subclass of dict called Attributes"):
        restored(Record("Attributes", {"x": 1}, attributes={}), {"Attributes": found})


def test_what_torch_names(tmp_path: Path) -> None:
    norm = partial(torch.nn.BatchNorm2d, affine=True, eps=1e-3)
    found = passed([torch.nn.ReLU, torch.nn.functional.gelu, norm, Named(of=partial(norm, 4))], tmp_path)
    assert found[:2] == [torch.nn.ReLU, torch.nn.functional.gelu]
    assert found[2].func is torch.nn.BatchNorm2d and found[2].keywords == {"affine": True, "eps": 1e-3}
    assert restored(found, {"Named": Named})[3].of.args == (4,)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (test_namespaces, "the function test_namespaces"),
        (lambda x: x, "the function .*<lambda>"),
        (partial(print, 3), r"a value of type builtins\.builtin_function_or_method"),
        (partial(Named, x=3), "the class Named"),
        (torch, r"a value of type builtins\.module"),
        (torch.load, "the function load"),
    ],
)
def test_other_functions_classes_and_modules_are_refused(value: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(Unportable, match=named):
        passed([value], tmp_path)


@pytest.mark.parametrize(
    "tree",
    [
        {"torch": "load"},
        {"torch": "nn.functional.torch"},
        {"torch": "nn.modules.linear.Linear"},
        {"torch": "nn.functional.torch.load"},
        {"partial": "print", "args": [], "keywords": []},
    ],
)
def test_torch_names_are_those_of_a_table(tree: Any, tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        Exchange(tmp_path, "here").read(tree)


# ---- other processes of the same user


@pytest.fixture(params=[0, digest.SHORT_BYTES], ids=["weighted", "hashed"])
def short_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "SHORT_BYTES", request.param)


@pytest.mark.usefixtures("short_bytes")
@pytest.mark.parametrize("size", [1, 3, 4, 5, 4 * 2**20 + 7])
def test_a_digest_tells_bytes_apart(size: int) -> None:
    plain = torch.randint(0, 256, (size,), dtype=torch.uint8)
    kept = digest.digest(plain, 5)
    assert digest.digest(plain.clone(), 5) == kept != digest.digest(plain, 6)
    # Where words lie does not matter.
    assert digest.digest(torch.cat([plain[:1], plain])[1:], 5) == kept
    for place in {0, size // 2, size - 1}:
        for bit in (1, 128):
            plain[place] ^= bit
            assert digest.digest(plain, 5) != kept
            plain[place] ^= bit


@pytest.mark.usefixtures("short_bytes")
def test_a_digest_tells_the_order() -> None:
    plain = torch.randint(0, 256, (16 * 2**20,), dtype=torch.uint8)
    first, second, *_ = plain.split(4 * 2**20)
    assert digest.digest(torch.cat([second, first]), 5) != digest.digest(torch.cat([first, second]), 5)
    # All signs of so many numbers.
    numbers = torch.randn(64, dtype=torch.float64)
    assert digest.digest((-numbers).view(torch.uint8), 5) != digest.digest(numbers.view(torch.uint8), 5)


def test_bytes_that_were_changed_on_the_way(tmp_path: Path) -> None:
    tree = Exchange(tmp_path, "here").write([torch.ones(3), torch.zeros(3)])
    file = tmp_path / tree[0]["file"]
    kept = file.read_bytes()
    file.write_bytes(kept[12:] + kept[:12])
    with pytest.raises(Trouble, match="another process or thread changed values on their way"):
        Exchange(tmp_path, "there").read(tree)
    file.write_bytes(kept)
    assert torch.equal(Exchange(tmp_path, "there").read(tree)[0], torch.ones(3))


def test_without_digests_nothing_is_compared(tmp_path: Path) -> None:
    tree = Exchange(tmp_path, "here", digests=False).write([torch.ones(3), torch.zeros(3)])
    (tmp_path / tree[0]["file"]).write_bytes(bytes(24))
    assert not torch.cat(Exchange(tmp_path, "there", digests=False).read(tree)).any()


def test_a_tree_has_one_file(tmp_path: Path) -> None:
    value = [torch.arange(5), {"a": torch.zeros(0), "b": torch.ones(2, dtype=torch.bool)}]
    tree = Exchange(tmp_path, "here").write(value)
    assert len(list(tmp_path.iterdir())) == 1
    assert tree[0]["file"] == tree[1]["dict"][1][1]["file"] and tree[1]["dict"][1][1]["at"] == 40
    found = Exchange(tmp_path, "there").read(tree)
    assert torch.equal(found[0], value[0]) and torch.equal(found[1]["b"], value[1]["b"])  # type: ignore[call-overload]
    assert not list(tmp_path.iterdir())


def test_names_cannot_be_guessed(tmp_path: Path) -> None:
    names = [Exchange(tmp_path, "here").write(torch.ones(1))["file"] for _ in range(3)]
    assert len({*names}) == 3 and all(len(name) == len("here-") + 16 for name in names)


def test_a_directory_that_is_gone_is_trouble(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match=r"cannot write in .*gone: No such file or directory; values pass through it"):
        Exchange(tmp_path / "gone", "here").write(torch.ones(1))
