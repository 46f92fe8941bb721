"""Files with kernels for Hopper alone: what a size takes, what each GPU builds, and that PyTorch runs the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import Namespace, executed, function_of, kernels_of, silent, told
from codegen_helpers import launched as launches_of

from tconv.evaluation.equality import check_layer
from tconv.evaluation.reference import conv_transpose
from tconv.jit.loader import compile_kept
from tconv.planner import Gpu
from tconv.problem import TF32, Layer, Precision, Problem
from tconv.rewriter.pipeline import build
from tconv.rewriter.planning import Basis, plan_layers
from tconv.sandbox.cut import cut_of, launch_of
from tconv.sandbox.emulated import ask
from tconv.sandbox.trace import Trace, TracedLayer

pytestmark = pytest.mark.rotates(4)  # each takes seconds

MODEL = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.ConvTranspose2d(64, 64, 3, padding=1)
            self.up = nn.ConvTranspose2d(64, 64, 4, 2, 1, bias=False)
            self.signal = nn.ConvTranspose1d(128, 64, 4, 2, 1)
            self.to(torch.DTYPE)

        def forward(self, x, signal):
            return self.up(self.wide(x)), self.signal(signal)

    def get_inputs():
        return [torch.randn(1, 64, 4, 8).to(torch.DTYPE), torch.randn(1, 128, 8).to(torch.DTYPE)]
"""
LAYERS = {
    "wide": Layer(2, 64, 64, (1, 3, 3), padding=(0, 1, 1), bias=True),
    "up": Layer(2, 64, 64, (1, 4, 4), (1, 2, 2), (0, 1, 1)),
    "signal": Layer(1, 128, 64, (1, 1, 4), (1, 1, 2), (0, 0, 1), bias=True),
}
#: What is planned for: larger than anybody would run here.
PLANNED = {"wide": (8, (1, 512, 512)), "up": (8, (1, 512, 512)), "signal": (16, (1, 1, 32768))}
PRECISIONS: tuple[Precision, ...] = ("tf32", "fp16", "bf16")


@pytest.fixture(scope="module", params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> Precision:
    found: Precision = request.param
    return found


@pytest.fixture(scope="module")
def text(precision: Precision, tmp_path_factory: pytest.TempPathFactory) -> str:
    dtype = Layer(1, 1, 1, (1, 1, 1), precision=precision).dtype
    path = tmp_path_factory.mktemp("hopper") / "model.py"
    path.write_text(textwrap.dedent(MODEL).replace("DTYPE", dtype), encoding="utf-8")
    planned = {name: replace(layer, precision=precision) for name, layer in LAYERS.items()}
    layers = tuple(TracedLayer(name, Problem(layer, *PLANNED[name])) for name, layer in planned.items())
    found = plan_layers(Trace(layers), path, Basis(Gpu.h200()), "match", lambda problem, wanted: precision)
    return build(path, found)


@pytest.fixture
def file(text: str) -> Namespace:
    return executed(text)


@pytest.fixture
def as_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int], str], None]:
    """Lets files see a GPU of this capability, and PyTorch's CUDA of this version."""

    def see(capability: tuple[int, int], cuda: str, multiprocessors: int = 132) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        properties = SimpleNamespace(multi_processor_count=multiprocessors)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return see


def test_beside_each_kernel_stands_one_for_rows_of_any_width(file: Namespace, text: str, precision: Precision) -> None:
    recorded = list(file["_RECORDED"].values())
    assert [[kernel.family for kernel in kernels] for kernels in recorded] == [["wgmma"] * 2] * 3
    assert all(best.columns > 1 and any_size.columns == 1 for best, any_size in recorded)
    assert [kernel.name for kernel in kernels_of(file)] == [
        f"conv_{name}{size}" for name in LAYERS for size in ("", "_any_size")
    ]
    assert all(kernel.tf32 == (precision in TF32) for kernel in kernels_of(file))
    header = text.partition("\n\n")[0]
    assert header.count("  wgmma: ") == header.count("  any size: wgmma: ") == 3
    dtype = Layer(1, 1, 1, (1, 1, 1), precision=precision).dtype
    assert f"# Made for {dtype} only (others: --types), at any batch and map size.\n" in header


@pytest.mark.parametrize(
    ("capability", "cuda", "builds"),
    [
        ((9, 0), "12.0", True),
        ((9, 0), "13.0", True),
        ((9, 0), "11.8", False),
        ((8, 0), "13.0", False),
        ((10, 0), "13.0", False),
        ((8, 6), "13.0", False),
        ((7, 5), "12.0", False),
    ],
)
def test_what_a_model_builds(
    file: Namespace,
    as_on: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    cuda: str,
    builds: bool,
) -> None:
    """One extension, at once, for all layers; none where no kernel runs."""
    as_on(capability, cuda)
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", "/usr/local/cuda")
    built: list[dict[str, Any]] = []

    def load_inline(**options: Any) -> SimpleNamespace:
        built.append(options)
        return SimpleNamespace(launch=lambda *numbers: 0)

    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    with silent():
        for _ in range(2):
            file["ModelNew"]()
    assert len(built) == builds
    for options in built:
        assert "-gencode=arch=compute_90a,code=sm_90a" in options["extra_cuda_cflags"]
        assert options["cuda_sources"] == [file["_CUDA"]["wgmma"]]
        assert file["_load_options"]("wgmma", capability)["name"] == options["name"]


