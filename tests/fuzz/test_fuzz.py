"""Random problems and kept cases, in the emulator and on a GPU; and that mistakes are found and made small.

`fuzz.py` is the long version.
"""

from __future__ import annotations

import kept_cases
import pytest
from case_runs import Report, in_emulator, on_gpu
from random_cases import Case, random_unit
from shrinking import as_python, shrink
from workers import Worker

from tconv.kernels.source import header_files
from tconv.problem import Layer, Problem

#: Of the problems that show planted mistakes; elsewhere the shard is the seed, so that each tree meets others.
SEED = 1
#: Of 48 problems each, of which all but those on an empty batch have a kernel, mostly.
UNITS = range(10)
MOST_OF_A_UNIT = 30
#: On a GPU, compiling takes longer.
UNITS_ON_GPU = range(3)

#: One mistake each in what all families share: what stands in the kernels' text, and what is put in its place.
MISTAKES = {
    "shift without the dilation": ("static_cast<long long>(tap) * dilation +", "static_cast<long long>(tap) +"),
    "phase without the modular inverse": ("if (inverse > 1) tap =", "if (false) tap ="),
    "last position forgotten": (
        "(output_size - 1) / stride + 1;",
        "(output_size - 1) / stride + (output_size < 2);",
    ),
    "ties to even rounded away": ("rounding == Rounding::ties_away ? 0x1000u", "true ? 0x1000u"),
    "bfloat16 truncated": ("(bits + 0x7fffu + (bits >> 16 & 1u)) >> 16", "bits >> 16"),
}


def wrong(report: Report) -> str:
    """Empty if nothing was wrong, else the lines for `kept_cases.KEPT`."""
    return "\n".join(f"{as_python(failure.case)}  # {failure.what}" for failure in report.failures)


@pytest.mark.parametrize("number", [n if n < 1 else pytest.param(n, marks=pytest.mark.slow) for n in UNITS])
def test_random_problems_in_the_emulator(number, shard):
    report = in_emulator(random_unit(shard, number))
    assert not wrong(report)
    assert report.ran > MOST_OF_A_UNIT


def test_random_problems_under_the_address_sanitizer(shard):
    report = in_emulator(random_unit(shard, len(UNITS), layers=4), "address")
    assert not wrong(report)
    assert report.ran > MOST_OF_A_UNIT / 2


@pytest.mark.gpu
@pytest.mark.parametrize("number", UNITS_ON_GPU)
def test_random_problems_on_a_gpu(number, shard):
    report, _ = on_gpu(random_unit(shard, number))
    assert not wrong(report)
    assert report.ran > MOST_OF_A_UNIT


def test_kept_cases_in_the_emulator():
    report = in_emulator(kept_cases.KEPT)
    assert not wrong(report)
    assert report.ran == len(kept_cases.KEPT)


@pytest.mark.gpu
def test_kept_cases_on_a_gpu():
    report, _ = on_gpu(kept_cases.KEPT)
    assert not wrong(report)
    assert report.ran == len(kept_cases.KEPT)


def test_mistakes_are_of_the_kernels_text():
    text = "".join(path.read_text(encoding="utf-8") for path in header_files().values())
    assert {mistake: text.count(old) for mistake, (old, _) in MISTAKES.items()} == dict.fromkeys(MISTAKES, 1)


@pytest.mark.rotates(22)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake):
    found = next(report for number in UNITS if (report := with_mistake(mistake, random_unit(SEED, number))).failures)
    assert found.ran, "the emulator could not run it at all"


@pytest.mark.slow
def test_a_failing_case_becomes_small():
    mistake = "shift without the dilation"
    failures = (failure for number in UNITS for failure in with_mistake(mistake, random_unit(SEED, number)).failures)

    def fails(case: Case) -> bool:
        return bool(with_mistake(mistake, [case]).failures)

    # Of a unit with a mistake, one case may write where another one's tensors are.
    found = next(failure.case for failure in failures if not failure.case.tensor_cores and fails(failure.case))
    small = shrink(found, fails)
    problem, layer = small.problem, small.problem.layer
    assert small == Case(problem)
    assert (problem.batch, problem.input_size, layer.in_channels, layer.out_channels) == (1, (1, 1, 1), 1, 1)
    assert sorted(layer.kernel) == [1, 1, 2]
    assert (layer.precision, layer.bias, layer.padding, problem.output_padding) == ("fp32", False, (0,) * 3, (0,) * 3)


def with_mistake(mistake: str, cases: list[Case]) -> Report:
    old, new = MISTAKES[mistake]

    def change(text: str) -> str:
        assert text.count(old) == 1, "the kernels have changed: the mistake must be adapted"
        return text.replace(old, new)

    return in_emulator(cases, change=change)


def test_printed_cases_can_be_pasted():
    for number in range(50):
        for case in random_unit(SEED, number):
            assert eval(as_python(case), {"Case": Case, "Problem": Problem, "Layer": Layer}) == (case,)


def test_a_case_that_ends_its_process_is_named_and_the_others_run():
    good = kept_cases.KEPT[0]
    with Worker("emulator") as worker:
        report = worker.check([good, None, good])  # type: ignore[list-item]
    assert report.ran == 2
    assert [(failure.case, failure.what) for failure in report.failures] == [(None, "the process ended")]
