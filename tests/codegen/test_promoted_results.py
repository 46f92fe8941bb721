"""Files whose kernels compute results that a float32 operand makes float32, behind layers of 16 bits: in the emulator.

So it is under autocast, where parameters stay float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from codegen_helpers import silent
from epilogue_files import Made, maker
from torch import Tensor

from tconv.sandbox.notes import Notes

MODEL = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(5, 6, 3, 2, 1, 1)
            self.shift, self.all = nn.Parameter(torch.rand(6, 1, 1)), nn.Parameter(torch.tensor(0.5))
            self.slope = nn.Parameter(torch.rand(1))
        def forward(self, x, skip):
            BODY

    def get_inputs():
        return [torch.rand(2, 5, 4, 5), torch.rand(2, 6, 8, 10)]
"""
#: Epilogues of float32 parameters and a skip, and whether their results are float32 behind a layer of 16 bits.
BODIES = {
    "return torch.clamp(self.up(x) + self.shift, 0.0, 1.0) * 2 - skip": True,
    "return F.mish(self.up(x) * self.shift)": True,
    "return self.up(x) * self.all + self.shift": True,
    "y = self.up(x)\ny = y * self.shift\ny += skip\nreturn y": True,
    "y = self.up(x)\nreturn torch.where(y > 0.5, y, self.shift)": True,
    "return self.up(x) * self.all": False,
    "y = self.up(x)\ny += self.shift\nreturn y * 2": False,
    "y = self.up(x)\nreturn torch.where(y > self.shift, y, 0.0)": False,
}
FUNCTIONS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    lambda y, a, b: y + a,
    lambda y, a, b: (y + a) * b,
    lambda y, a, b: a - y / b,
    lambda y, a, b: y.mul_(a) + b,
    lambda y, a, b: (y + a).mul_(b),
    lambda y, a, b: y.add_(a).mul_(b),
    lambda y, a, b: F.relu(y + b, inplace=True) * a,
    lambda y, a, b: torch.where(y > a, y, y * 2) + b,
    lambda y, a, b: torch.where(a > b, y, 1.0),
    lambda y, a, b: torch.where(a > 0, y, b),
    lambda y, a, b: torch.maximum(torch.tanh(y), a) + (y > b),
    lambda y, a, b: torch.tensor(0.5) * y + (y >= a) * y,
    lambda y, a, b: F.batch_norm(y, torch.zeros(3), torch.ones(3), eps=0.1) * a,
    lambda y, a, b: F.batch_norm(y + a, torch.zeros(3), torch.ones(3)),
    lambda y, a, b: F.batch_norm(y, torch.zeros(3), torch.ones(3)),
]


#: Each writes a file.
rotates = pytest.mark.rotates(16)


def of_body(body: str) -> str:
    return MODEL.replace("BODY", body.replace("\n", "\n" + " " * 12))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return maker(tmp_path_factory.mktemp("promoted"))


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_types_are_pytorchs(number: int) -> None:
    """What is noted of an epilogue's type is what PyTorch gives, whichever of its operands is float32."""
    function = FUNCTIONS[number]
    operands = [torch.randn(2, 3, 4), torch.randn(1, 3, 1)]
    notes = Notes(torch.randn(2, 3, 4))
    notes.of(lambda y: function(y, *operands))
    numbers = {id(operand): place for place, operand in enumerate(notes.operands)}
    for wide in ((True, True), (True, False), (False, True), (False, False)):
        cast = [each if is_wide else each.bfloat16() for each, is_wide in zip(operands, wide, strict=True)]
        result = function(torch.randn(2, 3, 4).bfloat16(), *cast)
        promoted = any(
            is_wide and numbers.get(id(each)) in notes.promoting for each, is_wide in zip(operands, wide, strict=True)
        )
        assert promoted == (result.dtype == torch.float32)


def test_prelu_has_types_of_its_own() -> None:
    notes, slope = Notes(torch.randn(2, 3, 4)), torch.rand(3)
    notes.of(lambda y: F.prelu(y, slope) + torch.ones(1, 3, 1))
    assert len(notes.operands) == 2
    assert not notes.promoting


