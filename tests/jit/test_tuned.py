"""Measurements on disk: kept, merged, and not used where they do not count."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tconv.errors import MissingToolchain, Trouble
from tconv.jit import tuned
from tconv.planner import Gpu, Kernel
from tconv.planner.choice import leading
from tconv.planner.tuned import Question, Tuned
from tconv.problem import Layer, Problem
from tconv.settings import Settings

H200 = Gpu.h200()
QUESTION = Question(Problem(Layer(1, 8, 4, (1, 1, 4), (1, 1, 2), (0, 0, 1)), 2, (1, 1, 40)))
OTHER = replace(QUESTION, tensor_core_precision="tf32")


@functools.cache
def kernel() -> Kernel[Any]:
    return leading(QUESTION, H200, 2)[0][0]


def answer(milliseconds: float = 1.0) -> Tuned:
    return Tuned(kernel().family, kernel().tile, milliseconds, 2.0, 2)


@pytest.fixture(autouse=True)
def fresh(cache_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tuned, "driver_version", lambda: (13, 0))
    tuned.answers.cache_clear()
    yield
    tuned.answers.cache_clear()
    tuned._cudnn_version.cache_clear()


def answers(name: str = H200.name) -> dict[Question, Tuned]:
    """As a new process reads them."""
    tuned.answers.cache_clear()
    return dict(tuned.answers(name))


def test_what_is_stored_is_found(cache_directory: Path) -> None:
    path = tuned.store(H200, {QUESTION: answer()})
    assert path == cache_directory / "tuned" / "nvidia-h200.json"
    assert answers() == {QUESTION: answer()}
    assert list(path.parent.iterdir()) == [path], "nothing is left aside"


def test_nothing_stored_is_no_trouble(cache_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert answers() == {}
    assert caplog.messages == [] and not cache_directory.exists()


def test_it_is_read_once_in_a_process() -> None:
    path = tuned.store(H200, {QUESTION: answer()})
    assert tuned.answers(H200.name) == {QUESTION: answer()}
    path.unlink()
    assert tuned.answers(H200.name) == {QUESTION: answer()}


def test_later_measurements_are_added_and_replace_earlier_ones() -> None:
    tuned.store(H200, {QUESTION: answer(), OTHER: answer()})
    tuned.store(H200, {QUESTION: answer(0.5)})
    assert answers() == {QUESTION: answer(0.5), OTHER: answer()}


def test_gpus_have_files_of_their_own() -> None:
    ada = replace(H200, name="NVIDIA L4")
    tuned.store(H200, {QUESTION: answer()})
    tuned.store(ada, {OTHER: answer()})
    assert answers() == {QUESTION: answer()} and answers(ada.name) == {OTHER: answer()}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("driver_version", lambda: (12, 8), "measured with driver CUDA 13.0, here is CUDA 12.8"),
        ("driver_version", lambda: None, "here is none"),
        ("__version__", "99.0", "here is 99.0"),
        ("header_digest", lambda: "other kernels", "here is other kernels"),
    ],
)
def test_measurements_of_other_conditions_do_not_count(
    name: str, value: Any, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tuned.store(H200, {QUESTION: answer()})
    monkeypatch.setattr(tuned, name, value)
    assert answers() == {}
    (message,) = caplog.messages
    assert says in message and str(path) in message and message.endswith("run tconv tune again")
    tuned.store(H200, {OTHER: answer()})
    assert answers() == {OTHER: answer()}, "what was measured otherwise goes"


@pytest.mark.parametrize("name", ["gpu", "torch", "cudnn", "driver", "tconv", "kernels"])
def test_a_header_that_differs_or_lacks_something_does_not_count(name: str) -> None:
    path = tuned.store(H200, {QUESTION: answer()})
    table = json.loads(path.read_text())
    for changed in ({**table, name: "other"}, {key: value for key, value in table.items() if key != name}):
        path.write_text(json.dumps(changed))
        assert answers() == {}
    path.write_text(json.dumps(table))
    assert answers() == {QUESTION: answer()}


def test_without_bindings_nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned.store(H200, {QUESTION: answer()})

    def missing() -> None:
        raise MissingToolchain("no bindings")

    monkeypatch.setattr(tuned, "driver_version", missing)
    assert answers() == {}


def test_a_cudnn_that_cannot_be_loaded_breaks_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch has it: it raises when first asked, and then answers."""
    tuned.store(H200, {QUESTION: answer()})
    answers_of_torch = iter([RuntimeError("cuDNN version incompatibility"), 91900, 91900])

    def version() -> int:
        given = next(answers_of_torch)
        if isinstance(given, RuntimeError):
            raise given
        return given

    monkeypatch.setattr(tuned.torch.backends.cudnn, "version", version)
    tuned._cudnn_version.cache_clear()
    assert answers() == {}
    tuned.store(H200, {OTHER: answer()})
    assert answers() == {OTHER: answer()}


def _edited(text: str, **fields: Any) -> str:
    return json.dumps({**json.loads(text), **fields})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: "null",
        lambda text: "[1, 2]",
        lambda text: '"text"',
        lambda text: _edited(text, entries=None),
        lambda text: _edited(text, entries=[3]),
        lambda text: _edited(text, entries={"a": 1}),
        lambda text: text.replace('"milliseconds"', '"ms"'),
        lambda text: text.replace("1.0", "1e999"),
    ],
)
def test_a_damaged_file_is_no_file_and_heals(damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    path = tuned.store(H200, {QUESTION: answer()})
    path.write_text(damage(path.read_text()))
    assert answers() == {}
    (message,) = caplog.messages
    assert "\n" not in message and len(message) < 400
    tuned.store(H200, {OTHER: answer()})
    assert answers() == {OTHER: answer()}


def test_bytes_that_are_no_text() -> None:
    path = tuned.store(H200, {QUESTION: answer()})
    path.write_bytes(b"\xff\xfe\x00")
    assert answers() == {}


def test_a_folder_in_its_place(caplog: pytest.LogCaptureFixture) -> None:
    path = tuned.path_of(H200.name)
    assert path is not None
    path.mkdir(parents=True)
    assert answers() == {} and len(caplog.messages) == 1
    with pytest.raises(Trouble, match="TCONV_CACHE_DIR"):
        tuned.store(H200, {QUESTION: answer()})


def test_a_place_that_cannot_be_written_is_trouble(cache_directory: Path) -> None:
    cache_directory.write_text("a file where the directory should be")
    for write in (tuned.check_writable, lambda gpu: tuned.store(gpu, {QUESTION: answer()})):
        with pytest.raises(Trouble) as trouble:
            write(H200)
        assert "nvidia-h200.json" in str(trouble.value) and "set TCONV_CACHE_DIR" in str(trouble.value)
    assert answers() == {}


def test_no_place_at_all_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "settings", lambda: Settings(None))
    assert answers() == {}
    with pytest.raises(Trouble, match="no home directory; set TCONV_CACHE_DIR"):
        tuned.check_writable(H200)


def test_a_write_that_fails_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    path = tuned.store(H200, {QUESTION: answer()})

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tuned.os, "replace", full)
    with pytest.raises(Trouble, match="No space left"):
        tuned.store(H200, {OTHER: answer()})
    assert answers() == {QUESTION: answer()} and list(path.parent.iterdir()) == [path]


def test_checking_leaves_nothing_behind(cache_directory: Path) -> None:
    tuned.check_writable(H200)
    assert list((cache_directory / "tuned").iterdir()) == []
