"""Every single-layer example at other sizes, in the emulator, and with other arguments, which PyTorch runs."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from codegen_helpers import EXAMPLES, Namespace, executed, generated_text, kernels_of, launched, silent, told

from tconv.evaluation.equality import check_layer
from tconv.problem import Layer, Problem

#: A file is written in seconds: the same few in every test.
rotates = pytest.mark.rotates(6, by="name")
#: Keyword arguments besides channels and kernel_size; what an example does not take is left out.
FURTHER: list[tuple[int, int, dict[str, Any]]] = [
    (8, 12, {"stride": 2}),
    (8, 12, {"stride": 3, "padding": 1, "output_padding": 2, "dilation": 4, "bias": True}),
    (6, 10, {"groups": 2, "bias": True}),
    (12, 12, {"groups": 12, "stride": 2, "padding": 1, "output_padding": 1}),
    (1, 1, {"padding": 2, "dilation": 2}),
    (5, 3, {"stride": 7, "bias": True}),
    (16, 33, {"dilation": 3, "stride": 2, "output_padding": 2}),
    (9, 6, {"groups": 3, "dilation": 2, "stride": 4, "padding": 3, "output_padding": 3}),
    (3, 70, {"stride": 35, "padding": 1}),
    (64, 2, {"bias": True, "padding": 1}),
]
TAKES = {
    "strided_dilated": {"stride", "padding", "dilation", "bias"},
    "square_kernel": {"stride", "padding", "output_padding", "groups", "bias"},
    "asymmetric_kernel": {"stride", "padding", "output_padding", "groups", "bias"},
    "asymmetric_input_and_kernel": {"stride", "padding", "output_padding", "dilation", "groups", "bias"},
}


def arguments(name: str, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Constructor arguments of set `number`, as this example takes them: ints or pairs."""
    in_channels, out_channels, options = FURTHER[number]
    taken = {key: value for key, value in options.items() if key in TAKES[name]}
    if "dilation" not in taken and "output_padding" in taken:
        taken["output_padding"] = min(taken["output_padding"], taken.get("stride", 1) - 1)
    if name == "asymmetric_input_and_kernel":
        for key in ("stride", "padding", "output_padding", "dilation"):
            if key in taken:  # the second axis differs where it may
                taken[key] = (taken[key], {"padding": 0, "output_padding": 0}.get(key, max(1, taken[key] - 1)))
    kernel_size = (2 + number % 3, 1 + number % 4) if "asymmetric" in name else 2 + number % 3
    return (in_channels, out_channels, kernel_size), taken


def problem_of(model: torch.nn.Module, x: torch.Tensor) -> Problem:
    layer = model.conv_transpose2d
    used = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    axes = [(fill, *values) for values, fill in zip(used, (1, 1, 0, 1), strict=True)]
    compiled = Layer(2, layer.in_channels, layer.out_channels, *axes, layer.groups, layer.bias is not None)
    return Problem(compiled, x.shape[0], (1, *x.shape[2:]), (0, *layer.output_padding))


@functools.cache
def texts(name: str) -> tuple[str, str]:
    path = EXAMPLES / f"{name}.py"
    return path.read_text(encoding="utf-8"), generated_text(path, "fp32")


def files(name: str) -> tuple[Namespace, Namespace]:
    """The globals of an example and of what is written for it, whose `launches` are kept."""
    theirs, ours = map(executed, texts(name))
    ours["launches"] = launched(ours)
    return theirs, ours


#: Batch, height and width: rows that divide into whatever is loaded at once, and rows that do not.
SIZES = [(1, 1, 1), (2, 5, 7), (3, 6, 8), (1, 9, 33), (2, 3, 16), (17, 2, 3)]


@rotates
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TAKES)
def test_other_sizes(name: str, size: tuple[int, int, int]) -> None:
    theirs, ours = files(name)
    args = ours["get_init_inputs"]()
    model, candidate = theirs["Model"](*args), ours["ModelNew"](*args)
    layer = candidate.conv_transpose2d
    batch, height, width = size
    x = torch.randn(batch, layer.in_channels, height, width)
    problem = problem_of(model, x)

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        with torch.no_grad(), silent():
            layer.weight.copy_(weight)
            if bias is not None:
                layer.bias.copy_(bias)
            y: torch.Tensor = candidate(x)
            return y

    verdict = check_layer(call, problem, "fp32", draw_count=1, awkward=size == SIZES[1])
    assert verdict.equal, verdict.reasons
    names = {launch.kernel.name for launch in ours["launches"]}
    assert len(names) == 1 and names <= {kernel.name for kernel in kernels_of(ours)}


@rotates
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("name", TAKES)
def test_further_arguments(name: str, number: int) -> None:
    """The same parameters, PyTorch's results and gradients, and one warning."""
    args, kwargs = arguments(name, number)
    theirs, ours = files(name)
    torch.manual_seed(number)
    model = theirs["Model"](*args, **kwargs)
    torch.manual_seed(number)
    candidate = ours["ModelNew"](*args, **kwargs)
    assert model.state_dict().keys() == candidate.state_dict().keys()
    assert all(map(torch.equal, model.state_dict().values(), candidate.state_dict().values()))
    x, found = torch.randn(2, args[0], 5, 7), []
    with told() as said:
        for each in (model, candidate):
            leaf = x.clone().requires_grad_()
            y = each(leaf)
            y.square().sum().backward()
            found.append([y.detach(), leaf.grad, *(parameter.grad for parameter in each.parameters())])
        candidate(x)
    assert all(map(torch.equal, *found)) and not ours["launches"]
    assert len(said) == 1 and said[0].endswith("none was made for these arguments of the layer")
