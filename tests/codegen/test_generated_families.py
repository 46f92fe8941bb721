"""Files whose layers run on tensor cores: the same answers at every size, in the recorded types, on GPUs with them.

Of the model's layers the first is recorded for inputs of one pixel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import Namespace, executed, generated_text, kernels_of, launched, settled_layers, silent, told

from tconv.jit.loader import compile_kept

pytestmark = pytest.mark.rotates(4)  # each takes seconds

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


LAYERS = ("first", "second", "last")
NAMES = [f"conv_{name}" for name in LAYERS]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = tmp_path_factory.mktemp("families") / "model.py"
    model.write_text(MODEL)
    return generated_text(model, families=["mma"])


@pytest.fixture(scope="module")
def in_all_types(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text with kernels for 16-bit types, too."""
    model = tmp_path_factory.mktemp("types") / "model.py"
    model.write_text(MODEL)
    return generated_text(model, families=["mma"], types=("float16", "bfloat16"))


@pytest.fixture
def file(text: str) -> Namespace:
    namespace = executed(text)
    namespace["launches"] = launched(namespace)
    return namespace


def pair(file: Namespace, *arguments: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    original: Namespace = {}
    exec(MODEL, original)
    theirs, ours = original["Model"](*arguments), file["ModelNew"](*arguments)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def close(file: Namespace, shape: tuple[int, ...]) -> list[Any]:
    """By these kernels, without a word, the model computes what float64 says."""
    theirs, ours = pair(file)
    x = torch.randn(shape)
    del file["launches"][:]
    with silent():
        y = ours(x)
    torch.testing.assert_close(y.double(), theirs.double()(x.double()), rtol=1e-3, atol=1e-3)
    assert [launch.kernel.name.replace("_any_size", "") for launch in file["launches"]] == NAMES
    return [launch.kernel for launch in file["launches"]]


def test_the_sizes_of_get_inputs(file: Namespace) -> None:
    assert [kernel.name for kernel in close(file, (2, 20, 1, 1))] == NAMES
    assert {kernel.family for kernel in kernels_of(file)} == {"mma"}


def test_other_batches(file: Namespace) -> None:
    for batch in (1, 5):
        assert [kernel.name for kernel in close(file, (batch, 20, 1, 1))] == NAMES


def test_beside_a_kernel_for_one_input_an_axis_stands_one_for_any_size(file: Namespace) -> None:
    """The first layer was compiled with every tap as a phase."""
    recorded = [(kernel.name, kernel.single) for kernel in next(iter(file["_RECORDED"].values()))]
    assert recorded == [("conv_first", (1, 2)), ("conv_first_any_size", ())]
    for size in ((1, 1), (2, 1), (1, 3), (2, 3)):
        first, *others = close(file, (2, 20, *size))
        assert first.name == "conv_first" + "_any_size" * (size != (1, 1))
        assert not any(kernel.single for kernel in others)


@pytest.mark.parametrize("bad", [(1, 2), (2, 1), (2,)])
def test_a_kernel_for_one_input_an_axis_is_not_for_more(file: Namespace, bad: tuple[int, ...]) -> None:
    layer, (_, second) = next(iter(file["_RECORDED"].items()))
    file["_RECORDED"][layer] = [second._replace(single=bad)]
    options = ((1, 1), (0, 0), (0, 0), 1, (1, 1))
    launch_for = file["_launch_for"]
    of_sizes = [
        launch_for(torch.device("cpu"), torch.float32, (2, 20, *size), (20, 24, 4, 4), (24,), options)
        for size in ((1, 1), (1, 3), (2, 1), (2, 3))
    ]
    takes = [all(size[axis - 1] == 1 for axis in bad) for size in ((1, 1), (1, 3), (2, 1), (2, 3))]
    assert [not isinstance(found, str) for found in of_sizes] == takes
    assert {found for found in of_sizes if isinstance(found, str)} == {"none takes an input of this size"}


WIDE = MODEL.replace("[torch.randn(2, 20, 1, 1)]", "[torch.randn(1, 20, 9, 32)]")


def test_rows_that_do_not_divide_into_what_is_loaded_at_once(model_file: Callable[[str], Path]) -> None:
    file = executed(generated_text(model_file(WIDE), "fp32", families=["mma"]))
    file["launches"] = launched(file)
    first = next(iter(file["_RECORDED"].values()))
    assert [kernel.columns for kernel in first] == [4, 1]
    for width in (32, 31, 30, 29, 36):
        kernel = close(file, (1, 20, 9, width))[0]
        assert (kernel.name, kernel.columns) == (("conv_first_any_size", 1) if width % 4 else ("conv_first", 4))
    # A row further on in memory: what is loaded at once does not begin where it should.
    theirs, ours = pair(file)
    x = torch.randn(1 + 20 * 9 * 32)[1:].view(1, 20, 9, 32)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    assert file["launches"][-3].kernel.columns == 4


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
    launches = launched(file)
    assert [kernel.single for kernel in kernels_of(file)] == [(1, 2), ()]
    original: Namespace = {}
    exec(model_file(model).read_text(), original)
    theirs, ours = original["Model"](), file["ModelNew"]()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(64, 16, 1, 1)
    with silent():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-3, atol=1e-3)
    assert [launch.kernel.single for launch in launches] == [(1, 2), ()]