@pytest.mark.parametrize("capability", [(9, 0), (8, 0), (10, 0), (7, 5)])
def test_other_gpus_run_pytorchs(file: Namespace, precision: Precision, capability: tuple[int, int]) -> None:
    runs_on = file["_runs_on"]
    launches = launches_of(file)
    file["_runs_on"], file["_gpu"] = runs_on, lambda device: file["_Gpu"](capability, 227 * 1024, 132)
    file["_has_sm_90a"] = lambda capability: False  # an older compiler's
    layer = replace(LAYERS["signal"], precision=precision)
    dtype = getattr(torch, layer.dtype)
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((2, 128, 8), layer.weight_shape, (64,)))
    with told() as said:
        y = function_of(file, 1)(x, weight, bias, 2, 1)
    assert torch.equal(y, torch.conv_transpose1d(x, weight, bias, 2, 1)) and not launches
    assert len(said) == 1
    assert said[0].endswith("none runs on a GPU of compute capability {}.{}".format(*capability))


@pytest.mark.parametrize("multiprocessors", [78, 114, 132])
def test_as_many_blocks_as_a_gpu_has_multiprocessors(
    file: Namespace, precision: Precision, as_on: Callable[..., None], multiprocessors: int
) -> None:
    as_on((9, 0), "13.0", multiprocessors)
    assert file["_gpu"](torch.device("cuda", 0)).multiprocessors == multiprocessors
    for (name, layer), (best, _) in zip(LAYERS.items(), file["_RECORDED"].values(), strict=True):
        problem = Problem(replace(layer, precision=precision), *PLANNED[name])
        grid = launch_of(cut_of(best, file["_CUDA"]), problem, multiprocessors, ask).grid
        assert multiprocessors // 2 < grid <= multiprocessors


@pytest.mark.rotates(4)
def test_the_text_compiles(file: Namespace) -> None:
    source = file["_CUDA"]["wgmma"]
    assert list(file["_CUDA"]) == ["wgmma"]
    functions = [1 + (kernel.weight_bytes > 0) + kernel.prepares_inputs for kernel in kernels_of(file)]
    assert len(functions) == 6 and source.count("__global__ void") == sum(functions)
    compile_kept(source, "sm_90a", name="tconv_kernel")


def _rounded(problem: Problem, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    exact = conv_transpose(x.double(), weight.double(), None if bias is None else bias.double(), problem)
    return exact.to(x.dtype)


@pytest.mark.rotates(8)
@pytest.mark.parametrize(
    ("name", "batch", "sizes", "any_size"),
    [
        ("wide", 2, (1, 10, 16), False),
        ("wide", 1, (1, 3, 40), False),
        ("wide", 3, (1, 5, 7), True),  # rows that do not divide into what the best one loads at once
        ("wide", 1, (1, 6, 18), True),
        ("up", 2, (1, 7, 8), False),
        ("up", 5, (1, 1, 24), False),
        ("up", 1, (1, 5, 9), True),
        ("signal", 2, (1, 1, 72), False),
        ("signal", 3, (1, 1, 31), True),
        ("signal", 1, (1, 1, 1), True),
    ],
)
def test_each_kernel_is_right_at_other_sizes(
    file: Namespace,
    precision: Precision,
    name: str,
    batch: int,
    sizes: tuple[int, int, int],
    any_size: bool,
) -> None:
    layer = replace(LAYERS[name], precision=precision)
    problem, launches = Problem(layer, batch, sizes), launches_of(file)
    used = slice(3 - layer.spatial_dims, None)

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        function = function_of(file, layer.spatial_dims)
        y: torch.Tensor = function(x, weight, bias, layer.stride[used], layer.padding[used])
        return y

    wanted = "tf32" if precision in TF32 else "fp32"
    # Of 16-bit types PyTorch's own result on a CPU is further from the exact one than these are.
    baseline = None if precision in TF32 else partial(_rounded, problem)
    with silent():
        verdict = check_layer(call, problem, wanted, baseline=baseline, draw_count=1, awkward=False)  # type: ignore[arg-type]
    assert verdict.equal, verdict.reasons
    assert {launch.kernel.name for launch in launches} == {f"conv_{name}" + "_any_size" * any_size}


def test_the_next_kernel_takes_what_the_first_does_not_run(file: Namespace, precision: Precision) -> None:
    """Rows of some width, which are a multiple of what is loaded at once."""
    launches_of(file)
    layer, (best, any_size) = next(iter(file["_RECORDED"].items()))
    file["_RECORDED"][layer] = [best._replace(columns=16), any_size]
    shapes, options = ((64, 64, 3, 3), (64,)), ((1, 1), (1, 1), (0, 0), 1, (1, 1))

    def taken(width: int) -> Any:
        return file["_launch_for"](torch.device("cpu"), layer.dtype, (1, 64, 4, width), *shapes, options)

    assert [taken(width).kernel.name for width in (24, 32, 1)] == [
        "conv_wide_any_size",
        "conv_wide",
        "conv_wide_any_size",
    ]
    file["_RECORDED"][layer] = [best._replace(columns=16)]
    file["_launch_for"].cache_clear()
    assert taken(24) == "none takes an input of this size" and taken(48).kernel.name == "conv_wide"
