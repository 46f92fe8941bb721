"""The page of a report: whole, without anything from elsewhere, and with what the JSON says."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tconv.cli.reports import check_writable, page, write_reports
from tconv.errors import Trouble
from tconv.evaluation.report import Report, Variation
from tconv.evaluation.steps import Steps
from tconv.evaluation.verdict import AsCalled, Check, Series, Timing, Verdict

EQUAL = Verdict((Check("pooled error", True, 1e-4, 2e-4), Check("same bits twice", None, reason="not run")))
UNEQUAL = Verdict((Check("shape", False, "(1, 2)", "(1, 3)", "one column too few"),))
CALLED = AsCalled(
    Series(0.8, 0.7, 0.9), Series(1.6, 1.5, 1.7), alternatives={"channels_last": Series(1.2, 1.1, 1.3)}, calls=100
)
TIMING = Timing(
    Series(0.5, 0.4, 0.6),
    Series(2.0, 1.9, 2.1),
    "by turns",
    0.25,
    {"candidate": 20.0},
    alternatives={"channels_last": Series(1.0, 0.9, 1.1)},
    as_called=CALLED,
)
_VOID = {"meta"}


class Elements(HTMLParser):
    """Every element closed in the order of their opening; what a browser would fetch; and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.fetched += [name for name, _ in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data if self.open and self.open[-1] != "style" else ""

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def widths(self) -> list[str]:
        return [
            found for _, attrs in self.elements for found in re.findall(r"width: ([\d.]+)%", attrs.get("style") or "")
        ]


def judged(report: Report, **seconds: float) -> dict[str, Any]:
    return {**report.to_dict(), "seconds": seconds}


def report(verdict: Verdict = EQUAL, **more: Any) -> Report:
    return Report("model.py", "candidate.py", "cuda", "match", verdict, **more)


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = page(judged(report(timing=TIMING), timing=3.0))
    found = Elements(text)
    assert found.fetched == [] and found.count("script") == found.count("link") == 0
    assert "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_times_stand_beside_bars_of_their_length() -> None:
    found = Elements(page(judged(report(timing=TIMING), comparing=1.0, timing=4.0)))
    assert "equal (default checks); as called 2x (best other 1.5x), inference 4x (2x)" in found.words
    spreads = ("1.6 ms (1.5 to 1.7)", "1.2 ms (1.1 to 1.3)", "0.8 ms (0.7 to 0.9)", "2 ms (1.9 to 2.1)")
    for words in (
        "PyTorch, channels_last",
        *spreads,
        "0.5 ms (0.4 to 0.6)",
        "0.25 ms",
        "100 calls",
        "by turns",
        "20 µs",
    ):
        assert words in found.words
    # As called: PyTorch, its other setting, ModelNew; in inference these and the floor; then the steps.
    assert found.widths() == ["100.00", "75.00", "50.00", "100.00", "50.00", "25.00", "12.50", "25.00", "100.00"]


def test_what_is_wrong_is_open_and_in_words() -> None:
    varied = (Variation({"stride": 2}, UNEQUAL), Variation({}, EQUAL))
    found = Elements(page(judged(report(UNEQUAL, variations=varied, not_checked=("the full size",)))))
    assert "NOT EQUAL" in found.words and "shape: one column too few" in found.words
    assert "with stride=2: shape" in found.words and "the full size" in found.words
    opened = ["open" in attrs for tag, attrs in found.elements if tag == "details"]
    assert opened == [True, True, False]


def test_an_untimed_report_has_no_bars() -> None:
    found = Elements(page(judged(report())))
    assert "equal (default checks); not timed" in found.words and "not checked" in found.words
    assert found.widths() == []


def test_a_slower_file_is_not_praised() -> None:
    slower = Timing(Series(2.0, 2, 2), Series(1.0, 1, 1), "by turns")
    found = Elements(page(judged(report(timing=slower))))
    assert "inference 0.5x, not timed as called: SLOWER than PyTorch" in found.words
    assert ("p", {"class": "verdict bad"}) in found.elements


def test_a_file_that_is_slower_as_it_is_called_is_warned_of() -> None:
    slower = replace(TIMING, as_called=replace(CALLED, candidate=Series(1.7, 1.6, 1.8)))
    found = Elements(page(judged(report(timing=slower))))
    assert "Slower as called: 1.7 ms, PyTorch 1.6 ms" in found.words
    assert ("p", {"class": "verdict good"}) in found.elements, "inference decides"


def test_what_torch_compile_gains_is_told_with_its_own_bars() -> None:
    faster = replace(TIMING, as_called=replace(CALLED, compiled=Series(0.4, 0.3, 0.5)), notes=("nothing else",))
    found = Elements(page(judged(report(timing=faster))))
    assert "Fastest: candidate.py as model = torch.compile(ModelNew(...)): as called 0.4 ms." in found.words
    assert "Times: nothing else." in found.words
    assert "ModelNew, torch.compile" in found.words and "0.4 ms (0.3 to 0.5)" in found.words


def test_names_are_text() -> None:
    odd = Report("<script>alert(1)</script>.py", "a&b.py", "cpu", "match", UNEQUAL)
    found = Elements(page(judged(odd)))
    assert found.count("script") == 0 and "<script>alert(1)</script>.py" in found.words and "a&b.py" in found.words


def test_what_is_not_wanted_is_not_written(tmp_path: Path) -> None:
    write_reports(judged(report()), None, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(judged(report()))


@pytest.mark.parametrize(("place", "says"), [("", "it is a folder"), ("no/r.html", "its folder does not exist")])
def test_a_place_that_cannot_be_written_is_said_at_once(place: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(Trouble, match=f"{says}; choose another place for the report"):
        check_writable(None, tmp_path / place)
    check_writable(None, tmp_path / "r.html")


def test_a_step_lasts_until_the_next_one() -> None:
    times = iter([1.0, 3.0, 3.0, 3.5, 3.5, 4.5])
    said: list[str] = []
    steps = Steps(said.append, lambda: next(times))
    for step in ("planning", "checking", "planning"):
        steps(step)
    assert steps.seconds() == {"planning": 3.0, "checking": 0.5}
    assert steps.seconds() == {"planning": 3.0, "checking": 0.5}, "nothing goes on behind the end"
    assert said == ["planning", "checking", "planning"]
