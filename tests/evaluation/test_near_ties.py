"""What hangs on rounding is right as `Model` gives it when its operands move a little; what does not is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from strict import judge
from torch import Tensor

from tconv.evaluation.files.results.near_ties import NearTies, hangs_on_rounding
from tconv.evaluation.files.results.output_rules import same_outputs
from tconv.evaluation.files.sides.file_process import CannotJudge
from tconv.evaluation.verdict import Check
from tconv.sandbox.worker import Workshop

Write = Callable[[str, str], Path]
#: Draws where few elements are apart, and where many are.
FEW, MANY = 12, 3


class Runs:
    """`Model` with moved operands: gives these outputs, the last one again and again, and counts."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs, self.numbers = outputs, list[int]()

    def __call__(self, number: int) -> Any:
        self.numbers.append(number)
        return self.outputs[min(number, len(self.outputs) - 1)]

    def settled(self, got: Any, expected: Any, allowed: float = 0, others: Sequence[Tensor] = ()) -> list[Any]:
        ours, theirs = (torch.tensor(each, dtype=torch.float64) for each in (got, expected))
        return NearTies(self).settled("", ours, theirs, others, torch.tensor(allowed), 0).tolist()


def wide(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- elements


def test_model_is_not_run_where_nothing_is_apart() -> None:
    runs, got = Runs(None), wide(1, 2.5)
    assert NearTies(runs).settled("", got, wide(1, 2), (), wide(0.5), 0) is got
    assert runs.numbers == []


@pytest.mark.parametrize(
    ("got", "runs", "settled"),
    [
        ([1, 5, 3], [[1, 5, 3]], [1, 2, 3]),
        ([1, 5, 3], [[1, 2, 3], [1, 5, 3]], [1, 2, 3]),
        ([1, 5, 3], [[1, 2, 3]], [1, 5, 3]),
        ([1, 5, 3], [[5, 2, 3]], [1, 5, 3]),  # another element's number
        ([1, 5, 3], [[1, 4, 3], [1, 6, 3]], [1, 5, 3]),  # a number between two that are given
        ([1, 5, 9], [[1, 5, 3]], [1, 2, 9]),
        ([1, 5, 9], [[1, 5, 3], [1, 2, 9]], [1, 2, 3]),
    ],
)
def test_a_number_of_points_is_one_that_model_gives(got: list[int], runs: list[list[int]], settled: list[int]) -> None:
    assert Runs(*map(torch.tensor, runs)).settled(got, [1, 2, 3]) == settled


@pytest.mark.parametrize(
    ("got", "settled"),
    [
        (1.0, 1.0),
        (1.25, 1.25),  # as far as is allowed anyway: it stays what it is
        (2.0, 1.0),
        (2.125, 1.0),
        (2.25, 2.25),
        (0.5, 1.0),  # between the true one and the lowest
        (-0.125, 1.0),
        (-0.25, -0.25),
    ],
)
def test_a_floating_point_number_lies_among_those_that_model_gives(got: float, settled: float) -> None:
    assert Runs(torch.tensor([2.0]), torch.tensor([0.0])).settled([got], [1.0], allowed=0.25) == [settled]


@pytest.mark.parametrize(("got", "settled"), [([3], [1]), ([4], [1]), ([5], [5])])
def test_what_model_gives_anyway_counts_too(got: list[int], settled: list[int]) -> None:
    assert Runs(None).settled(got, [1], others=[wide(3), wide(4)]) == settled


@pytest.mark.parametrize(("got", "numbers"), [(3, []), (4, []), (5, [0])])
def test_what_model_gives_anyway_costs_no_run(got: int, numbers: list[int]) -> None:
    runs = Runs(torch.tensor([5]))
    assert runs.settled([got], [1], others=[wide(3), wide(4)]) == [1]
    assert runs.numbers == numbers


@pytest.mark.parametrize(("apart", "draws"), [(0, 0), (1, FEW), (5, FEW), (6, MANY), (100, MANY)])
def test_where_much_is_apart_fewer_draws_are_taken(apart: int, draws: int) -> None:
    runs = Runs(torch.zeros(100))
    got = [1] * apart + [0] * (100 - apart)
    assert runs.settled(got, [0] * 100) == got
    assert runs.numbers == list(range(draws))


@pytest.mark.parametrize("size", [1, 2, 10])
def test_one_element_of_few_gets_all_draws(size: int) -> None:
    runs = Runs(*[torch.zeros(size)] * (FEW - 1), torch.ones(size))
    assert runs.settled([1, *[0] * (size - 1)], [0] * size) == [0] * size


def test_draws_end_where_all_is_settled() -> None:
    runs = Runs(*(torch.tensor([0, number]) for number in range(1, 9)))
    assert runs.settled([0, 4], [0, 0]) == [0, 0]
    assert runs.numbers == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "run",
    [
        None,
        torch.zeros(2, 2),
        torch.ones(1),
        torch.tensor(1),
        [torch.ones(2)],
        {"other": torch.ones(2)},
        torch.ones(2, dtype=torch.complex64),
    ],
)
def test_a_run_of_another_form_settles_nothing(run: Any) -> None:
    assert Runs(run).settled([1, 0], [0, 0]) == [1, 0]
    assert Runs(run, torch.ones(2)).settled([1, 0], [0, 0]) == [0, 0]


