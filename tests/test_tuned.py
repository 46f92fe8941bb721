"""Measured answers: through JSON and back, and before what is predicted."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tconv.planner import FAMILIES, Gpu, Plan, Unplannable, choice, choose
from tconv.planner.tuned import Question, Tuned, from_dict, to_dict
from tconv.problem import Layer, Problem

H200 = Gpu.h200()
DENSE = Problem(Layer(2, 128, 64, (1, 4, 4), (1, 2, 2), (0, 1, 1)), 4, (1, 32, 32))
QUESTION = Question(DENSE, "tf32")
leading = functools.cache(choice.leading)


def asked(question: Question, **options: Any) -> Any:
    return choose(question, H200, **options)


def answer(place: int, question: Question = QUESTION) -> Tuned:
    """As if the candidate at that place had been the fastest."""
    kernel, _ = leading(question, H200, 12)[place]
    return Tuned(kernel.family, kernel.tile, 0.25, 0.5, 12)


@pytest.mark.parametrize("question", [QUESTION, Question(DENSE), Question(DENSE, "tf32", True)])
def test_the_leading_kernels_begin_with_the_planners_own_and_know_every_family(question: Question) -> None:
    own = asked(question).kernel
    kernels = [kernel for kernel, _ in leading(question, H200, 12)]
    assert (kernels[0].family, kernels[0].tile, kernels[0].layer) == (own.family, own.tile, own.layer)
    assert len(kernels) == len(set(kernels)) == 12
    runs = [name for name, family in FAMILIES.items() if not family.why_not(question.problem_of(name), H200)]
    assert len(runs) >= 2 and all(
        sum(kernel.family == name for kernel in kernels) >= min(3, 12 // len(runs)) for name in runs
    )
    assert {kernel.layer.precision for kernel in kernels if kernel.family == "direct"} == {"fp32"}
    predicted = [seconds for _, seconds in leading(question, H200, 12)]
    assert predicted == sorted(predicted)


def test_few_leading_kernels_are_one_of_each_family() -> None:
    assert {kernel.family for kernel, _ in leading(QUESTION, H200, 1)} == set(FAMILIES) - {"col2im_rows"}
    of_double = Question(replace(DENSE, layer=replace(DENSE.layer, precision="fp64")))
    assert {kernel.family for kernel, _ in leading(of_double, H200, 3)} == {"direct", "mma"}


@pytest.mark.parametrize("lacking", [True, False])
def test_a_format_that_has_no_kernel_leaves_the_other(lacking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question(DENSE, "tf32").in_channels_last()
    mma = FAMILIES["mma"]
    plan = mma.plan

    def without(problem: Problem, gpu: Gpu, channels_last: bool = False) -> Plan:
        if channels_last == lacking:
            raise Unplannable("no tile")
        return plan(problem, gpu, channels_last)

    monkeypatch.setattr(mma, "plan", without)
    found = choose(question, H200, ("mma",))
    assert choice.reads_channels_last(found) != lacking and found.kernel.layer.weights_last
    assert found == plan(question.problem_of("mma"), H200, not lacking)


def test_copies_around_a_contiguous_kernel_are_counted() -> None:
    """What has no kernel for channels_last is beside what has; both are led by their expected times."""
    question = Question(DENSE, "tf32").in_channels_last()
    expected = dict(choice.leading(question, H200, 40))
    around = [
        seconds for kernel, seconds in expected.items() if not FAMILIES[kernel.family].reads_channels_last(kernel)
    ]
    assert around and min(around) > 3 * DENSE.bytes_moved / 4.25e12
    assert list(expected.values()) == sorted(expected.values())


@pytest.mark.parametrize("place", [0, 4, 11])
def test_a_measured_tile_is_taken(place: int) -> None:
    measured = answer(place)
    plan = asked(QUESTION, tuned={QUESTION: measured})
    assert (plan.kernel.family, plan.kernel.tile) == (measured.family, measured.tile)
    assert plan.kernel.layer.precision == ("fp32" if measured.family == "direct" else "tf32")
    assert plan.problem.layer == plan.kernel.layer and plan.grid > 0
    assert plan.reasons == ("measured fastest of 12 tiles by tconv tune: 0.25 ms; PyTorch's operator took 0.5 ms",)


@pytest.mark.parametrize(
    "other",
    [
        Question(DENSE),
        Question(DENSE, "tf32", True),
        Question(replace(DENSE, batch=5), "tf32"),
        Question(replace(DENSE, input_size=(1, 32, 33)), "tf32"),
        Question(replace(DENSE, output_padding=(0, 0, 1)), "tf32"),
        Question(replace(DENSE, layer=replace(DENSE.layer, bias=True)), "tf32"),
    ],
)
def test_an_answer_is_for_its_question_alone(other: Question) -> None:
    plan = asked(other, tuned={QUESTION: answer(11)})
    assert plan.reasons == asked(other).reasons and "measured" not in plan.reasons[0]


def test_a_family_that_is_insisted_on_is_taken_all_the_same() -> None:
    places = {kernel.family: place for place, (kernel, _) in enumerate(leading(QUESTION, H200, 12))}
    tuned = {QUESTION: answer(places["mma"])}
    assert asked(QUESTION, tuned=tuned, families=["direct"]) == asked(QUESTION, families=["direct"])
    assert asked(QUESTION, tuned=tuned, families=["mma"]).kernel.tile == tuned[QUESTION].tile


@pytest.mark.parametrize("field", ["channels", "position_tiles"])
def test_a_tile_that_the_planner_does_not_consider_is_not_taken(field: str) -> None:
    measured = answer(0)
    edited = replace(measured, tile=replace(measured.tile, **{field: 7}))
    assert asked(QUESTION, tuned={QUESTION: edited}) == asked(QUESTION)
    assert "measured" not in asked(QUESTION, tuned={QUESTION: edited}).reasons[0]


def test_a_tile_for_more_shared_memory_than_there_is_is_not_taken() -> None:
    small = replace(H200, name="small", shared_bytes_per_block=32 * 1024)
    plan = choose(QUESTION, small, tuned={QUESTION: answer(0)})
    assert plan.shared_bytes <= small.shared_bytes_per_block and "measured" not in plan.reasons[0]


@pytest.mark.parametrize("question", [QUESTION, Question(DENSE), Question(DENSE, None, True)])
def test_through_json_and_back(question: Question) -> None:
    for place in (0, 11):
        entry = (question, answer(place, question))
        assert from_dict(json.loads(json.dumps(to_dict(*entry)))) == entry


def test_pytorch_is_preferred_where_it_was_faster() -> None:
    slow = replace(answer(0), milliseconds=0.5314, pytorch_milliseconds=0.2711)
    assert slow.prefers_pytorch and not answer(0).prefers_pytorch
    assert slow.why_pytorch() == (
        "PyTorch's operator was measured faster on this GPU: 0.271 ms against 0.531 ms (tconv tune)"
    )


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        for name in path[:-1]:
            entry = entry[name]
        entry[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.pop("question"),
        lambda entry: entry["answer"]["tile"].pop("channels"),
        lambda entry: entry["answer"].pop("tried"),
        _set("answer", "tile", "more", to=1),
        _set("answer", "tile", "channels", to=2.0),
        _set("answer", "tile", "channels", to=[2]),
        _set("answer", "tile", to="large"),
        _set("answer", "family", to="strips"),
        _set("answer", "tried", to="12"),
        _set("answer", "milliseconds", to=-1.0),
        _set("answer", "milliseconds", to=float("nan")),
        _set("answer", "pytorch_milliseconds", to="1"),
        _set("answer", "pytorch_milliseconds", to=float("inf")),
        _set("question", "problem", "batch", to=-1),
        _set("question", "problem", "layer", "kernel", to=["a", "b", "c"]),
        _set("question", "problem", "layer", "precision", to="int8"),
        _set("question", "tensor_core_precision", to="int8"),
        _set("question", "channels_last", to=[]),
        _set("question", "more", to=1),
    ],
)
def test_what_is_no_entry_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    entry = json.loads(json.dumps(to_dict(QUESTION, answer(0))))
    change(entry)
    with pytest.raises(ValueError) as refused:
        from_dict(entry)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("entry", [None, 3, [], "text", {"question": None, "answer": {}}])
def test_what_is_nothing_like_an_entry_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError):
        from_dict(entry)
