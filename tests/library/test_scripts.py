"""TorchScript of the library's layers: it compiles torch's own forward, as it does of torch's layers."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

import tconv

#: Arguments of a layer from 4 to 6 channels, and by how much a result of another size is longer.
LAYERS: tuple[tuple[int, dict[str, Any], int], ...] = (
    (1, {"kernel_size": 4, "stride": 3}, 1),
    (2, {"kernel_size": (3, 2), "stride": 2, "padding": 1, "output_padding": 1, "groups": 2}, 0),
    (2, {"kernel_size": 3, "stride": (1, 2), "dilation": (1, 2), "bias": False}, 0),
    (3, {"kernel_size": (1, 2, 3), "stride": (2, 1, 3)}, 0),
)


def _layers(dims: int, options: dict[str, Any]) -> tuple[torch.nn.Module, torch.nn.Module, torch.Tensor]:
    """Ours and torch's with the same parameters, and an input."""
    torch.manual_seed(dims)
    ours = getattr(tconv, f"ConvTranspose{dims}d")(4, 6, **options)
    theirs = getattr(torch.nn, f"ConvTranspose{dims}d")(4, 6, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs, torch.randn(2, 4, *(5, 4, 3)[:dims], requires_grad=True)


def _restored(script: torch.jit.ScriptModule) -> Any:
    file = io.BytesIO()
    torch.jit.save(script, file)  # type: ignore[no-untyped-call]
    file.seek(0)
    return torch.jit.load(file)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("dims", "options", "longer"), LAYERS)
def test_a_layer(dims: int, options: dict[str, Any], longer: int) -> None:
    ours, theirs, x = _layers(dims, options)
    script = torch.jit.script(ours)
    expected = theirs(x)
    size = [extent + longer for extent in expected.shape[2:]]
    for module in (script, _restored(script)):
        assert torch.equal(module(x), expected)
        assert torch.equal(module(x, size), theirs(x, size))
        got = torch.autograd.grad(module(x).square().sum(), x)
        assert torch.equal(*got, *torch.autograd.grad(theirs(x).square().sum(), x))


@pytest.mark.parametrize("freeze", [True, False])
def test_an_optimized_model(freeze: bool) -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(4, 6, 4, 2, 1), torch.nn.ReLU(), torch.nn.ConvTranspose2d(6, 1, 2)
    )
    x = torch.randn(2, 4, 5, 3)
    expected = model(x)
    script = torch.jit.script(tconv.optimize(model.eval(), freeze=freeze))
    for module in (script, _restored(script), torch.jit.freeze(script)):
        torch.testing.assert_close(module(x), expected)
    assert torch.equal(torch.jit.script(tconv.restore(model))(x), expected)


def test_a_script_that_holds_a_layer() -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = tconv.ConvTranspose1d(3, 2, 4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.up(x)
            if y.shape[-1] > 10:  # which a trace would not keep
                y = -y
            return y

    outer = Outer()
    script = torch.jit.script(outer)
    for width in (3, 9):
        x = torch.randn(1, 3, width)
        torch.testing.assert_close(script(x), outer(x))
