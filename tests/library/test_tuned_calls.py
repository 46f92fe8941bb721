"""What the library does with what `tconv tune` measured: it takes the tile or hands the layer over, and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tconv
from tconv import dispatch, routes
from tconv.dispatch import decide
from tconv.planner import Gpu, Plan
from tconv.planner.choice import leading
from tconv.planner.tuned import Question, Tuned
from tconv.precision import allows_tf32

H200 = Gpu.h200()
X, WEIGHT = torch.randn(2, 64, 16, 16), torch.randn(64, 32, 4, 4)
OPTIONS: dict[str, Any] = {"stride": 2, "padding": 1}
POSITIONAL = (2, 1, 0, 1, 1)
HANDED = "PyTorch's operator was measured faster on this GPU: 0.271 ms against 0.531 ms (tconv tune)"


def question(x: torch.Tensor = X) -> Question:
    problem = decide(x, WEIGHT.to(x.dtype), gpu=H200, **OPTIONS).problem
    assert problem is not None
    return Question(problem, "tf32" if x.dtype == torch.float32 else None)


def answer(asked: Question, ours: float, pytorch: float) -> Tuned:
    """The tile is the last of the leading ones: one that is not taken without a measurement."""
    kernel, _ = leading(asked, H200, 6)[-1]
    return Tuned(kernel.family, kernel.tile, ours, pytorch, 6)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[Question, Tuned]], None]:
    """Gives the library these answers for every GPU."""
    assert allows_tf32(), "as PyTorch starts"
    return lambda answers: monkeypatch.setattr(dispatch, "_answers", lambda gpu: answers)


def test_the_measured_tile_is_taken(measured: Callable[..., None]) -> None:
    predicted = tconv.explain(X, WEIGHT, gpu=H200, **OPTIONS)
    fast = answer(question(), 0.2, 0.3)
    measured({question(): fast})
    explained = tconv.explain(X, WEIGHT, gpu=H200, **OPTIONS)
    assert explained.plan is not None and predicted.plan is not None
    assert explained.plan.kernel.tile == fast.tile != predicted.plan.kernel.tile
    reason = "measured fastest of 6 tiles by tconv tune: 0.2 ms; PyTorch's operator took 0.3 ms"
    assert f"because  {reason}" in str(explained)


def test_a_layer_is_handed_to_pytorch_where_that_was_faster(measured: Callable[..., None]) -> None:
    measured({question(): answer(question(), 0.531, 0.271)})
    explained = tconv.explain(X, WEIGHT, gpu=H200, **OPTIONS)
    assert (explained.runs, explained.plan, explained.reason) == ("pytorch", None, HANDED)
    assert str(explained).startswith(f"PyTorch's own operator runs: {HANDED}\n  problem  2-D 64→32 k4 s2 p1 fp32")


def test_who_insists_gets_the_kernel(measured: Callable[..., None]) -> None:
    slow = answer(question(), 0.531, 0.271)
    measured({question(): slow})
    for family in ("direct", "mma"):
        explained = tconv.explain(X, WEIGHT, gpu=H200, family=family, **OPTIONS)
        assert explained.plan is not None and explained.plan.kernel.family == family
        assert (explained.plan.kernel.tile == slow.tile) == (family == slow.family)


@pytest.mark.parametrize(
    "other",
    [
        X[:1],
        X[..., 1:].contiguous(),
        X.half(),
        X.to(memory_format=torch.channels_last),
    ],
    ids=["batch", "size", "dtype", "memory format"],
)
def test_other_calls_run_as_before(other: torch.Tensor, measured: Callable[..., None]) -> None:
    weight = WEIGHT.to(other.dtype)
    before = decide(other, weight, gpu=H200, **OPTIONS)
    measured({question(): answer(question(), 0.531, 0.271)})
    after = decide(other, weight, gpu=H200, **OPTIONS)
    assert after == before and after.plan is not None
    assert before.plan is not None and after.plan.reasons == before.plan.reasons


def test_channels_last_is_a_question_of_its_own(measured: Callable[..., None]) -> None:
    asked = replace(question(), channels_last=True)
    measured({asked: answer(asked, 0.531, 0.271)})
    x = X.to(memory_format=torch.channels_last)
    assert decide(x, WEIGHT, gpu=H200, **OPTIONS).reason == HANDED
    assert decide(X, WEIGHT, gpu=H200, **OPTIONS).plan is not None


def test_an_answer_follows_the_flags_under_which_it_was_measured(measured: Callable[..., None]) -> None:
    from tconv.evaluation.precision import arithmetic

    measured({question(): answer(question(), 0.531, 0.271)})
    assert decide(X, WEIGHT, gpu=H200, **OPTIONS).plan is None
    with arithmetic("fp32"):
        assert decide(X, WEIGHT, gpu=H200, **OPTIONS).plan is not None


def test_a_call_finds_its_way(measured: Callable[..., None], as_gpu: list[Plan]) -> None:
    expected = torch.conv_transpose2d(X, WEIGHT, None, *POSITIONAL)
    fast = answer(question(), 0.2, 0.3)
    measured({question(): fast})
    route = routes.find_route(2, X, WEIGHT, None, POSITIONAL)
    assert route is not None
    torch.testing.assert_close(routes.run(route, X, WEIGHT, None), expected)
    assert as_gpu[-1].kernel.tile == fast.tile
    routes._routes.clear()
    measured({question(): answer(question(), 0.531, 0.271)})
    assert routes.find_route(2, X, WEIGHT, None, POSITIONAL) is None


def test_the_table_is_asked_for_new_calls_alone(monkeypatch: pytest.MonkeyPatch, as_gpu: list[Plan]) -> None:
    asked: list[str] = []
    monkeypatch.setattr(dispatch, "_answers", lambda gpu: asked.append(gpu.name) or {})
    for _ in range(3):
        routes.find_route(2, X, WEIGHT, None, POSITIONAL)
    assert asked == [H200.name]