# ---- types


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_types_that_were_asked_for_have_kernels(in_all_types: str, dtype: str) -> None:
    file = executed(in_all_types)
    launches = launched(file)
    theirs, ours = pair(file)
    kind = getattr(torch, dtype)
    ending = "" if dtype == "float32" else f"_{dtype}"
    for shape in ((2, 20, 1, 1), (1, 20, 3, 5)):
        x = torch.randn(shape).to(kind)
        del launches[:]
        with silent():
            y = ours.to(kind)(x)
        expected = theirs.to(kind).double()(x.double())
        near = 1e-3 if dtype == "float32" else 2e-2
        assert y.dtype == kind
        torch.testing.assert_close(y.double(), expected, rtol=near, atol=near)
        names = [launch.kernel.name.replace("_any_size", "") for launch in launches]
        assert names == [f"conv_{name}{ending}" for name in LAYERS]
        theirs.to(torch.float32)


def test_kernels_are_recorded_by_type_and_name(in_all_types: str, text: str) -> None:
    file = executed(in_all_types)
    names = {(layer.dtype, layer.in_channels): [k.name for k in ks] for layer, ks in file["_RECORDED"].items()}
    assert len(names) == len(file["_RECORDED"]) == 9
    for dtype, ending in ((torch.float32, ""), (torch.float16, "_float16"), (torch.bfloat16, "_bfloat16")):
        for name, channels in zip(LAYERS, (20, 24, 16), strict=True):
            first, *others = names[dtype, channels]
            assert first == f"conv_{name}{ending}" and others in ([], [f"{first}_any_size"])
    assert [kernel.tf32 for kernel in kernels_of(file)] == [
        layer.dtype == torch.float32 and kernel.tf32 for layer, ks in file["_RECORDED"].items() for kernel in ks
    ]
    head, own = in_all_types.partition("\n\n")[0], text.partition("\n\n")[0]
    assert "# Made for float32 and float16 and bfloat16 only (others: --types), at any batch and map size." in head
    assert (
        "# Made for float32 only (others: --types), at any batch and map size.\n# Runs on tensor cores from 8.0 on."
        in own
    )
    for use in ("float16: mma: ", "bfloat16: mma: "):
        assert head.count(f" {use}") == 3 and use not in own
    assert len(executed(text)["_RECORDED"]) == 3


def test_a_type_that_was_not_asked_for_is_pytorchs(file: Namespace) -> None:
    theirs, ours = pair(file)
    x = torch.randn(2, 20, 1, 1).half()
    with told() as said:
        assert torch.equal(ours.half()(x), theirs.half()(x))
    assert len(said) == 3 and not file["launches"]
    words = "its kernels are for float32, not for float16: tconv optimize --types makes others"
    assert all(each.endswith(words) for each in said)