@pytest.mark.parametrize(
    ("run", "got", "expected"),
    [
        (torch.tensor(7), 7, 2),
        (torch.tensor([True, False]), [1, 0], [0, 0]),
        (torch.tensor([2.0 + 1j]), [[2, 1]], [[3, 1]]),
        (torch.tensor([7], dtype=torch.uint8), [7], [2]),
    ],
)
def test_any_tensor_may_hang_on_rounding(run: Tensor, got: Any, expected: Any) -> None:
    assert Runs(run).settled(got, expected) == expected


def test_rows_are_compared_with_the_same_rows() -> None:
    ties = NearTies(Runs(torch.tensor([[8], [8], [5], [6]])))
    got, expected = torch.tensor([[5.0], [8.0]]), torch.tensor([[1.0], [2.0]])
    for first, settled in ((2, [[1], [8]]), (0, [[5], [2]]), (3, [[5], [8]])):
        assert ties.settled("", got.double(), expected.double(), (), wide(0), first).tolist() == settled


def test_each_output_is_compared_with_its_own_and_model_runs_once_for_all() -> None:
    runs = Runs({"output": [torch.tensor([5]), torch.tensor([6])], "buffers": {}})
    ties = NearTies(runs)
    parts = [(ties, "['output']"), (ties.of("output"), "")]
    for own, path in parts:
        assert own.settled(f"{path}[0]", wide(5), wide(1), (), wide(0), 0).tolist() == [1]
        assert own.settled(f"{path}[1]", wide(5), wide(1), (), wide(0), 0).tolist() == [5]
    assert runs.numbers == list(range(FEW))
    nothing = NearTies(Runs(None)).of("output")
    assert nothing.settled("", wide(5), wide(1), (), wide(0), 0).tolist() == [5]


def test_large_results_are_not_run_again_and_again() -> None:
    large = torch.zeros(1).expand(2**26)
    runs = Runs([torch.tensor([0]), large])
    ties = NearTies(runs)
    for _ in range(2):
        assert ties.settled("[0]", wide(5), wide(1), (), wide(0), 0).tolist() == [5]
    assert runs.numbers == [0]


# ---- the form


def test_a_form_hangs_on_rounding_where_models_own_does() -> None:
    expected = torch.zeros(3)
    passed, failed = (same_outputs(got, expected) for got in (torch.ones(3), torch.zeros(4)))
    runs = Runs(torch.zeros(3), torch.zeros(3), torch.zeros(2))
    assert NearTies(runs).form(passed, expected) is passed and runs.numbers == []
    hangs = NearTies(runs).form(failed, expected)
    assert runs.numbers == [0, 1, 2]
    assert hangs.passed is None and hangs.name == failed.name and hangs_on_rounding(hangs)
    assert failed.reason in hangs.reason
    assert not hangs_on_rounding(replace(hangs, passed=False))


@pytest.mark.parametrize(
    "runs",
    [
        Runs(None),
        Runs(torch.ones(3)),
        Runs(torch.ones(3, dtype=torch.float64)),  # a run in float64 has another type, and the same form
        Runs(None, torch.zeros(2)),  # it cannot run so
    ],
)
def test_a_form_that_model_keeps_to_is_asked(runs: Runs) -> None:
    expected = torch.zeros(3)
    failed = same_outputs(torch.zeros(4), expected)
    assert NearTies(runs).form(failed, expected) is failed
    assert not failed.passed and not hangs_on_rounding(failed)


@pytest.mark.parametrize(
    "check", [Check("a", True), Check("a", False, reason="b"), Check("a", None, reason="not checked")]
)
def test_other_checks_do_not_hang_on_rounding(check: Check) -> None:
    assert not hangs_on_rounding(check)


# ---- whole files

