"""Files whose kernel for Hopper has its inputs prepared: a kernel more in front of it, and memory for what it gives."""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from codegen_helpers import Namespace, executed, function_of

from tconv.evaluation.equality import check_layer
from tconv.evaluation.reference import conv_transpose
from tconv.jit.compile import compile_source
from tconv.planner import WGMMA, Gpu, Kernel
from tconv.planner.wgmma.builder import wgmma_tile
from tconv.problem import Layer, Precision, Problem
from tconv.rewriter.pipeline import build, plan_layers
from tconv.sandbox.emulated import install
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


@pytest.fixture(scope="module", params=["tf32", "fp16"])
def precision(request: pytest.FixtureRequest) -> Precision:
    found: Precision = request.param
    return found


@pytest.fixture(scope="module")
def text(precision: Precision, tmp_path_factory: pytest.TempPathFactory) -> str:
    layer = replace(LAYER, precision=precision)
    path = tmp_path_factory.mktemp("inputs") / "model.py"
    path.write_text(textwrap.dedent(MODEL).replace("DTYPE", layer.dtype), encoding="utf-8")
    problem = Problem(layer, 64, (1, 101, 101))
    trace = Trace((TracedLayer("up", problem),))
    (planned,) = plan_layers(trace, path, GPU, "match", lambda problem, wanted: precision)
    tile = wgmma_tile(
        layer,
        box=(1, 1, 2, 16),
        channels=32,
        phases=4,
        position_tiles=1,
        stacked=0,
        chunk_steps=2,
        patch_columns=1,
        prepared_inputs=1,
    )
    prepared = replace(planned, cast=(), plan=WGMMA.plan_with(problem, Kernel("wgmma", layer, tile), GPU))
    return build(path, [prepared], GPU, "match")


@pytest.fixture
def file(text: str) -> Namespace:
    return executed(text)


def _rounded(problem: Problem, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return conv_transpose(x.double(), weight.double(), bias.double(), problem).to(x.dtype)


def kernels_of(file: Namespace) -> list[Any]:
    return [next(file["_kernels"](layer, file["_PLANNED"])) for layer in file["_RECORDED"]]


@pytest.mark.parametrize("sizes", [(5, 9), (8, 8), (3, 30)])
def test_it_is_right_at_any_size(file: Namespace, precision: Precision, sizes: tuple[int, int]) -> None:
    problem = Problem(replace(LAYER, precision=precision), 2, (1, *sizes))
    install(file)
    emulated, families = file["_launch"], []

    def launch(plan: Any, *tensors: Any) -> None:
        families.append(plan.kernel.family)
        emulated(plan, *tensors)

    file["_launch"] = launch

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = function_of(file, 2)(x, weight, bias, 2, 1)
        return y

    wanted, baseline = ("tf32", None) if precision == "tf32" else ("fp32", partial(_rounded, problem))
    verdict = check_layer(call, problem, wanted, baseline=baseline, draw_count=1, awkward=False)  # type: ignore[arg-type]
    assert verdict.equal, verdict.reasons
    assert set(families) == {"wgmma"}


def test_there_is_memory_for_inputs_behind_the_weights(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, device = next(iter(file["_RECORDED"])), torch.device("cpu")
    kernel = file["_fitting"](layer, (1, 5, 9), file["_PLANNED"])
    plan = file["_Plan"](layer, 2, (1, 5, 9), (1, 10, 18), kernel)
    x = torch.empty(2, 48, 5, 9, dtype=getattr(torch, replace(LAYER, precision=layer.precision).dtype))
    calls, sizes = [], []
    file["_LAUNCHERS"][device, plan.kernel] = (lambda *values: calls.append(values), 640)
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 99, raising=False)
    monkeypatch.setattr(torch, "empty", lambda size, **how: (sizes.append(size), empty(size, dtype=how["dtype"]))[1])
    file["_launch"](plan, x, x, None, x)
    assert sizes == [640 + x.numel() * x.element_size()]


@pytest.mark.slow
def test_nvcc_compiles_it(file: Namespace, cuda_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "cuda.cu"
    # All that the file builds for the type: Hopper's kernel, and those for any other layer and GPU beside it.
    for kernel in (each for layer in file["_RECORDED"] for each in file["_kernels"](layer, file["_PLANNED"])):
        source.write_text(file["_cuda_source"](kernel))
        command = [cuda_home / "bin" / "nvcc", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-c", source]
        run = subprocess.run([*command, "-o", tmp_path / "cuda.o"], capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        assert "warning" not in run.stderr, run.stderr


def test_nvrtc_compiles_it(file: Namespace) -> None:
    for kernel in kernels_of(file):
        compile_source(file["_cuda_source"](kernel), "sm_90a")