def test_the_words_name_all_types(in_all_types: str) -> None:
    file = executed(in_all_types)
    launched(file)
    with told() as said:
        file["ModelNew"]().double()(torch.randn(1, 20, 1, 1).double())
    assert len(said) == 3 and all("for float32, float16, bfloat16, not for float64" in each for each in said)


def test_a_model_in_16_bits_with_kernels_for_float32(model_file: Callable[[str], Path]) -> None:
    text = MODEL.replace("torch.randn(2, 20, 1, 1)", "torch.randn(2, 20, 1, 1).bfloat16()")
    text = text.replace("bias=False)", "bias=False).bfloat16()").replace("4)\n", "4).bfloat16()\n")
    text = text.replace("output_padding=1)", "output_padding=1).bfloat16()")
    file = executed(generated_text(model_file(text), families=["mma"], types=("float32", "bfloat16")))
    launches = launched(file)
    assert [layer.dtype for layer in file["_RECORDED"]] == [torch.bfloat16, torch.float32] * 3
    assert kernels_of(file)[0].name == "conv_first"
    for dtype, ending in ((torch.bfloat16, ""), (torch.float32, "_float32")):
        del launches[:]
        with silent():
            file["ModelNew"]().to(dtype)(torch.randn(2, 20, 1, 1).to(dtype))
        assert [launch.kernel.name for launch in launches] == [f"conv_{name}{ending}" for name in LAYERS]


def test_layers_of_two_types_say_theirs(model_file: Callable[[str], Path]) -> None:
    text = MODEL.replace("output_padding=1)", "output_padding=1).half()").replace(
        "self.last(torch.relu(self.second(torch.relu(self.first(x)))))",
        "self.last(torch.relu(self.second(torch.relu(self.first(x)))).half())",
    )
    file = executed(generated_text(model_file(text), families=["mma"]))
    launches = launched(file)
    with silent():
        file["ModelNew"]()(torch.randn(2, 20, 1, 1))
    names = [launch.kernel.name for launch in launches]
    assert names == ["conv_first_float32", "conv_second_float32", "conv_last_float16"]


def test_variants_are_named_by_their_use(model_file: Callable[[str], Path]) -> None:
    (first, *_) = settled_layers(model_file(MODEL), families=["mma"], types=("float16", "float32"))
    assert list(first.variants) == ["", "any size", "float16", "float16, any size"]
    assert first.variants[""] is first.plan and first.variants["any size"] is first.any_size
    assert [len(plans) for plans in first.groups] == [2, 2]
    dtypes = [plan.problem.layer.dtype for plan in first.variants.values()]
    assert dtypes == ["float32", "float32", "float16", "float16"]
    assert all(plan.kernel.layer.dtype == plan.problem.layer.dtype for plan in first.variants.values())


# ---- arguments


def test_other_constructor_arguments_are_pytorchs(file: Namespace) -> None:
    """Where they are other layers: the last one is as it was."""
    theirs, ours = pair(file, 7)
    x = torch.randn(2, 20, 1, 1)
    with told() as said:
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-3, atol=1e-3)
    assert [launch.kernel.name for launch in file["launches"]] == ["conv_last"]
    assert len(said) == 2 and "conv_transpose2d 20→7," in said[0] and "conv_transpose2d 7→16," in said[1]
    assert all(each.endswith("none was made for these arguments of the layer") for each in said)


# ---- GPUs


