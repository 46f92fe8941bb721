"""`tconv.optimize` and `tconv.restore`: which layers change, and that nothing else does."""

from __future__ import annotations

import pytest
import torch

import tconv
from tconv.planner import Plan


class _Subclass(torch.nn.ConvTranspose2d):
    pass


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


def test_other_classes_stay() -> None:
    parametrized = torch.nn.utils.parametrizations.weight_norm(torch.nn.ConvTranspose2d(4, 4, 2))
    layers = [_Subclass(6, 2, 2), torch.nn.LazyConvTranspose2d(2, 2), parametrized]
    before = [type(layer) for layer in layers]
    tconv.optimize(torch.nn.ModuleList(layers), freeze=True)
    assert [type(layer) for layer in layers] == before


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