@rotates
@pytest.mark.parametrize("skip_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("body", BODIES)
def test_a_float32_parameter_behind_a_layer_of_16_bits(made: Made, body: str, skip_type: torch.dtype) -> None:
    file = made(of_body(body), ("bfloat16",))
    promoted = BODIES[body]
    ours, theirs = file.models()
    exact = file.models()[1].double()
    given = torch.randn(2, 5, 4, 5).bfloat16(), torch.rand(2, 6, 8, 10).to(skip_type)
    for layer in (ours.up, theirs.up):
        layer.bfloat16()
    exact.up.weight.data.copy_(theirs.up.weight)
    exact.up.bias.data.copy_(theirs.up.bias)
    sides = []
    for model in (ours, theirs, exact):
        of_model = [t.double() if model is exact else t for t in given]
        of_model = [t.detach().clone().requires_grad_() for t in of_model]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if not promoted else "error")  # that no kernel computes the epilogue
            result = model(*of_model)
        (result.double() * torch.arange(10) / 10).sum().backward()
        sides.append([result, *(t.grad for t in (*of_model, *model.parameters()))])
    assert any(file.programs) == promoted
    assert all(launch.kernel.program or not promoted for launch in file.launches)
    for got, pytorchs, right in zip(*sides, strict=True):
        assert (got is None) == (pytorchs is None)
        if got is not None:
            assert got.dtype == pytorchs.dtype
            allowed = 2 * (pytorchs - right).abs().max() + 1e-5 * right.abs().max()
            assert (got - right).abs().max() <= allowed


@rotates
def test_under_autocast(made: Made) -> None:
    """Layers are cast, and parameters behind them are not. Casts inside autograd are those of PyTorch."""
    file = made(of_body(next(iter(BODIES))), ("bfloat16",))
    ours, theirs = file.models()
    given = torch.randn(2, 5, 4, 5), torch.rand(2, 6, 8, 10)
    found = []
    for model in (ours, theirs):
        with silent(), torch.autocast("cpu", torch.bfloat16):
            result = model(*given)
        result.sum().backward()
        found.append([result, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert file.programs[0] and file.launches[0].kernel.tf32
    for got, wanted in zip(*found, strict=True):
        assert got.dtype == wanted.dtype == torch.float32
        assert torch.allclose(got, wanted, rtol=2e-2, atol=2e-2)


@rotates
def test_where_flags_forbid_tf32_pytorch_computes_it(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the layer would be computed in float32, which takes longer than in 16 bits."""
    file = made(of_body(next(iter(BODIES))), ("bfloat16",))
    ours, theirs = file.models()
    for layer in (ours.up, theirs.up):
        layer.bfloat16()
    given = torch.randn(2, 5, 4, 5).bfloat16(), torch.rand(2, 6, 8, 10)
    monkeypatch.setitem(file.ours, "_allows_tf32", lambda: False)
    with torch.no_grad():
        got, wanted = ours(*given), theirs(*given)
    assert file.programs == [""] and file.launches[0].kernel is not None
    assert got.dtype == wanted.dtype
    assert torch.allclose(got, wanted, rtol=2e-2, atol=2e-2)


@rotates
@pytest.mark.parametrize("types", [(), ("float64",)])
def test_files_of_one_width_have_no_word_of_it(made: Made, types: tuple[str, ...]) -> None:
    file = made(of_body(next(iter(BODIES))), types)
    assert "promotes" not in [
        name for each in file.ours["_EPILOGUES"].values() for name in each._fields if each.promotes
    ]
    assert file.ours["_EPILOGUES"]


@rotates
def test_a_shared_layer_has_kernels_of_both_types(made: Made) -> None:
    """Behind one layer stand an epilogue of its own type and one that is promoted, by turns."""
    body = "first = torch.relu(self.up(x)) * 2\nsecond = torch.relu(self.up(x)) - self.shift\nreturn first, second"
    file = made(of_body(body), ("bfloat16",))
    ours, theirs = file.models()
    for layer in (ours.up, theirs.up):
        layer.bfloat16()
    given = torch.randn(2, 5, 4, 5).bfloat16(), torch.rand(2, 6, 8, 10)
    with torch.no_grad(), silent():
        for _ in range(2):
            for got, wanted in zip(ours(*given), theirs(*given), strict=True):
                assert got.dtype == wanted.dtype
                assert torch.allclose(got.float(), wanted.float(), rtol=2e-2, atol=2e-2)
    assert all(file.programs)


@rotates
def test_concatenated(made: Made) -> None:
    body = "return torch.cat([skip, self.up(x) * self.shift], 1)"
    file = made(of_body(body), ("bfloat16",))
    ours, theirs = file.models()
    for layer in (ours.up, theirs.up):
        layer.bfloat16()
    x, skip = torch.randn(2, 5, 4, 5).bfloat16(), torch.rand(2, 6, 8, 10)
    for beside in (skip, skip.bfloat16()):
        with torch.no_grad(), silent():
            got, wanted = ours(x, beside), theirs(x, beside)
        assert got.dtype == wanted.dtype == torch.float32
        assert torch.allclose(got, wanted, rtol=2e-2, atol=2e-2)
    assert all(file.programs) and file.widths == [12, 0]
