"""Tiles of `direct` run other channels, groups, padding and bias than they were recorded for, where the kernel may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from codegen_helpers import EXAMPLES, Namespace, executed, function_of, generated_text, planned_layers

from tconv.codegen.generate import PlannedLayer
from tconv.evaluation.equality import check_layer
from tconv.planner import DIRECT, Kernel, Unplannable
from tconv.planner.choice import replan
from tconv.planner.gpu import Gpu
from tconv.problem import Layer, Problem
from tconv.sandbox.emulated import install

MODEL = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose{dims}d({arguments})
            self.to(torch.{dtype})

        def forward(self, x):
            return self.up(x)

    def get_inputs():
        return [torch.rand({shape}, dtype=torch.{dtype})]
"""
#: Tiles of each kind: phases stacked or one at a time, or across lanes; weights that stay or come in stages; chains.
LAYERS = {
    "stacked": (2, "4, 6, (3, 4), stride=(2, 3), padding=(1, 2), groups=2", "float32", "2, 4, 128, 96"),
    "narrow": (2, "3, 5, 3, stride=2, padding=1, bias=False", "float16", "64, 3, 7, 5"),
    "tiled": (2, "6, 6, 4, stride=2, padding=1, groups=6", "float32", "8, 6, 200, 300"),
    "lanes": (1, "40, 6, 512, stride=256, padding=100", "float32", "2, 40, 300"),
    "long": (1, "128, 1, 16, stride=8, padding=4", "float64", "1, 128, 2000"),
    "cube": (3, "5, 3, (2, 3, 2), stride=2", "bfloat16", "2, 5, 20, 20, 20"),
    "dilated": (2, "6, 4, 3, stride=3, padding=2, dilation=2", "float32", "2, 6, 60, 80"),
}


@pytest.fixture(scope="module", params=[*LAYERS, "strided_dilated"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param not in LAYERS:
        return EXAMPLES / f"{request.param}.py"
    dims, arguments, dtype, shape = LAYERS[request.param]
    path = tmp_path_factory.mktemp("others") / "model.py"
    text = MODEL.format(dims=dims, arguments=arguments, dtype=dtype, shape=shape)
    path.write_text("\n".join(line[4:] for line in text.splitlines()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def planned(path: Path) -> PlannedLayer:
    (layer,) = planned_layers(path, families=["direct"])
    return layer


@pytest.fixture(scope="module")
def file(path: Path) -> Namespace:
    return executed(generated_text(path, families=["direct"]))


def others(layer: Layer, seed: int) -> Iterator[Layer]:
    """Layers of the same filter: each difference alone, then all of them, with more and with fewer channels."""
    draw = random.Random(seed)
    channels = [(1, 1), (layer.in_channels + layer.groups, layer.out_channels + layer.groups), (37, 3), (64, 70)]
    for in_channels, out_channels in channels:
        yield replace(layer, in_channels=in_channels * layer.groups, out_channels=out_channels * layer.groups)
    yield replace(layer, bias=not layer.bias)
    for more in (-layer.padding[2], 1, 5):
        padding = [max(0, axis.padding + more) if axis.kernel > 1 else 0 for axis in layer.axes]
        yield replace(layer, padding=tuple(padding))
    for groups in (1, 3):
        in_channels, out_channels = groups * draw.randint(1, 40), groups * draw.randint(1, 20)
        padding = [draw.randint(0, 2 * axis.stride) if axis.kernel > 1 else 0 for axis in layer.axes]
        changes = {"groups": groups, "in_channels": in_channels, "out_channels": out_channels}
        yield replace(layer, **changes, padding=tuple(padding), bias=draw.random() < 0.5)


def recorded(layer: Layer) -> tuple[Any, ...]:
    axes = (layer.kernel, layer.stride, layer.padding, layer.dilation)
    channels = (layer.spatial_dims, layer.in_channels, layer.out_channels)
    return (*channels, *axes, layer.groups, layer.bias, layer.precision)


@pytest.mark.slow
def test_it_takes_the_tile_exactly_where_the_kernel_may(file: Namespace, planned: PlannedLayer) -> None:
    kernel, gpu = planned.plan.kernel, Gpu.h200()
    taken = set()
    for layer in others(planned.plan.problem.layer, 0):
        best = next(file["_kernels"](file["_Layer"](*recorded(layer)), file["_PLANNED"]))
        problem = Problem(layer, 2, tuple(100 if axis.kernel > 1 else 1 for axis in layer.axes))
        may = layer == planned.plan.problem.layer or runs(Kernel("direct", layer, kernel.tile), problem, gpu)
        assert best.family == ("direct" if may else "plain"), layer
        taken.add(best.family)
    assert "direct" in taken


def runs(kernel: Kernel[Any], problem: Problem, gpu: Gpu) -> bool:
    """Whether the library would take that tile for the layer: what it asserts is what the header asserts."""
    tile, layer = kernel.tile, kernel.layer
    if not (layer.padding[1] >= tile.row_origin and layer.padding[2] >= tile.origin):
        return False
    shape_rows = layer.kernel[1] if tile.stacked else 1
    if tile.chunk_rows != shape_rows and layer.in_channels_per_group > tile.chunk_channels:
        return False
    try:
        return DIRECT.runs(kernel, problem) and replan(problem, kernel, gpu) is not None
    except Unplannable:
        return False


@pytest.mark.rotates(16)
@pytest.mark.parametrize("number", range(10))
def test_it_is_right(number: int, file: Namespace, planned: PlannedLayer, shard: int) -> None:
    layer = list(others(planned.plan.problem.layer, shard))[number]
    sizes = [1 if axis.kernel == axis.stride == 1 else small for axis, small in zip(layer.axes, (3, 4, 9), strict=True)]
    shrinks = [2 * axis.padding // axis.stride + 1 if axis.kernel > 1 else 0 for axis in layer.axes]
    problem = Problem(layer, 2, tuple(size + more for size, more in zip(sizes, shrinks, strict=True)))
    install(file)
    used = slice(3 - layer.spatial_dims, None)

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        options = (layer.stride[used], layer.padding[used], 0, layer.groups, layer.dilation[used])
        y: torch.Tensor = function_of(file, layer.spatial_dims)(x, weight, bias, *options)
        return y

    wanted = "tf32" if layer.precision in ("tf32", "tf32_rna") else "fp32"
    verdict = check_layer(call, problem, wanted, draw_count=1, awkward=number % 5 == 0)
    assert verdict.equal, (layer, verdict.reasons)
