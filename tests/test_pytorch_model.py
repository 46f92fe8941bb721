"""What is predicted of PyTorch's operator, against what was measured of it; and which layers are left to it."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from dense import described, rows  # noqa: E402
from layers import laid_out, problem_of, strided  # noqa: E402
from results import cases, load, speedup  # noqa: E402

import tconv  # noqa: E402
from tconv.evaluation.reference import Operands  # noqa: E402
from tconv.planner import Gpu, choose  # noqa: E402
from tconv.planner.choice import why_pytorch  # noqa: E402
from tconv.planner.pytorch_model import is_well_known, predict_pytorch  # noqa: E402
from tconv.planner.tuned import Question  # noqa: E402
from tconv.precision import of_kind, question_of  # noqa: E402
from tconv.problem import Layer, Problem  # noqa: E402
from tconv.settings import settings  # noqa: E402

H200 = Gpu.h200()
#: A GPU that nobody measured.
OTHER = Gpu("NVIDIA A100", "sm_80", 108, 163 * 1024)
#: Thousands of channels in small maps: PyTorch is predicted to be faster on these tensors, or on channels_last ones.
WIDE = strided(3, 1024, (4096, 2048), 7, padding=1) | {"dtype": "float16"}
WIDE_IN_CHANNELS_LAST = strided(4, 16, (2048, 2048), 7, padding=1)
STRIDED = cases()["kernelbench-L1-75"]


def measured() -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Layer, memory format and result of every line of the results of layers and dense."""
    known, dense_rows = cases(), {described(row): row for row in rows()}
    for name, result in (load("layers") or {"layers": {}})["layers"].items():
        yield known[name], "contiguous", result
    for name, result in (load("layers-channels_last") or {"layers": {}})["layers"].items():
        yield known[name], "channels_last", result
    for name, result in (load("layers-bfloat16") or {"layers": {}})["layers"].items():
        yield known[name] | {"dtype": "bfloat16"}, "contiguous", result
    for result in (load("dense") or {"layers": {}})["layers"].values():
        if "TF32" not in result["type"]:
            yield dense_rows[result["layer"]] | {"dtype": result["type"]}, result["format"], result


def as_pytorch(case: dict[str, Any]) -> Problem:
    problem = problem_of(case)
    rounds = problem.layer.precision == "fp32"
    return replace(problem, layer=replace(problem.layer, precision=of_kind(problem))) if rounds else problem


def test_predictions_are_near_what_was_measured() -> None:
    errors = []
    for case, memory_format, result in measured():
        problem = as_pytorch(case)
        if is_well_known(problem.layer) and "pytorch_ms" in result:
            seconds = predict_pytorch(problem, H200, memory_format == "channels_last")
            errors.append(abs(math.log(seconds * 1e3 / result["pytorch_ms"]["default"])))
    assert len(errors) > 80
    # What the module's docstring says.
    assert statistics.median(errors) < math.log(1.1)
    assert statistics.quantiles(errors, n=10)[-1] < math.log(4 / 3)


def test_predictions_are_near_what_was_measured_on_an_h100() -> None:
    results = (load("layers-h100") or {"layers": {}})["layers"]
    errors = []
    for name, result in results.items():
        problem = as_pytorch(cases()[name])
        if is_well_known(problem.layer):
            errors.append(
                abs(math.log(predict_pytorch(problem, Gpu.h100(), False) * 1e3 / result["pytorch_ms"]["default"]))
            )
    assert len(errors) > 60
    # What the module's docstring says.
    assert statistics.median(errors) < math.log(1.15)
    assert statistics.quantiles(errors, n=10)[-1] < math.log(1.4)


def test_each_side_took_what_the_other_was_not_clearly_faster_at() -> None:
    here, there = [], []
    for case, _, result in measured():
        if "tconv_ms" not in result or "pytorch_ms" not in result:
            continue
        if result.get("left_to_pytorch"):
            there.append(speedup(result))
        elif is_well_known(problem_of(case).layer):
            here.append(speedup(result))
    assert len(here) > 80
    assert min(here) > 1 / 1.3
    assert all(ratio < 1.1 for ratio in there)


