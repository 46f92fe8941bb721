"""Files whose layers run on tensor cores: the same answers, for every size and width, and on GPUs without them.

Of the model's layers the last has too few channels for the kernel that runs any dense layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import Namespace, executed, generated_text

from tconv.jit.compile import compile_source
from tconv.sandbox.emulated import install

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.first = nn.ConvTranspose2d(20, width, 4)
        self.second = nn.ConvTranspose2d(width, 16, 4, 2, 1, bias=False)
        self.last = nn.ConvTranspose2d(16, 3, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))

def get_inputs():
    return [torch.randn(2, 20, 1, 1)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = tmp_path_factory.mktemp("families") / "model.py"
    model.write_text(MODEL)
    return generated_text(model, families=["mma"])


@pytest.fixture
def file(text: str) -> Namespace:
    namespace = executed(text)
    install(namespace)
    return namespace


def pair(file: Namespace, *arguments: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    original: Namespace = {}
    exec(MODEL, original)
    theirs, ours = original["Model"](*arguments), file["ModelNew"](*arguments)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def close(file: Namespace, shape: tuple[int, ...], *arguments: int) -> None:
    theirs, ours = pair(file, *arguments)
    x = torch.randn(shape)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def families(file: Namespace, shape: tuple[int, ...], most_shared: int = 227 * 1024, sm_90a: bool = True) -> list[str]:
    """Of the first layer on an input of this shape, and of the layers as they are built."""
    gpu = file["_PLANNED"]._replace(most_shared=most_shared, sm_90a=sm_90a)
    options = ((1, 1), (0, 0), (0, 0), 1, (1, 1))
    plan = file["_plan"](2, torch.float32, shape, (20, 24, 4, 4), (24,), *options, gpu)
    return [plan.kernel.family, *(kernel.family for kernel in file["_module_kernels"](file["ModelNew"](), gpu))]


def strides(file: Namespace) -> list[Any]:
    """Of every recorded kernel."""
    return [kernel.stride or layer.stride for layer, kernels in file["_RECORDED"].items() for kernel in kernels]


def test_the_sizes_of_get_inputs(file: Namespace) -> None:
    assert families(file, (2, 20, 1, 1)) == ["mma"] * 4
    close(file, (2, 20, 1, 1))


def test_other_batches(file: Namespace) -> None:
    close(file, (1, 20, 1, 1))
    close(file, (5, 20, 1, 1))


def test_beside_a_kernel_for_one_input_an_axis_stands_one_for_others(file: Namespace) -> None:
    """The first layer was compiled with every tap as a phase."""
    assert strides(file)[0] == (1, 4, 4)
    assert [families(file, (2, 20, *size))[0] for size in ((1, 1), (2, 1), (1, 3))] == ["mma", "gemm", "gemm"]
    close(file, (2, 20, 2, 3))


def test_rows_that_do_not_divide_into_what_is_loaded_at_once(model_file: Callable[[str], Path]) -> None:
    model = MODEL.replace("[torch.randn(2, 20, 1, 1)]", "[torch.randn(1, 20, 9, 32)]")
    file = executed(generated_text(model_file(model), "fp32", families=["mma"]))
    install(file)

    together = [[kernel.columns_together for kernel in kernels] for kernels in file["_RECORDED"].values()]
    assert together[0] == [4] and together[-1][-1] == 1
    assert [families(file, (1, 20, 9, width))[0] for width in (32, 31)] == ["mma", "gemm"]
    close(file, (1, 20, 9, 31))
    # A row further on in memory: what is loaded at once does not begin where it should.
    theirs, ours = pair(file)
    x = torch.randn(1 + 20 * 9 * 32)[1:].view(1, 20, 9, 32)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_one_layer_at_sizes_that_one_kernel_does_not_run(model_file: Callable[[str], Path]) -> None:
    """First on one pixel, for which it is compiled with every tap as a phase, then on what that gave."""
    model = """
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.twice = nn.ConvTranspose2d(16, 16, 3, padding=1)

            def forward(self, x):
                small = self.twice(x)
                return small + self.twice(small[:1].repeat(1, 1, 2, 2)).mean()

        def get_inputs():
            return [torch.randn(64, 16, 1, 1)]
    """
    file = executed(generated_text(model_file(model), families=["mma"]))
    install(file)
    assert strides(file) == [(1, 3, 3), (1, 1, 1)]
    original: Namespace = {}
    exec(model_file(model).read_text(), original)
    theirs, ours = original["Model"](), file["ModelNew"]()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(64, 16, 1, 1)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_cast_to_16_bits(file: Namespace, dtype: torch.dtype, precision: str) -> None:
    """A model in float32 has kernels for both types, on tensor cores; recorded ones are of the same tiles."""
    theirs, ours = pair(file)
    for module in (theirs, ours):
        module.to(dtype)
    kernels = list(file["_module_kernels"](ours))
    taken = [(kernel.family, kernel.layer.precision) for kernel in kernels]
    assert taken == [("gemm", precision), ("gemm", precision), ("mma", precision)]
    (layer,) = [layer for layer in file["_RECORDED"] if layer.precision == "fp16"]
    assert kernels[-1].tile == file["_RECORDED"][layer][0].tile
    for shape in ((2, 20, 1, 1), (1, 20, 3, 5)):
        x = torch.randn(shape).to(dtype)
        torch.testing.assert_close(ours(x).double(), theirs.double()(x.double()), rtol=2e-2, atol=2e-2)
        theirs.to(dtype)


def test_a_model_in_16_bits_has_kernels_for_float32(model_file: Callable[[str], Path]) -> None:
    text = MODEL.replace("torch.randn(2, 20, 1, 1)", "torch.randn(2, 20, 1, 1).bfloat16()")
    text = text.replace("bias=False)", "bias=False).bfloat16()").replace("4)\n", "4).bfloat16()\n")
    text = text.replace("output_padding=1)", "output_padding=1).bfloat16()")
    file = executed(generated_text(model_file(text), families=["mma"]))
    install(file)
    assert {layer.precision for layer in file["_RECORDED"]} == {"bf16", "fp32"}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        ours = file["ModelNew"]().to(dtype)
        dense = "gemm" if dtype == torch.float32 else "mma"
        assert [kernel.family for kernel in file["_module_kernels"](ours)] == [dense, dense, "mma"]


def test_other_constructor_arguments_take_kernels_that_run_any_layer(file: Namespace) -> None:
    for width, of_them in ((7, ["plain", "plain", "mma"]), (40, ["gemm", "gemm", "mma"])):
        assert [kernel.family for kernel in file["_module_kernels"](file["ModelNew"](width))] == of_them
        close(file, (2, 20, 1, 1), width)


def test_a_gpu_without_these_tensor_cores_takes_the_kernel_that_runs_everywhere(file: Namespace) -> None:
    assert families(file, (2, 20, 1, 1), most_shared=0) == ["plain"] * 4


@pytest.mark.parametrize(
    ("capability", "kilobytes"),
    [((7, 5), 0), ((8, 0), 163), ((8, 6), 99), ((9, 0), 227), ((10, 0), 227), ((12, 0), 99)],
)
@pytest.mark.parametrize("cuda", ["11.8", "12.0", "13.0"])
def test_which_gpus_have_them(
    file: Namespace, cuda: str, capability: tuple[int, int], kilobytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And which run sm_90a: Hopper's, by compilers that know it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    properties = SimpleNamespace(multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    file["_gpu"].cache_clear()
    sm_90a = capability == (9, 0) and cuda != "11.8"
    assert file["_gpu"](torch.device("cuda", 0)) == (kilobytes * 1024, sm_90a, 40)
    arch = "90a" if sm_90a else "{}{}".format(*capability)
    kernel = next(iter(file["_RECORDED"].values()))[0]
    kernel = kernel._replace(layer=next(iter(file["_RECORDED"])))
    assert (
        f"-gencode=arch=compute_{arch},code=sm_{arch}" in file["_load_options"](kernel, capability)["extra_cuda_cflags"]
    )


def test_a_gpu_with_less_shared_memory_than_planned_for(file: Namespace) -> None:
    least = next(iter(file["_RECORDED"].values()))[0].shared_bytes
    assert families(file, (2, 20, 1, 1), most_shared=least)[0] == "mma"
    assert families(file, (2, 20, 1, 1), most_shared=least - 1)[0] == "gemm"
    *_, portable = list(file["_RECORDED"].values())[2]
    assert portable.shared_bytes <= 99 * 1024 and portable.columns_together == 1


def test_gradients(file: Namespace) -> None:
    theirs, ours = pair(file)
    x = torch.randn(2, 20, 1, 1)
    gradients = []
    for model in (theirs, ours):
        leaf = x.clone().requires_grad_()
        model(leaf).square().sum().backward()
        gradients.append([leaf.grad, *(parameter.grad for parameter in model.parameters())])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_text_compiles(file: Namespace, arch: str) -> None:
    kernels = list(file["_module_kernels"](file["ModelNew"]()))
    assert len(kernels) == 3
    for kernel in kernels:
        source = file["_cuda_source"](kernel)
        assert source.count('extern "C" __global__ void') == 2  # and what prepares its weights
        compile_source(source, arch)


def test_the_text_compiles_where_there_are_no_such_tensor_cores(file: Namespace) -> None:
    kernels = list(file["_module_kernels"](file["ModelNew"](), file["_Gpu"](0, False, 40)))
    for kernel in kernels:
        source = file["_cuda_source"](kernel)
        assert "PlainTile" in source and "MmaShape" not in source
        compile_source(source, "sm_75")


def test_the_file_keeps_the_rules_of_written_files(text: str, model_file: Callable[[str], Path]) -> None:
    assert text == generated_text(model_file(MODEL), families=["mma"])
    assert not re.search(r"\b(try|except|pass)\b", text)
    compile(text, "<file>", "exec")
    assert "mma: " in text.partition("import")[0]
