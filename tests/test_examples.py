"""The model files in examples/: the contract that they offer, and that they compute what they say."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

EXAMPLES = Path(__file__).parent.parent / "examples"
#: name: (constructor's arguments with their defaults, get_init_inputs(), shapes of get_inputs())
CONTRACTS: dict[str, tuple[dict[str, Any], list[Any], tuple[int, ...]]] = {
    "strided_dilated": (
        {"in_channels": ..., "out_channels": ..., "kernel_size": ..., "stride": 1, "padding": 0, "dilation": 1}
        | {"bias": False},
        [32, 64, 3, 5, 1, 2],
        (16, 32, 64, 128),
    ),
    "asymmetric_kernel": (
        {"in_channels": ..., "out_channels": ..., "kernel_size": ..., "stride": 1, "padding": 0, "output_padding": 0}
        | {"groups": 1, "bias": False},
        [64, 64, (3, 7)],
        (8, 64, 512, 512),
    ),
    "square_kernel": (
        {"in_channels": ..., "out_channels": ..., "kernel_size": ..., "stride": 1, "padding": 0, "output_padding": 0}
        | {"groups": 1, "bias": False},
        [64, 64, 3],
        (8, 64, 1024, 1024),
    ),
    "asymmetric_input_and_kernel": (
        {"in_channels": ..., "out_channels": ..., "kernel_size": ..., "stride": (1, 1), "padding": (0, 0)}
        | {"output_padding": (0, 0), "dilation": (1, 1), "groups": 1, "bias": False},
        [64, 128, (3, 5)],
        (64, 64, 128, 256),
    ),
    "unet": ({"in_channels": ..., "num_classes": ..., "width": 32}, [3, 2], (8, 3, 256, 256)),
    "vocoder": (
        {"mel_channels": ..., "channels": ..., "rates": (8, 8, 2, 2), "kernels": (16, 16, 4, 4)},
        [80, 256],
        (1, 80, 256),
    ),
}
SINGLE_LAYER = [name for name in CONTRACTS if name not in ("unet", "vocoder")]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_its_contract_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CONTRACTS)


@pytest.mark.parametrize("name", CONTRACTS)
def test_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, init_inputs, input_shape = CONTRACTS[name]
    module = load(name)
    parameters = list(inspect.signature(module.Model.__init__).parameters.values())[1:]
    assert {p.name: ... if p.default is p.empty else p.default for p in parameters} == arguments
    assert module.get_init_inputs() == init_inputs
    assert issubclass(module.Model, nn.Module) and module.Model.__doc__

    drawn: list[tuple[int, ...]] = []
    monkeypatch.setattr(torch, "rand", lambda *shape: drawn.append(shape) or torch.zeros(1))
    (x,) = module.get_inputs()
    assert drawn == [input_shape]
    assert x.dtype == torch.float32


@pytest.mark.parametrize("name", SINGLE_LAYER)
def test_single_layer_is_the_transposed_convolution_of_its_arguments(name: str) -> None:
    module = load(name)
    init_inputs = module.get_init_inputs()
    model = module.Model(*init_inputs)
    assert list(model.state_dict()) == ["conv_transpose2d.weight"]
    names = list(inspect.signature(module.Model.__init__).parameters)[1:]
    given = dict(zip(names, init_inputs, strict=False))
    x = torch.rand(2, given["in_channels"], 7, 9)
    expected = F.conv_transpose2d(
        x,
        model.conv_transpose2d.weight,
        stride=given.get("stride", 1),
        padding=given.get("padding", 0),
        dilation=given.get("dilation", 1),
    )
    assert torch.equal(model(x), expected)
    assert expected.shape[1] == given["out_channels"]


@pytest.mark.parametrize("name", SINGLE_LAYER)
def test_single_layer_takes_every_argument(name: str) -> None:
    """Each argument of the constructor reaches the layer: none is dropped or mixed up."""
    module = load(name)
    pairs = name == "asymmetric_input_and_kernel"
    values = {"stride": 3, "padding": 1, "output_padding": 2, "dilation": 2, "groups": 4, "bias": True}
    accepted = inspect.signature(module.Model.__init__).parameters
    asked = {key: value for key, value in values.items() if key in accepted}
    if pairs:
        asked |= {key: (asked[key], 1) for key in ("stride", "padding", "dilation")} | {"output_padding": (2, 0)}
    layer = module.Model(8, 12, (3, 2) if "asymmetric" in name else 3, **asked).conv_transpose2d
    assert (layer.bias is not None) == asked.pop("bias")
    for key, value in asked.items():
        assert getattr(layer, key) == (value if isinstance(value, tuple) or key == "groups" else (value, value)), key


def test_unet_doubles_four_times_and_uses_its_skips() -> None:
    model = load("unet").Model(3, 2, width=4).eval()
    ups = [layer for layer in model.modules() if isinstance(layer, nn.ConvTranspose2d)]
    assert [(up.kernel_size, up.stride) for up in ups] == [((2, 2), (2, 2))] * 4
    assert [(up.in_channels, up.out_channels) for up in ups] == [(64, 32), (32, 16), (16, 8), (8, 4)]
    x = torch.rand(2, 3, 32, 48)
    with torch.no_grad():
        y = model(x)
        assert y.shape == (2, 2, 32, 48)
        for up in model.ups:
            up.up.weight.zero_()
            up.up.bias.zero_()
        through_skips = model(x)
    # Without what comes up, the first skip alone decides, and it sees the image.
    assert not torch.equal(through_skips, y)
    assert through_skips.std() > 1e-4


def test_vocoder_makes_a_waveform() -> None:
    model = load("vocoder").Model(80, 16).eval()
    ups = [layer for layer in model.modules() if isinstance(layer, nn.ConvTranspose1d)]
    geometry = [(*up.kernel_size, *up.stride, *up.padding) for up in ups]
    assert geometry == [(16, 8, 4), (16, 8, 4), (4, 2, 1), (4, 2, 1)]
    assert all(nn.utils.parametrize.is_parametrized(up, "weight") for up in ups)
    with torch.no_grad():
        wave = model(torch.rand(1, 80, 5))
        assert wave.shape == (1, 1, 5 * 256)
        model.conv_post.bias.fill_(100.0)
        assert torch.equal(model(torch.rand(1, 80, 5)), torch.ones(1, 1, 5 * 256))