HEAD = """
import torch
from torch import nn
from torch.nn.functional import conv_transpose1d

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(8, 5, 4, 2).to({dtype})
    def forward(self, x):
        y = self.up(x)
        {body}

def get_inputs():
    return [torch.randn(2, 8, 250).to({dtype})]
"""
#: The same convolution, in another order of the sums.
SPLIT = """w, b = self.up.weight, self.up.bias
        y = sum(conv_transpose1d(x[:, i::4], w[i::4], None, 2) for i in range(4)) + b.view(-1, 1)"""
#: So fine, at any scale, that rounding decides where some lie: of random numbers alone hardly two ever tie.
FINE = "fine = (y / y.abs().amax((1, 2), True) * 2**43).sin()\n        "
#: In float64, where PyTorch's own results are the true ones and nothing but ties excuses others.
SELECTIONS = {
    "the largest": "return fine.argmax(1)",
    "the largest two": "return y, fine.topk(2, 1)[1]",
    "an order": "return fine.argsort(1)",
    "a mask": "return fine > 0.5",
    "rounded": "return {'level': (fine * 2).round()}",
}
#: What a model takes from its layer, and what is another thing.
WRONG = {
    "of the negative": ("y.argmax(1)", "(-y).argmax(1)"),
    "the smallest": ("y.argmax(1)", "y.argmin(1)"),
    "the next": ("y.argmax(1)", "(y.argmax(1) + 1).clamp(max=4)"),
    "constant": ("y.argmax(1)", "y.argmax(1) * 0"),
    "one channel larger": ("y.argmax(1)", "(y * torch.tensor([1, 1, 1.01, 1, 1]).view(-1, 1)).argmax(1)"),
    "one index": ("y.argmax(1)", "torch.cat([y.argmax(1)[:, :-1], 4 - y.argmax(1)[:, -1:]], 1)"),
    "two swapped": ("y.topk(2, 1)[1]", "y.topk(2, 1)[1].flip(1)"),
    "the other way round": ("y.argsort(1)", "y.argsort(1, descending=True)"),
    "another threshold": ("y > 0.5", "y > 0.49"),
    "not rounded, but cut off": ("(y * 8).round()", "(y * 8).trunc()"),
}


def as_candidate(model: str, old: str, new: str) -> str:
    assert model.count(old) == 1
    return model.replace(old, new).replace("class Model(", "class ModelNew(")


@pytest.mark.rotates(12)
@pytest.mark.parametrize("name", SELECTIONS)
def test_what_another_order_of_sums_tips_over_is_equal(workshop: Workshop, write: Write, name: str) -> None:
    model = HEAD.format(dtype="torch.float64", body=FINE + SELECTIONS[name])
    candidate = as_candidate(model, "y = self.up(x)", SPLIT)
    report = judge(write("model.py", model), write("candidate.py", candidate), workshop=workshop)
    assert report.equal, report.reasons


@pytest.mark.rotates(16)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_further_off_than_rounding_is_not_equal(
    workshop: Workshop, write: Write, name: str, dtype: str
) -> None:
    right, wrong = WRONG[name]
    model = HEAD.format(dtype=f"torch.{dtype}", body=f"return {right}")
    candidate = as_candidate(model, f"return {right}", f"return {wrong}")
    report = judge(write("model.py", model), write("candidate.py", candidate), workshop=workshop)
    assert not report.equal


def test_where_the_number_of_results_hangs_on_rounding_nothing_is_compared(workshop: Workshop, write: Write) -> None:
    finer = FINE.replace("2**43", "2**48")
    # A sum of places, which one that goes over changes; of two that change sides their number would tell nothing.
    places = "(fine > 0.5).flatten().nonzero().sum()"
    model = HEAD.format(dtype="torch.float64", body=f"{finer}return y.new_ones(1 + int({places}) % 997)")
    candidate = as_candidate(model, "y = self.up(x)", SPLIT)
    with pytest.raises(CannotJudge, match="rounding decides it: Model's own result changes"):
        judge(write("model.py", model), write("candidate.py", candidate), workshop=workshop)


def test_another_number_of_results_in_float64_judges_nobody(workshop: Workshop, write: Write) -> None:
    """Of so many numbers one lies on the other side there, as good as always."""
    model = HEAD.format(dtype="torch.float32", body="return y[y > 0.5]").replace("randn(2, 8", "randn(40, 8")
    candidate = as_candidate(model, "y = self.up(x)", "y = self.up(x)")
    report = judge(write("model.py", model), write("candidate.py", candidate), workshop=workshop)
    assert report.equal, report.reasons
