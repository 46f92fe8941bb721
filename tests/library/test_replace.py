"""`tconv.optimize` and `tconv.restore`: which layers change, and that nothing else does."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

import tconv
from tconv.modules import Layer
from tconv.planner import Plan


class _Subclass(torch.nn.ConvTranspose2d):
    """With torch's forward, and something of its own."""

    gain = 3

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.note = "mine"


class _Scaled(torch.nn.ConvTranspose2d):
    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        return 2 * super().forward(input, output_size)


class _WithFrozen(torch.nn.ConvTranspose2d):
    frozen = False


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    shared = torch.nn.ConvTranspose2d(4, 4, 2)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.Sequential(shared, torch.nn.ReLU(), shared),
        torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
        _Subclass(6, 2, 2),
    )


def test_layers_become_tconvs_and_torchs_again() -> None:
    model, x = _model(), torch.randn(2, 3, 5, 6)
    expected, names, parameters = model(x), model.state_dict().keys(), list(model.parameters())
    layers, seen = list(model.modules()), []
    model[2].register_forward_hook(lambda module, inputs, output: seen.append(type(module)))
    text = repr(model)
    for _ in range(2):
        assert tconv.optimize(model) is model
        assert [type(layer) for layer in (model[1][0], model[1][2], model[2])] == [tconv.ConvTranspose2d] * 3
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    assert tconv.restore(model) is model
    assert [type(layer) for layer in (model[1][0], model[2])] == [torch.nn.ConvTranspose2d] * 2
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    assert seen == [tconv.ConvTranspose2d] * 2 + [torch.nn.ConvTranspose2d]
    assert all(a is b for a, b in zip(layers, model.modules(), strict=True))
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert (model.state_dict().keys(), repr(model)) == (names, text)


def test_what_is_left_stays_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    patched = torch.nn.ConvTranspose2d(4, 4, 2)
    patched.forward = lambda input: input  # type: ignore[assignment,method-assign]
    layers = {
        "scaled": (_Scaled(6, 2, 2), "its class _Scaled has a forward of its own"),
        "lazy": (torch.nn.LazyConvTranspose2d(2, 2), "it has no weights before its first input: call the model once"),
        "patched": (patched, "its forward was replaced"),
        "frozen": (_WithFrozen(4, 4, 2), "its class _WithFrozen has an attribute `frozen` of its own"),
        "ours": (torch.nn.ConvTranspose2d(4, 4, 2), None),
    }
    model = torch.nn.ModuleDict({name: layer for name, (layer, _) in layers.items()})
    before = {name: type(layer) for name, (layer, _) in layers.items()}
    with caplog.at_level(logging.INFO, "tconv"):
        tconv.optimize(model, freeze=True)
    taken, left = (record.getMessage() for record in caplog.records)
    assert taken == "taken over from PyTorch: ours"
    for name, (layer, why) in layers.items():
        assert (type(layer) is before[name]) == (why is not None)
        assert why is None or f"{name} ({why}" in left


def _saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), _saved])
def test_subclasses_with_torchs_forward_are_taken(twin_of: Callable[[Any], Any], as_cuda: list[Plan]) -> None:
    layer, x = _Subclass(6, 2, 2), torch.randn(2, 6, 5, 6)
    expected, text = layer(x), repr(layer)
    assert not as_cuda
    assert tconv.optimize(layer) is layer
    for own in (layer, twin_of(layer)):
        assert isinstance(own, _Subclass) and isinstance(own, Layer)
        assert (repr(own), own.gain, own.note) == (text, 3, "mine")
        torch.testing.assert_close(own(x), expected)
        assert tconv.optimize(own) is own
        assert type(tconv.restore(own)) is _Subclass
        assert (own.note, len(list(own.parameters()))) == ("mine", 2)
    assert len(as_cuda) == 2


def test_a_subclass_of_ours_stays_what_it_is() -> None:
    class Own(tconv.ConvTranspose2d):
        pass

    layer = Own(2, 2, 2)
    assert type(tconv.restore(tconv.optimize(layer, freeze=True))) is Own


_PARAMETRIZATIONS: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer, dim=1),
    "of a subclass": parametrizations.weight_norm,
}


@pytest.mark.parametrize("name", _PARAMETRIZATIONS)
def test_parametrized_layers_are_taken(name: str, as_cuda: list[Plan]) -> None:
    torch.manual_seed(0)
    plain = (_Subclass if name == "of a subclass" else torch.nn.ConvTranspose2d)(6, 4, 3)
    layer = _PARAMETRIZATIONS[name](plain)
    twin, x = copy.deepcopy(layer), torch.randn(2, 6, 5, 6)
    text, names, before = repr(layer), layer.state_dict().keys(), type(layer).__base__
    tconv.optimize(layer, freeze=True)
    for own in (layer, copy.deepcopy(layer)):
        assert isinstance(own, Layer) and isinstance(own, before) and parametrize.is_parametrized(own)
        assert (repr(own), own.state_dict().keys()) == (text, names)
    for _ in range(3):  # in training spectral norm goes on with each call
        results = [module(x).square().sum() for module in (layer, twin)]
        gradients = [
            torch.autograd.grad(y, list(module.parameters())) for y, module in zip(results, (layer, twin), strict=True)
        ]
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)
    assert len(as_cuda) == 3
    tconv.restore(layer)
    assert type(layer).__base__ is before and not isinstance(layer, Layer)
    torch.testing.assert_close(layer(x), twin(x))
    assert len(as_cuda) == 3


def test_layers_stay_tconvs_when_parametrizations_are_removed() -> None:
    layer = tconv.optimize(parametrizations.weight_norm(torch.nn.ConvTranspose2d(4, 4, 2)))
    x = torch.randn(1, 4, 3, 3)
    expected = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is tconv.ConvTranspose2d
    torch.testing.assert_close(layer(x), expected)
    assert type(tconv.restore(layer)) is torch.nn.ConvTranspose2d


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_model_may_be_one_layer(dims: int) -> None:
    name = f"ConvTranspose{dims}d"
    layer = getattr(torch.nn, name)(2, 2, 2)
    assert type(tconv.optimize(layer)) is getattr(tconv, name)
    assert type(tconv.restore(layer)) is getattr(torch.nn, name)


@pytest.mark.parametrize("function", [tconv.optimize, tconv.restore])
def test_what_is_no_module_is_refused(function: object) -> None:
    with pytest.raises(TypeError, match=r"got a Tensor; allowed is a torch\.nn\.Module"):
        function(torch.zeros(2))  # type: ignore[operator]


def test_tconvs_kernels_run_then(as_cuda: list[Plan]) -> None:
    model, x = _model()[1:3], torch.randn(2, 4, 5, 6)
    expected = model(x)
    assert not as_cuda
    torch.testing.assert_close(tconv.optimize(model)(x), expected)
    assert len(as_cuda) == 3
    tconv.restore(model)(x)
    assert len(as_cuda) == 3
