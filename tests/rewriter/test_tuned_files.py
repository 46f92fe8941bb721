"""Written files take the tiles that were measured for their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import by_kind, executed

from tconv.codegen.planned import PlannedLayer
from tconv.planner import Gpu
from tconv.planner.choice import leading
from tconv.planner.tuned import Answers, Question, Tuned
from tconv.rewriter import run
from tconv.rewriter.pipeline import build
from tconv.rewriter.planning import Basis, plan_layers
from tconv.sandbox.emulated import install
from tconv.sandbox.model_file import load
from tconv.sandbox.trace import trace

pytestmark = pytest.mark.rotates(4)  # each takes seconds

H200 = Gpu.h200()
MODEL = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)

        def forward(self, x, y):
            return self.up(x), self.up(y)

    def get_inputs():
        return [torch.rand(2, 16, 9, 9), torch.rand(1, 16, 5, 5)]
"""


def planned(path: Path, tuned: Answers = {}) -> tuple[PlannedLayer, ...]:  # noqa: B006
    return plan_layers(trace(load(path)), path, Basis(H200, tuned=tuned), "match", by_kind)


def answer(layer: PlannedLayer, place: int, ours: float = 0.25) -> dict[Question, Tuned]:
    question = Question(layer.plan.problem)
    kernel, _ = leading(question, H200, 12)[place]
    assert kernel.tile != layer.plan.kernel.tile
    return {question: Tuned(kernel.family, kernel.tile, ours, 0.5, 12)}


@pytest.mark.parametrize("place", [3, 11])
def test_a_file_takes_the_measured_tile_and_is_right(place: int, model_file: Callable[[str], Path]) -> None:
    path = model_file(MODEL)
    before = planned(path)
    measured = answer(before[0], place)
    (tile,) = (found.tile for found in measured.values())
    large, small = planned(path, measured)
    assert large.plan.kernel.tile == tile and large.plan.reasons[0].startswith("measured fastest of 12 tiles")
    text = build(path, (large, small))
    assert text != build(path, before)
    namespace = executed(text)
    install(namespace)
    inputs = load(path).make_inputs(0)
    torch.manual_seed(0)
    ours = namespace["ModelNew"]()
    theirs = torch.nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
    theirs.load_state_dict(ours.up.state_dict())
    for got, x in zip(ours(*inputs), inputs, strict=True):
        torch.testing.assert_close(got, theirs(x), rtol=1e-2, atol=1e-2)


def test_a_layer_whose_kernel_is_of_other_sizes_says_so(model_file: Callable[[str], Path]) -> None:
    path = model_file(MODEL)
    before = planned(path)
    measured = answer(before[0], 11)
    large, small = planned(path, measured | answer(before[1], 3))
    assert large.plan.kernel.tile == small.plan.kernel.tile == measured[Question(large.plan.problem)].tile
    reason = "computed by the kernel of the sizes where this layer has the most work: a file has one kernel for a layer"
    assert small.plan.reasons[-1] == reason and reason not in large.plan.reasons


def test_what_was_measured_with_the_program_comes_before_the_layer_alone(model_file: Callable[[str], Path]) -> None:
    path = model_file(MODEL)
    traced, programs = trace(load(path)), {"relu(y)": "max(y, 0)"}
    traced = replace(traced, layers=tuple(replace(layer, epilogues=("relu(y)",)) for layer in traced.layers))
    (alone, first), (_, second) = (next(iter(answer(planned(path)[0], place).items())) for place in (3, 11))
    with_program = replace(
        alone, problem=replace(alone.problem, layer=replace(alone.problem.layer, epilogue="max(y, 0)"))
    )
    for tuned, expected in (({alone: first, with_program: second}, second), ({alone: first}, first)):
        layers = plan_layers(traced, path, Basis(H200, tuned=tuned, programs=programs), "match", by_kind)
        assert layers[0].plan.kernel.tile == expected.tile and layers[0].kernel_epilogues[0].program == "max(y, 0)"
        assert layers[0].plan.problem == alone.problem


def test_a_slower_kernel_than_pytorchs_is_still_written(model_file: Callable[[str], Path]) -> None:
    """What a file leaves to PyTorch is measured when it is written: --only-faster."""
    path = model_file(MODEL)
    large, _ = planned(path, answer(planned(path)[0], 11, ours=5.0))
    assert not large.left and "PyTorch's operator took 0.5 ms" in large.plan.reasons[0]


def test_optimize_asks_for_what_was_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"an answer": 1}
    monkeypatch.setattr(run, "answers", lambda name: table if name == H200.name else {})
    job: Any = SimpleNamespace(on_gpu=True)
    assert run._Job._tuned(job, H200) is table
    assert run._Job._tuned(SimpleNamespace(on_gpu=False), H200) == {}  # type: ignore[arg-type]
