"""Files whose kernel for Hopper has its inputs prepared: a kernel more in front of it, and memory for what it gives.

Of `wgmma`, whose weights are prepared, too, and of `col2im_wgmma`, whose inputs alone are.
"""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from codegen_helpers import Namespace, executed, function_of, kernels_of, launched, silent

from tconv.evaluation.equality import check_layer
from tconv.evaluation.reference import conv_transpose
from tconv.jit.loader import compile_kept
from tconv.planner import COL2IM_WGMMA, WGMMA, Gpu, Kernel, Plan
from tconv.planner.col2im.tile import BlockTile
from tconv.planner.col2im_wgmma.candidates import col2im_wgmma_tile
from tconv.planner.col2im_wgmma.tile import Warpgroups
from tconv.planner.wgmma.builder import wgmma_tile
from tconv.problem import Layer, Precision, Problem
from tconv.rewriter.pipeline import build
from tconv.rewriter.planning import Basis, plan_layers
from tconv.sandbox.cut import runs_all
from tconv.sandbox.trace import Trace, TracedLayer

MODEL = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(48, 32, 4, 2, 1)
            self.to(torch.DTYPE)

        def forward(self, x):
            return self.up(x)

    def get_inputs():
        return [torch.randn(2, 48, 5, 9).to(torch.DTYPE)]
