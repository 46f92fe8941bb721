"""Files with kernels for Hopper alone: what runs their layers elsewhere, and what a GPU and a size take."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import Namespace, executed, function_of

from tconv.evaluation.equality import check_layer
from tconv.evaluation.reference import conv_transpose
from tconv.jit.compile import compile_source
from tconv.planner import FAMILIES, Gpu
from tconv.problem import TF32, Layer, Precision, Problem
from tconv.rewriter.pipeline import build, plan_layers
from tconv.sandbox.cut import Cutter, cut_of, told
from tconv.sandbox.emulated import ask, install
from tconv.sandbox.trace import Trace, TracedLayer

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
HOPPER, NO_TENSOR_CORES = (227 * 1024, True, 132), (0, False, 132)


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
    gpu = Gpu.h200()
    found = plan_layers(Trace(layers), path, gpu, "match", lambda problem, wanted: precision)
    return build(path, found, gpu, "match")


@pytest.fixture
def file(text: str) -> Namespace:
    return executed(text)


@pytest.fixture
def launched(file: Namespace) -> list[str]:
    """The families that the file launches, now in the emulator."""
    install(file)
    emulated, families = file["_launch"], []

    def launch(plan: Any, *tensors: Any) -> None:
        families.append(plan.kernel.family)
        emulated(plan, *tensors)

    file["_launch"] = launch
    return families


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


@pytest.mark.rotates(6)
def test_one_kernel_runs_all_of_them_elsewhere(file: Namespace, text: str) -> None:
    recorded = file["_RECORDED"].values()
    assert [[kernel.family for kernel in kernels] for kernels in recorded] == [["wgmma"]] * 3
    assert all(best.columns_together > 1 for (best,) in recorded)
    header = text.partition("\n\n")[0]
    assert header.count("  wgmma: ") == header.count("  elsewhere, ") == header.count(": gemm") == 3


@pytest.mark.parametrize(
    ("capability", "cuda", "families", "arch"),
    [
        ((9, 0), "12.0", ["wgmma"] * 3, "90a"),
        ((9, 0), "13.0", ["wgmma"] * 3, "90a"),
        ((9, 0), "11.8", ["gemm"] * 3, "90"),
        ((8, 0), "13.0", ["gemm"] * 3, "80"),
        ((10, 0), "13.0", ["gemm"] * 3, "100"),
        ((8, 6), "13.0", ["gemm"] * 3, "86"),
        ((7, 5), "12.0", ["plain"] * 3, "75"),
    ],
)
def test_what_a_model_builds(
    file: Namespace, as_on: Callable[..., None], capability: tuple[int, int], cuda: str, families: list[str], arch: str
) -> None:
    as_on(capability, cuda)
    built: list[Any] = []
    file["_build"] = lambda kernels, device: built.extend(kernels)
    file["ModelNew"]()
    assert [kernel.family for kernel in built] == families
    structs = {name: f"{name.capitalize()}Shape {{" for name in FAMILIES}
    structs.update(gemm="GemmTile {", plain="PlainTile {")
    for kernel in built:
        options = file["_load_options"](kernel, capability)
        assert f"-gencode=arch=compute_{arch},code=sm_{arch}" in options["extra_cuda_cflags"]
        assert [name for name, struct in structs.items() if struct in options["cuda_sources"][0]] == [kernel.family]


@pytest.mark.filterwarnings("ignore:no kernel in this file")
@pytest.mark.parametrize("capability", [(9, 0), (8, 0), (7, 5)])
def test_what_is_built_later_is_known_before(
    file: Namespace,
    as_on: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    precision: Precision,
    capability: tuple[int, int],
) -> None:
    as_on(capability, "13.0")
    built: list[dict[str, Any]] = []

    def load_inline(**options: Any) -> SimpleNamespace:
        built.append(options)
        return SimpleNamespace(launch=lambda *arguments: 0)

    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    device = torch.device("cuda", 0)
    gpu = file["_gpu"](device)
    model = file["ModelNew"]()
    kernels = list(file["_module_kernels"](model, gpu))
    other = torch.float32 if precision in ("fp16", "bf16") else torch.float16
    built_at = Cutter._built(SimpleNamespace(_file=file), kernels, gpu, [str(other).removeprefix("torch.")])
    assert built_at[: len(kernels)] == kernels
    foreseen = {file["_load_options"](each, capability)["name"] for each in built_at}
    for cast in (model.wide.weight.dtype, other):
        for module in (model.up, model.wide, model.signal):
            dims, weight, bias = len(module.kernel_size), module.to(cast).weight, module.bias
            sizes = (3, weight.shape[0], 5, 7)[: dims + 2]
            options = (module.stride, module.padding, module.output_padding, module.groups, module.dilation)
            shape = None if bias is None else tuple(bias.shape)
            kernel = file["_plan"](dims, cast, sizes, tuple(weight.shape), shape, *options, gpu).kernel
            for _ in range(2):
                file["_build"]([kernel], device)
    assert {each["name"] for each in built} <= foreseen
    # Of each of three layers: its own, where that is Hopper's alone another one for any width, and one after the cast.
    assert len(built) == len({each["name"] for each in built}) == (9 if capability == (9, 0) else 6)


@pytest.mark.parametrize("multiprocessors", [78, 114, 132])
def test_as_many_blocks_as_a_gpu_has_multiprocessors(
    file: Namespace, precision: Precision, as_on: Callable[..., None], multiprocessors: int
) -> None:
    as_on((9, 0), "13.0", multiprocessors)
    assert file["_gpu"](torch.device("cuda", 0)).multiprocessors == multiprocessors
    for (name, layer), recorded in zip(LAYERS.items(), file["_RECORDED"], strict=True):
        problem = Problem(replace(layer, precision=precision), *PLANNED[name])
        cut = cut_of(next(file["_kernels"](recorded, file["_PLANNED"])), file["_cuda_source"])
        grid = told(cut, problem, multiprocessors, ask).grid
        assert multiprocessors // 2 < grid <= multiprocessors


@pytest.mark.rotates(6)
@pytest.mark.parametrize(
    ("arch", "gpu"),
    [
        ("sm_75", NO_TENSOR_CORES),
        ("sm_80", (163 * 1024, False, 132)),
        ("sm_90", (227 * 1024, False, 132)),
        ("sm_90a", HOPPER),
        ("sm_100", (227 * 1024, False, 132)),
        ("sm_120", (99 * 1024, False, 132)),
    ],
)
def test_what_each_gpu_takes_compiles(file: Namespace, arch: str, gpu: tuple[int, bool, int]) -> None:
    kernels = list(file["_module_kernels"](file["ModelNew"](), file["_Gpu"](*gpu)))
    for kernel in kernels:
        compile_source(file["_cuda_source"](kernel), arch)


def _rounded(problem: Problem, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    exact = conv_transpose(x.double(), weight.double(), None if bias is None else bias.double(), problem)
    return exact.to(x.dtype)


@pytest.mark.rotates(8)
@pytest.mark.parametrize("on_hopper", [True, False], ids=["hopper", "elsewhere"])
@pytest.mark.parametrize(
    ("name", "batch", "sizes", "families"),
    [
        ("wide", 2, (1, 10, 16), ("wgmma", "gemm")),
        ("wide", 1, (1, 3, 40), ("wgmma", "gemm")),
        ("wide", 3, (1, 5, 7), ("gemm", "gemm")),  # rows that do not divide into what both load at once
        ("up", 2, (1, 7, 8), ("wgmma", "gemm")),
        ("up", 5, (1, 1, 24), ("wgmma", "gemm")),
        ("up", 1, (1, 5, 9), ("gemm", "gemm")),
        ("signal", 2, (1, 1, 72), ("wgmma", "gemm")),
        ("signal", 3, (1, 1, 31), ("gemm", "gemm")),
    ],
)
def test_each_kernel_is_right_at_other_sizes(
    file: Namespace,
    launched: list[str],
    precision: Precision,
    name: str,
    batch: int,
    sizes: tuple[int, int, int],
    families: tuple[str, str],
    on_hopper: bool,
) -> None:
    layer, family = replace(LAYERS[name], precision=precision), families[not on_hopper]
    problem = Problem(layer, batch, sizes)
    file["_gpu"] = lambda device: file["_PLANNED"]._replace(sm_90a=on_hopper)
    used = slice(3 - layer.spatial_dims, None)

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        function = function_of(file, layer.spatial_dims)
        y: torch.Tensor = function(x, weight, bias, layer.stride[used], layer.padding[used])
        return y

    wanted = "tf32" if precision in TF32 else "fp32"
    # Of 16-bit types PyTorch's own result on a CPU is further from the exact one than these are.
    baseline = None if precision in TF32 else partial(_rounded, problem)
    verdict = check_layer(call, problem, wanted, baseline=baseline, draw_count=1, awkward=False)  # type: ignore[arg-type]
    assert verdict.equal, verdict.reasons
    assert set(launched) == {family}


def test_the_next_kernel_takes_what_the_first_does_not_run(file: Namespace) -> None:
    """Rows of some width that only the one for any dense layer loads."""
    layer, (hopper,) = next(iter(file["_RECORDED"].items()))
    wider = hopper._replace(columns_together=16)
    file["_RECORDED"][layer] = [wider]
    assert file["_fitting"](layer, (1, 4, 24), file["_PLANNED"]).family == "gemm"
    assert file["_fitting"](layer, (1, 4, 32), file["_PLANNED"]).tile == wider.tile
    smaller = file["_Gpu"](hopper.shared_bytes - 1, True, 132)
    assert file["_fitting"](layer, (1, 4, 32), smaller).family == "gemm"
    assert file["_fitting"](layer, (1, 4, 32), file["_Gpu"](0, False, 132)).family == "plain"
