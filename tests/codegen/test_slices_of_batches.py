"""Batches whose offsets do not fit into 32 bits: launched a slice of the batch at a time, with the same result."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from codegen_helpers import Namespace, executed, function_of, fused_text, generated_text, launched, silent, told
from torch import Tensor, nn

MODEL = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 5, 3, 2, 1)
            self.dense = nn.ConvTranspose2d(5, 16, 3)

        def forward(self, x):
            return self.dense(self.up(x))

    def get_inputs():
        return [torch.rand(4, 3, 5, 7)]
"""
#: the layer's epilogue reads tensors with a value for each output, each sample and each channel.
EPILOGUE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 5, 3, 2, 1)
            self.scale = nn.Parameter(torch.rand(5, 1, 1))
        def forward(self, x, skip, gate):
            return torch.relu(self.up(x) * self.scale) * gate + skip

    def get_inputs():
        return [torch.rand(2, 3, 3, 5), torch.rand(2, 5, 5, 9), torch.rand(2, 5, 1, 1)]
"""
JOINED = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 5, 3, 2, 1)
        def forward(self, x, skip):
            return torch.cat([skip, torch.relu(self.up(x)), skip[:, :1]], 1)

    def get_inputs():
        return [torch.rand(2, 3, 3, 5), torch.rand(2, 2, 5, 9)]
"""
#: Whose gradient is a kernel's.
KNOWN = EPILOGUE.replace(
    "torch.relu(self.up(x) * self.scale) * gate + skip", "torch.clamp(self.up(x) + gate, 0) + skip"
)
TYPES = ("float16",)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("slices") / "model.py"
    found = {}
    for name, text in (("MODEL", MODEL), ("EPILOGUE", EPILOGUE), ("KNOWN", KNOWN), ("JOINED", JOINED)):
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        if name == "MODEL":
            found[name] = generated_text(path, "fp32", families=("direct", "mma"), types=TYPES)
        else:
            found[name] = fused_text(path, families=("direct", "mma"), types=TYPES)
    return found


def in_emulator(text: str, samples: int) -> tuple[Namespace, list[Any]]:
    """A file of which one launch takes so many samples, and what it launches: the batches and the tensors."""
    file = executed(text)
    launched(file)
    run, seen = file["_launch"], []
    file["_samples"] = lambda kernel, device, run, batch, *sizes: min(batch, samples)

    def launch(launch: Any, x: Tensor, weight: Tensor, bias: Any, y: Tensor, *operands: Tensor) -> None:
        seen.append((launch, x, y, operands))
        run(launch, x, weight, bias, y, *operands)

    file["_launch"] = launch
    return file, seen


def results(text: str, samples: int, inputs: list[Tensor], dtype: torch.dtype) -> tuple[list[Any], list[Tensor]]:
    """What is launched, and what comes out: of the file, and of the layer by itself."""
    file, seen = in_emulator(text, samples)
    torch.manual_seed(3)
    model = file["ModelNew"]().to(dtype)
    with torch.no_grad(), silent():
        return seen, [model(*inputs), model.up(inputs[0])]