"""
LAYER = Layer(2, 48, 32, (1, 4, 4), (1, 2, 2), (0, 1, 1), bias=True)
GPU = Gpu.h200()
#: Of what `col2im_wgmma` is planned for, which `wgmma` runs as well.
SIZES = (5, 9)


@pytest.fixture(scope="module", params=[("wgmma", "tf32"), ("wgmma", "fp16"), ("col2im_wgmma", "tf32")], ids="-".join)
def chosen(request: pytest.FixtureRequest) -> tuple[str, Precision]:
    found: tuple[str, Precision] = request.param
    return found


@pytest.fixture(scope="module")
def family(chosen: tuple[str, Precision]) -> str:
    return chosen[0]


@pytest.fixture(scope="module")
def precision(chosen: tuple[str, Precision]) -> Precision:
    return chosen[1]


def _plan(family: str, layer: Layer) -> Plan:
    if family == "col2im_wgmma":
        problem = Problem(layer, 2, (1, *SIZES))
        of_few = col2im_wgmma_tile(
            problem,
            BlockTile(1, 1, 4, 9),
            warpgroups=Warpgroups(1, 1, 1),
            channels=4,
            k_tile_steps=2,
            stages=3,
            prepared_inputs=True,
        )
        return COL2IM_WGMMA.plan_with(problem, Kernel(family, layer, of_few), GPU)
    tile = wgmma_tile(
        layer,
        block_tile=(1, 1, 2, 16),
        channels=32,
        phases=4,
        position_tiles=1,
        stacked=0,
        k_tile_steps=2,
        patch_columns=1,
        prepared_inputs=1,
    )
    return WGMMA.plan_with(Problem(layer, 64, (1, 101, 101)), Kernel(family, layer, tile), GPU)


@pytest.fixture(scope="module")
def text(family: str, precision: Precision, tmp_path_factory: pytest.TempPathFactory) -> str:
    layer = replace(LAYER, precision=precision)
    path = tmp_path_factory.mktemp("inputs") / "model.py"
    path.write_text(textwrap.dedent(MODEL).replace("DTYPE", layer.dtype), encoding="utf-8")
    plan = _plan(family, layer)
    trace = Trace((TracedLayer("up", plan.problem),))
    (planned,) = plan_layers(trace, path, Basis(GPU), "match", lambda problem, wanted: precision)
    return build(path, [replace(planned, plan=plan, any_size=None)])


@pytest.fixture
def file(text: str) -> Namespace:
    return executed(text)


def _rounded(problem: Problem, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return conv_transpose(x.double(), weight.double(), bias.double(), problem).to(x.dtype)


def test_it_is_recorded(file: Namespace, family: str, precision: Precision) -> None:
    (kernel,) = kernels_of(file)
    layer = replace(LAYER, precision=precision)
    assert (kernel.family, kernel.columns, kernel.prepares_inputs) == (family, 1, True)
    if family == "wgmma":
        assert kernel.weight_bytes >= 48 * 32 * 16 * layer.item_bytes and kernel.weight_bytes % 16 == 0
    else:
        assert kernel.weight_bytes == 0
    assert file["_CUDA"][family].count("conv_up_inputs(") == 1
    assert file["_CUDA"][family].count("conv_up_weights(") == (family == "wgmma")


def test_it_is_right_at_its_sizes(file: Namespace, family: str, precision: Precision) -> None:
    launches = launched(file)

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = function_of(file, 2)(x, weight, bias, 2, 1)
        return y

    for sizes in [SIZES, (8, 8), (3, 30)] if family == "wgmma" else [SIZES]:
        problem = Problem(replace(LAYER, precision=precision), 2, (1, *sizes))
        wanted, baseline = ("tf32", None) if precision == "tf32" else ("fp32", partial(_rounded, problem))
        with silent():
            verdict = check_layer(call, problem, wanted, baseline=baseline, draw_count=1, awkward=False)  # type: ignore[arg-type]
        assert verdict.equal, verdict.reasons
    assert {launch.kernel.name for launch in launches} == {"conv_up"}


def test_tensors_are_aligned_for_copies_of_several_elements(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []
    layer = next(iter(file["_RECORDED"]))
    file.update(runs_all(file))
    file["_extension"] = lambda family, capability: lambda *numbers: 2
    shapes = (2, 48, *SIZES), (48, 32, 4, 4), (32,)
    launch = file["_launch_for"](torch.device("cpu"), layer.dtype, *shapes, ((2, 2), (1, 1), (0, 0), 1, (1, 1)))
    file["_launch"] = lambda launch, *tensors: given.extend(tensors)
    x = torch.empty(2 * 48 * SIZES[0] * SIZES[1] + 1, dtype=layer.dtype)[1:].view(shapes[0])
    assert x.is_contiguous() and x.data_ptr() % 16
    file["_fill"](
        torch.empty(launch.shape, dtype=layer.dtype), launch, x, torch.empty(shapes[1], dtype=layer.dtype), None
    )
    assert [tensor.data_ptr() % 16 for tensor in given[:2]] == [0, 0]


def test_there_is_memory_for_inputs_behind_the_weights(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    sizes: list[Any] = []
    kernel, layer = kernels_of(file)[0], next(iter(file["_RECORDED"]))
    file.update(runs_all(file))
    file["_extension"] = lambda family, capability: lambda *numbers: calls.append(numbers)
    shapes = (2, 48, 5, 9), (48, 32, 4, 4), (32,)
    options = (2, 2), (1, 1), (0, 0), 1, (1, 1)
    launch = file["_launch_for"](torch.device("cpu"), layer.dtype, *shapes, options)
    x, weight, bias = (torch.empty(shape, dtype=layer.dtype) for shape in shapes)
    y, empty = torch.empty(launch.shape, dtype=layer.dtype), torch.Tensor.new_empty
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 99, raising=False)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, size: (sizes.append(size), empty(like, size))[1])
    file["_launch"](launch, x, weight, bias, y)
    assert [size * x.element_size() for size in sizes] == [kernel.weight_bytes + x.numel() * x.element_size()]
    (numbers,) = calls
    pointers = [t.data_ptr() for t in (x, weight, bias, y)]
    assert numbers[:3] == (0, 99, 132) and list(numbers[3:7]) == pointers and numbers[7]
    assert numbers[8:] == (32, 2, 1, 5, 9, 1, 10, 18)


@pytest.mark.slow
def test_nvcc_compiles_it(file: Namespace, family: str, cuda_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "cuda.cu"
    source.write_text(file["_CUDA"][family])
    command = [cuda_home / "bin" / "nvcc", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-c", source]
    run = subprocess.run([*command, "-o", tmp_path / "cuda.o"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "warning" not in run.stderr, run.stderr


def test_nvrtc_compiles_it(file: Namespace, family: str) -> None:
    compile_kept(file["_CUDA"][family], "sm_90a", name="tconv_kernel")
