"""Times in words: the last line, what stands before it, and when it is red."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tconv.cli.speeds import compiled_hint, remarks, speeds, times
from tconv.evaluation.verdict import AsCalled, Series, Timing


def flat(median: float) -> Series:
    return Series(median, median, median)


def timing(called: float | None = 1.0, inference: float = 1.0, **more: Any) -> dict[str, Any]:
    """Of a file with these milliseconds, where PyTorch takes 5 by default and 4 otherwise."""
    others = {"alternatives": {"cudnn.benchmark": flat(4.5), "channels_last": flat(4.0)}}
    as_called = None if called is None else AsCalled(flat(called), flat(5.0), **others, calls=100)
    return replace(Timing(flat(inference), flat(5.0), "by turns", **others, as_called=as_called), **more).to_dict()


@pytest.mark.parametrize(
    ("called", "inference", "words", "style"),
    [
        (0.98, 0.94, "as called 5.1x (best other 4.1x), inference 5.3x (4.3x)", "bold green"),
        (4.8, 4.9, "as called 1.04x (best other 0.83x), inference 1.02x (0.82x)", "bold green"),
        (10, 20, "as called 0.5x (best other 0.4x), inference 0.25x (0.2x): SLOWER than PyTorch", "bold red"),
        (1, 20, "as called 5x (best other 4x), inference 0.25x (0.2x): SLOWER than PyTorch in inference", "bold red"),
        (10, 1, "as called 0.5x (best other 0.4x), inference 5x (4x): SLOWER than PyTorch as called", "bold yellow"),
        (None, 0.1, "inference 50x (best other 40x), not timed as called", "bold green"),
        (None, 10, "inference 0.5x (best other 0.4x), not timed as called: SLOWER than PyTorch", "bold red"),
    ],
)
def test_the_last_line_has_both_ways(called: float | None, inference: float, words: str, style: str) -> None:
    assert speeds(timing(called, inference)) == (words, style)


def test_without_another_way_nothing_stands_beside() -> None:
    alone = Timing(flat(1), flat(2), "", as_called=AsCalled(flat(1), flat(3), calls=100))
    assert speeds(alone.to_dict())[0] == "as called 3x, inference 2x"


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.034, "0.034x"), (0.9, "0.90x"), (1.0, "1.00x"), (1.1, "1.1x"), (9.96, "10x"), (13.4, "13x")]
)
def test_digits(ratio: float, words: str) -> None:
    assert times(ratio) == words


@pytest.mark.parametrize(("called", "warned"), [(5.2, False), (5.3, True), (None, False)])
def test_slower_as_called_is_warned_of(called: float | None, warned: bool) -> None:
    found = remarks(timing(called, notes=("one", "two")))
    assert found[:2] == ["Times: one.", "Times: two."]
    assert [line.startswith("Slower as called: 5.3 ms, PyTorch 5 ms: ") for line in found[2:]] == [True] * warned


def test_torch_compile_is_named_where_it_is_clearly_the_fastest() -> None:
    assert compiled_hint(timing(), "new.py") == ""
    assert compiled_hint(timing(compiled=flat(0.96)), "new.py") == ""
    how = "Fastest: new.py as model = torch.compile(ModelNew(...)): "
    assert compiled_hint(timing(compiled=flat(0.9)), "new.py") == f"{how}in inference 0.9 ms."
    both = AsCalled(flat(1.0), flat(5.0), compiled=flat(0.5), calls=100)
    assert compiled_hint(timing(as_called=both, compiled=flat(0.9)), "new.py") == (
        f"{how}as called 0.5 ms, in inference 0.9 ms."
    )
    # Of the model alone it is one of PyTorch's ways.
    theirs = {"alternatives": {"torch.compile": flat(0.2)}}
    assert compiled_hint(timing(as_called=None, compiled=flat(0.9), **theirs), "new.py") == ""