@pytest.mark.parametrize("change", [{"groups": 2}, {"precision": "fp64"}])
def test_layers_that_were_measured_seldom_are_kept(change: dict[str, Any]) -> None:
    layer = Layer(2, 1280, 1280, (1, 4, 4), (1, 2, 2), (0, 1, 1), precision="tf32")
    problem = Problem(layer, 16, (1, 16, 16))
    question = Question(problem)
    plan = choose(Question(problem), H200)
    slow = replace(plan, predicted_seconds=1.0)
    assert why_pytorch(question, slow, H200) is not None
    unknown = replace(problem, layer=replace(layer, **change))
    assert why_pytorch(Question(unknown), slow, H200) is None
    assert why_pytorch(Question(unknown), slow, OTHER) is not None, "there tconv has to be faster"


def explained(case: dict[str, Any], gpu: Gpu, memory_format: str = "contiguous", **options: Any) -> tconv.Explanation:
    problem = problem_of(case)
    dtype = getattr(torch, case["dtype"])
    shapes = (problem.input_shape, problem.layer.weight_shape)
    tensors = (torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    x, weight, _ = laid_out(Operands(*tensors, None), memory_format)
    names = ("stride", "padding", "output_padding", "groups", "dilation")
    return tconv.explain(x, weight, **{name: case[name] for name in names}, gpu=gpu, **options)


def test_a_layer_that_pytorch_runs_faster_is_left_to_it() -> None:
    left = explained(WIDE, H200)
    assert left.runs == "pytorch" and left.plan is None
    assert left.reason.startswith("PyTorch's operator is predicted to be faster: ")
    assert "tconv tune measures both, TCONV_INSIST=1 takes tconv's" in left.reason
    assert explained(STRIDED, H200).runs == "tconv"


def test_memory_formats_are_decided_apart() -> None:
    assert explained(WIDE_IN_CHANNELS_LAST, H200).runs == "tconv"
    assert explained(WIDE_IN_CHANNELS_LAST, H200, "channels_last").runs == "pytorch"


def test_where_nobody_measured_tconv_must_be_clearly_faster() -> None:
    near = cases()["kernelbench-L1-65"]
    assert explained(near, H200).runs == "tconv"
    left = explained(near, OTHER)
    assert left.runs == "pytorch"
    assert left.reason.startswith("nobody measured NVIDIA A100, and PyTorch's operator is not predicted to be 1.3")
    assert explained(STRIDED, OTHER).runs == "tconv"


def test_whoever_insists_gets_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explained(WIDE, H200, family="mma").runs == "tconv"
    monkeypatch.setenv("TCONV_INSIST", "1")
    settings.cache_clear()
    try:
        assert explained(WIDE, H200).runs == "tconv"
        assert explained(WIDE, OTHER).runs == "tconv"
    finally:
        monkeypatch.delenv("TCONV_INSIST")
        settings.cache_clear()


def test_gpus_without_tf32_are_not_taken_to_round() -> None:
    case = cases()["kernelbench-L1-65"]
    turing = Gpu("Tesla T4", "sm_75", 40, 64 * 1024)
    assert question_of(problem_of(case), OTHER, allowed=True).tensor_core_precision == "tf32"
    assert question_of(problem_of(case), turing, allowed=True).tensor_core_precision is None
    half, brain = (replace(problem_of(case).layer, precision=precision) for precision in ("fp16", "bf16"))
    seconds = [predict_pytorch(replace(problem_of(case), layer=layer), turing, False) for layer in (half, brain)]
    assert seconds[1] > 3 * seconds[0], "bfloat16 has no tensor cores there"


def test_a_measured_plan_is_compared_no_more() -> None:
    question = question_of(problem_of(WIDE), H200, allowed=True)
    plan = choose(Question(question.problem), H200)
    assert why_pytorch(question, plan, H200) is not None
    measured_plan = replace(plan, predicted_seconds=None)
    assert why_pytorch(question, measured_plan, H200) is None


def test_huge_problems_are_compared_at_one_size() -> None:
    # Our models look at a smaller problem of the kind; PyTorch's prediction must be of the same.
    layer = Layer(2, 64, 64, (1, 3, 3), (1, 2, 2), (0, 1, 1), precision="tf32")
    large, huge = (Problem(layer, 1, (1, size, size)) for size in (1024, 8192))
    decided = [why_pytorch(Question(problem), choose(Question(problem), H200), H200) for problem in (large, huge)]
    assert decided[0] == decided[1]