@pytest.mark.parametrize(
    ("capability", "kilobytes"),
    [((7, 5), 99), ((8, 0), 163), ((8, 6), 99), ((8, 7), 163), ((9, 0), 227), ((10, 0), 227), ((12, 0), 99)],
)
@pytest.mark.parametrize("cuda", ["11.8", "12.0", "13.0"])
def test_which_gpus_run_what(
    text: str, cuda: str, capability: tuple[int, int], kilobytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And which run sm_90a: Hopper's, by compilers that know it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    properties = SimpleNamespace(multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    file = executed(text)
    assert file["_gpu"](torch.device("cpu")) is None
    gpu = file["_gpu"](torch.device("cuda", 0))
    assert gpu == (capability, kilobytes * 1024, 40)
    sm_90a = capability == (9, 0) and cuda != "11.8"
    arch = "90a" if sm_90a else "{}{}".format(*capability)
    flags = file["_load_options"]("mma", capability)["extra_cuda_cflags"]
    assert f"-gencode=arch=compute_{arch},code=sm_{arch}" in flags
    assert ("-DTCONV_OVERLAPS" in flags) == (capability >= (9, 0))
    kernel = kernels_of(file)[0]._replace(shared_bytes=99 * 1024)
    runs_on = file["_runs_on"]
    assert runs_on(kernel, gpu) == (capability >= (8, 0))
    assert runs_on(kernel._replace(family="direct"), gpu)
    assert runs_on(kernel._replace(family="wgmma", shared_bytes=227 * 1024), gpu) == sm_90a


def test_gpus_before_7_5_run_none(text: str) -> None:
    file = executed(text)
    gpu = file["_Gpu"]((7, 0), 99 * 1024, 80)
    kernel = kernels_of(file)[0]
    assert not any(file["_runs_on"](kernel._replace(family=family), gpu) for family in ("direct", "mma", "wgmma"))


def test_a_gpu_with_less_shared_memory_than_planned_for(text: str) -> None:
    """Then the next kernel, and where none is left, PyTorch."""
    file = executed(text)
    runs_on = file["_runs_on"]
    launches = launched(file)
    file["_runs_on"] = runs_on
    layer, (first, second) = next(iter(file["_RECORDED"].items()))
    file["_RECORDED"][layer] = [first._replace(shared_bytes=90_000), second._replace(shared_bytes=80_000)]
    model, x = file["ModelNew"](), torch.randn(2, 20, 1, 1)
    for most, name in ((90_000, "conv_first"), (89_999, "conv_first_any_size"), (80_000, "conv_first_any_size")):
        file["_gpu"] = lambda device, most=most: file["_Gpu"]((8, 0), most, 40)
        file["_launch_for"].cache_clear()
        del launches[:]
        with silent():
            model.first(x)
        assert [launch.kernel.name for launch in launches] == [name]
    file["_gpu"] = lambda device: file["_Gpu"]((8, 0), 79_999, 40)
    file["_launch_for"].cache_clear()
    with told() as said:
        model.first(x)
    assert len(launches) == 1 and said[0].endswith("none runs on a GPU of compute capability 8.0")


def test_gradients(file: Namespace) -> None:
    theirs, ours = pair(file)
    x = torch.randn(2, 20, 1, 1)
    gradients = []
    for model in (theirs, ours):
        leaf = x.clone().requires_grad_()
        model(leaf).square().sum().backward()
        gradients.append([leaf.grad, *(parameter.grad for parameter in model.parameters())])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)
    assert len(file["launches"]) == 3


# ---- the text


@pytest.mark.rotates(6)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"])
def test_the_text_compiles(in_all_types: str, arch: str) -> None:
    file = executed(in_all_types)
    kernels, source = kernels_of(file), file["_CUDA"]["mma"]
    assert source.count('extern "C" __global__ void') == 2 * len(kernels)  # and what prepares its weights
    compile_kept(source, arch, name="tconv_kernel")


def test_the_file_keeps_the_rules_of_written_files(text: str, in_all_types: str, model_file: Any) -> None:
    path = model_file(MODEL)
    assert text == generated_text(path, families=["mma"])
    assert in_all_types == generated_text(path, families=["mma"], types=("float16", "bfloat16"))
    for each in (text, in_all_types):
        assert not re.search(r"\b(try|except|pass)\b", each)
        compile(each, "<file>", "exec")
        assert "mma: " in each.partition("import")[0]
        assert max(map(len, each.splitlines())) <= 120
