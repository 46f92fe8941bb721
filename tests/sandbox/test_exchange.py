"""Values reach another process as they were, and nothing that runs code does."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tconv.errors import Trouble
from tconv.sandbox.digest import digest
from tconv.sandbox.exchange import Exchange, Malformed, Record, Unportable, restored, tensors


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


TREE = {"file": "theirs", "dtype": "float32", "shape": [3], "stride": [1], "offset": 0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"file": "../theirs"}, "wrote a tensor that cannot be"),
        ({"file": "/etc/hostname"}, "wrote a tensor that cannot be"),
        ({"file": "link"}, "OSError"),
        ({"file": "pipe"}, "OSError: pipe is no plain file"),
        ({"file": "missing"}, "FileNotFoundError"),
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
    exchange = Exchange(directory, "here", limit_bytes=1000)
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
        with pytest.raises(Unportable, match="no dataclass or named tuple Config"):
            restored([Record("Config", {"width": 1})], classes)


# ---- other processes of the same user


@pytest.mark.parametrize("size", [1, 3, 4, 5, 4 * 2**20 + 7])
def test_a_digest_tells_bytes_apart(size: int) -> None:
    plain = torch.randint(0, 256, (size,), dtype=torch.uint8)
    kept = digest(plain, 5)
    assert digest(plain.clone(), 5) == kept != digest(plain, 6)
    # Where words lie does not matter.
    assert digest(torch.cat([plain[:1], plain])[1:], 5) == kept
    for place in {0, size // 2, size - 1}:
        for bit in (1, 128):
            plain[place] ^= bit
            assert digest(plain, 5) != kept
            plain[place] ^= bit


def test_a_digest_tells_the_order() -> None:
    plain = torch.randint(0, 256, (16 * 2**20,), dtype=torch.uint8)
    first, second, *_ = plain.split(4 * 2**20)
    assert digest(torch.cat([second, first]), 5) != digest(torch.cat([first, second]), 5)
    # All signs of so many numbers.
    numbers = torch.randn(64, dtype=torch.float64)
    assert digest((-numbers).view(torch.uint8), 5) != digest(numbers.view(torch.uint8), 5)


def test_bytes_that_were_changed_on_the_way(tmp_path: Path) -> None:
    tree = Exchange(tmp_path, "here").write([torch.ones(3), torch.zeros(3)])
    ones, zeros = (tmp_path / part["file"] for part in tree)
    kept = ones.read_bytes()
    ones.write_bytes(zeros.read_bytes())
    with pytest.raises(Trouble, match="another process or thread changed values on their way"):
        Exchange(tmp_path, "there").read(tree[0])
    ones.write_bytes(kept)
    assert torch.equal(Exchange(tmp_path, "there").read(tree[0]), torch.ones(3))


def test_names_cannot_be_guessed(tmp_path: Path) -> None:
    names = [Exchange(tmp_path, "here").write(torch.ones(1))["file"] for _ in range(3)]
    assert len({*names}) == 3 and all(len(name) == len("here-") + 16 for name in names)


def test_a_directory_that_is_gone_is_trouble(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match=r"cannot write in .*gone: No such file or directory; values pass through it"):
        Exchange(tmp_path / "gone", "here").write(torch.ones(1))
