"""Every line of a written file's kernels is executed by its layers, at one size or another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from codegen_helpers import EXAMPLES, Namespace, executed, function_of, generated_text, planned_layers, silent
from coverage import Coverage

from tconv.emulator import execution
from tconv.kernels.source import SECTION
from tconv.planner import Gpu
from tconv.planner.choice import replan
from tconv.problem import Problem
from tconv.rewriter.shrink import shrink
from tconv.sandbox.emulated import install

NAMES = [path.stem for path in sorted(EXAMPLES.glob("*.py"))]
#: Multiply-adds of one run: the programs count every line, which takes time.
BUDGET = 2_000_000
#: Lines that may never be executed, by how they begin, and why they are there.
NEVER = {
    "store_rows<": "widths of outputs that follow from no width that the recorded kernel runs",
    "} else if (columns % half == 0) {": "the same",
    "store_item<width>(further, ": "rows of more pieces than lanes store",
    "stored[i] = staged_outputs<width>(": "gcov counts the lines that it goes on in",
    "ask(0, 1, ahead * ": "a loop over stages beyond the second, where there are two",
    "end_asking(ahead * ": "the same",
}


def sizes(problem: Problem, own: bool) -> Iterator[Problem]:
    """The problem at other widths, with and without output padding: rows that are stored in other ways."""
    small = shrink(problem, BUDGET)
    for more in (0, 1, 2, 12) if own else (0, 1):
        for extra in (0, 1) if own else (0,):
            padding = [min(extra, max(axis.stride, axis.dilation) - 1) for axis in small.layer.axes]
            if extra == 0 or any(padding):
                wider = (*small.input_size[:2], small.input_size[2] + more)
                yield replace(small, batch=1 + more % 2, input_size=wider, output_padding=tuple(padding))


def run(file: Namespace, problem: Problem) -> None:
    layer, used = problem.layer, slice(3 - problem.layer.spatial_dims, None)
    shapes = (problem.input_shape, layer.weight_shape, (layer.out_channels,) if layer.bias else None)
    tensors = [None if shape is None else torch.randn(shape).to(getattr(torch, layer.dtype)) for shape in shapes]
    options = (
        layer.stride[used],
        layer.padding[used],
        problem.output_padding[used],
        layer.groups,
        layer.dilation[used],
    )
    function_of(file, layer.spatial_dims)(*tensors, *options)


@pytest.mark.rotates(48)
@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_dead(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = executed(generated_text(EXAMPLES / f"{name}.py"))
    coverage = Coverage(tmp_path, parts_of(file))
    monkeypatch.setattr(execution, "build", coverage.build)
    install(file)
    recorded = dict(file["_RECORDED"])
    for layer in planned_layers(EXAMPLES / f"{name}.py"):
        for number, plan in enumerate(layer.variants.values()):
            file["_RECORDED"] = {key: kernels[number:] for key, kernels in recorded.items()}
            file["_launch_for"].cache_clear()
            for problem in sizes(plan.problem, own=number == 0):
                if number or replan(problem, plan.kernel, Gpu.h200()):
                    with silent():
                        run(file, problem)
    counts = coverage.counts()
    assert len(counts) > 100
    dead = [f"{part}: {coverage.text((part, n))}" for (part, n), count in sorted(counts.items()) if count == 0]
    assert not [line for line in dead if not line.partition(": ")[2].strip().startswith(tuple(NEVER))]


def parts_of(file: Namespace) -> dict[str, str]:
    """The templates of each family: what stands above the sections of its kernels, and the section of a single one."""
    found = {}
    for family, text in file["_CUDA"].items():
        templates, *sections = text.split(f"\n{SECTION}")
        found[family] = f"\n{SECTION}".join([templates, *(sections[:1] if len(sections) == 2 else [])])
    return found


def test_a_dead_line_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = executed(generated_text(EXAMPLES / "strided_dilated.py"))
    (family,) = file["_CUDA"]
    start, opened, end = file["_CUDA"][family].partition("  TCONV_SHARED(shared);\n")
    assert opened
    file["_CUDA"][family] = f"{start}{opened}  if (batch > 1000) {{\n    y[0] = 0;\n  }}\n{end}"
    coverage = Coverage(tmp_path, parts_of(file))
    monkeypatch.setattr(execution, "build", coverage.build)
    install(file)
    (layer,) = planned_layers(EXAMPLES / "strided_dilated.py")
    run(file, next(sizes(layer.plan.problem, own=True)))
    dead = [coverage.text(line).strip() for line, count in coverage.counts().items() if count == 0]
    assert "y[0] = 0;" in dead