@pytest.mark.rotates(24)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("samples", "batch"), [(16, 35), (17, 35), (31, 32), (32, 33), (47, 48), (16, 16), (40, 35)])
@pytest.mark.parametrize("name", ["MODEL", "EPILOGUE", "JOINED"])
def test_the_result_is_that_of_one_launch(
    texts: dict[str, str], name: str, samples: int, batch: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(batch)
    shapes = {
        "MODEL": [(batch, 3, 5, 7)],
        "EPILOGUE": [(batch, 3, 3, 5), (batch, 5, 5, 9), (batch, 5, 1, 1)],
        "JOINED": [(batch, 3, 3, 5), (batch, 2, 5, 9)],
    }[name]
    inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    whole, expected = results(texts[name], batch, inputs, dtype)
    parts, got = results(texts[name], samples, inputs, dtype)
    assert all(map(torch.equal, got, expected))
    assert [launch.kernel.name for launch, *_ in whole] == list(
        dict.fromkeys(launch.kernel.name for launch, *_ in parts)
    ) or name == "MODEL"
    size = batch if samples >= batch else samples // 16 * 16
    sizes = [min(size, batch - first) for first in range(0, batch, size)]
    assert [len(x) for _, x, *_ in parts] == sizes * len(whole)
    for launch, x, y, operands in parts:
        assert launch.batch == batch and launch.samples == size and len(x) == len(y)
        # What kernels load and store at once begins at multiples of 16 bytes; slices of channels know theirs.
        begins = [x, *operands, *[y] * (launch.y_channels == y.shape[1])]
        assert all(each.data_ptr() % 16 == 0 and each.is_contiguous() for each in begins)
    if name == "EPILOGUE":
        lengths = [[len(each) for each in operands] for *_, operands in parts if operands]
        assert lengths and all(sorted(set(each)) == sorted({size, 1}) or 5 in each for each in lengths[:-1])
    if name == "JOINED":
        assert any(launch.y_channels == 8 for launch, *_ in parts)


def test_operands_of_one_sample_stay_whole(texts: dict[str, str]) -> None:
    """What each channel has is the same for each slice; of the others each slice reads its own."""
    inputs = [torch.randn(shape) for shape in ((40, 3, 3, 5), (40, 5, 5, 9), (40, 5, 1, 1))]
    parts, _ = results(texts["EPILOGUE"], 16, inputs, torch.float32)
    of_epilogue = [(launch, operands) for launch, _, _, operands in parts if operands]
    names = executed(texts["EPILOGUE"])["_PROGRAMS"][of_epilogue[0][0].kernel.program]
    assert len(of_epilogue) == 3
    for number, (_, operands) in enumerate(of_epilogue):
        for name, operand in zip(names, operands, strict=True):
            if name.startswith(("output", "sample")):
                source = inputs[1] if name.startswith("output") else inputs[2]
                assert torch.equal(operand, source[16 * number : 16 * number + 16])
            else:
                assert operand.numel() in (1, 5)
                assert operand.data_ptr() == of_epilogue[0][1][names.index(name)].data_ptr()
    assert {name.rstrip("0123456789") for name in names} == {"output", "sample", "channel"}


def test_gradients_of_a_epilogue(texts: dict[str, str]) -> None:
    """The kernel that gives them reads what each sample has, the gradient that comes in among it."""
    inputs = [torch.randn(shape) for shape in ((40, 3, 3, 5), (40, 5, 5, 9), (40, 5, 1, 1))]
    found = []
    for samples in (16, 40):
        file, seen = in_emulator(texts["KNOWN"], samples)
        torch.manual_seed(3)
        model, given = file["ModelNew"](), [each.clone().requires_grad_() for each in inputs]
        result = model(*given)
        found.append(torch.autograd.grad(result, [*given, model.up.bias], result.detach().cos()))
        lengths = [len(x) for _, x, *_ in seen]
        assert lengths == ([40] if samples == 40 else [16, 16, 8]) * 2
        assert [launch.kernel.name for launch, *_ in seen][-1] == "conv_up_backward_2"
    assert all(map(torch.equal, *found))


def test_gradients(texts: dict[str, str]) -> None:
    file, seen = in_emulator(texts["MODEL"], 16)
    model, x = file["ModelNew"](), torch.randn(20, 3, 5, 7)
    theirs = nn.ConvTranspose2d(3, 5, 3, 2, 1)
    theirs.load_state_dict(model.up.state_dict())
    found = []
    for layer in (model.up, theirs):
        leaf = x.clone().requires_grad_()
        layer(leaf).square().sum().backward()
        found.append([leaf.grad, layer.weight.grad, layer.bias.grad])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    assert [len(x) for _, x, *_ in seen] == [16, 4]


def test_in_channels_last(texts: dict[str, str]) -> None:
    file, seen = in_emulator(texts["MODEL"], 16)
    x, up = torch.randn(18, 3, 5, 7), file["ModelNew"]().up
    with torch.no_grad():
        y = up(x.contiguous(memory_format=torch.channels_last))
        assert y.is_contiguous(memory_format=torch.channels_last) and torch.equal(y, up(x))
    assert [len(x) for _, x, *_ in seen] == [16, 2] * 2


@pytest.mark.parametrize("samples", [0, 1, 15])
def test_too_large_for_a_slice_is_pytorchs(texts: dict[str, str], samples: int) -> None:
    """Below 16 samples slices do not begin where kernels load from; as many as there are need no slice."""
    file, seen = in_emulator(texts["MODEL"], samples)
    generator = torch.Generator().manual_seed(1)
    shapes = ((samples + 1, 3, 5, 7), (3, 5, 3, 3), (5,))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    function = function_of(file, 2)
    with told() as said:
        assert torch.equal(function(x, weight, bias, 2, 1), F.conv_transpose2d(x, weight, bias, 2, 1))
        function(x, weight, bias, 2, 1)
    assert len(said) == 1 and said[0].endswith("it is too large for one launch") and not seen
    if samples:
        with silent():
            y = function(x[1:], weight, bias, 2, 1)
        torch.testing.assert_close(y, F.conv_transpose2d(x[1:], weight, bias, 2, 1), rtol=1e-3, atol=1e-3)
        assert [len(x) for _, x, *_ in seen] == [samples]


def test_with_a_epilogue_that_is_too_large(texts: dict[str, str]) -> None:
    """The layer and its epilogue are PyTorch's then."""
    file, seen = in_emulator(texts["EPILOGUE"], 15)
    model = file["ModelNew"]()
    inputs = [torch.randn(shape) for shape in ((16, 3, 3, 5), (16, 5, 5, 9), (16, 5, 1, 1))]
    with torch.no_grad(), told() as said:
        y = model(*inputs)
        expected = torch.relu(F.conv_transpose2d(inputs[0], model.up.weight, model.up.bias, 2, 1) * model.scale)
    assert torch.equal(y, expected * inputs[2] + inputs[1]) and not seen and len(said) == 1


def test_the_committed_text_says_16(texts: dict[str, str]) -> None:
    """What checks of written files slice by is what the files slice by."""
    from tconv.sandbox.cut import SLICED

    assert SLICED == 16
    for text in texts.values():
        assert f"samples // {SLICED} * {SLICED}" in text
