"""Frozen weights in compiled models on a GPU: prepared while compiling, and right with whatever kernel runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tconv import compiler, dispatch, ops, routes
from tconv.compiler import backend
from tconv.jit import loader
from tconv.kernels.source import PREPARING
from tconv.tuning.trials import Distance

pytestmark = pytest.mark.gpu


def insist(monkeypatch: pytest.MonkeyPatch, family: str | None) -> None:
    for module in (compiler, ops, routes):
        monkeypatch.setattr(module, "decide", lambda *a, **k: dispatch.decide(*a, **k, family=family))
    monkeypatch.setattr(routes, "_routes", {})


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Has tensor cores run everything, freezes, and lists the memory of each preparation."""
    done: list[torch.Tensor] = []
    prepare = loader.Launcher._prepare

    def listed(*arguments: Any) -> torch.Tensor:
        done.append(prepare(*arguments))
        return done[-1]

    insist(monkeypatch, "mma")
    monkeypatch.setattr(loader.Launcher, "_prepare", listed)
    torch._dynamo.reset()
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        yield done
    torch._dynamo.reset()


class Model(nn.Module):
    """Two layers; behind each something that fuses, if there is an epilogue, else something that does not."""

    def __init__(self, epilogue: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.ConvTranspose2d(64, 64, 4, 2, 1), nn.BatchNorm2d(64)
        self.second, self.conv = nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.Conv2d(32, 8, 3)
        for values in (self.norm.weight, self.norm.bias, self.norm.running_mean):
            nn.init.normal_(values)  # type: ignore[arg-type]
        self.epilogue = epilogue
        self.eval().cuda()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.epilogue:
            x = self.second(functional.silu(self.norm(self.first(x))))
            return torch.tanh(self.conv(functional.leaky_relu(x, 0.2)))
        return torch.tanh(self.conv(self.second(self.first(x).cumsum(2) / 32).cumsum(3) / 32))


def drawn(size: int = 16, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, 64, size, size, device="cuda").to(dtype)


def near(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Within TF32's rounding of products, or that of the type."""
    tolerance = 4e-2 if got.dtype in (torch.bfloat16, torch.float16) else 4e-3
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("epilogue", [False, True])
def test_weights_are_prepared_once(
    epilogue: bool, mode: str | None, last: bool, dtype: torch.dtype, prepared: list[torch.Tensor]
) -> None:
    model = Model(epilogue).to(dtype)
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend=backend, mode=mode)
    for call in range(5):
        x = drawn(dtype=dtype)
        x = x.to(memory_format=torch.channels_last) if last else x
        got = compiled(x).clone()
        if call == 0:
            at_first = len(prepared)
            assert 2 <= at_first <= 4, "for each layer and memory format that may come"
        assert len(prepared) == at_first, "while the model was compiled"
        # In 16 bits both round on their way, PyTorch after each step.
        expected = exact(x.double())
        theirs = Distance.between(model(x), expected)
        assert Distance.between(got, expected).pooled <= 2 * theirs.pooled + 1e-6


@pytest.mark.parametrize("freezing", [False, True])
def test_a_call_launches_no_preparation(freezing: bool, prepared: list[torch.Tensor]) -> None:
    compiled, x = torch.compile(Model(), backend=backend), drawn()
    with torch._inductor.config.patch(freezing=freezing):
        for _ in range(3):
            compiled(x)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            compiled(x)
            torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    if loader._NAME not in names:
        pytest.skip("the profiler sees no kernels here")
    assert (PREPARING.format(loader._NAME) in names) != freezing


def test_another_kernel_after_compiling(prepared: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag for TF32 is read at each call."""
    model, x = Model(), drawn()
    expected = copy.deepcopy(model).double()(x.double()).float()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    compiled = torch.compile(model, backend=backend)
    near(compiled(x), expected)
    at_first = len(prepared)
    near(compiled(x), expected)
    assert len(prepared) == at_first
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    near(compiled(x), expected)
    before = len(prepared)
    near(compiled(x), expected)
    assert len(prepared) - before in (0, 2), "compiled anew for the flag, or prepared for each call"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    near(compiled(x), expected)


def test_the_operator_with_another_kernels_weights(
    prepared: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = drawn(), torch.randn(64, 48, 4, 4, device="cuda") / 16
    bytes_of_none = torch.zeros(64, dtype=torch.uint8, device="cuda")
    call = (x, weight, None, [2, 2], [1, 1], [0, 0], 1, [1, 1], "max(y, 0)", [], [bytes_of_none], ["of no kernel"])
    expected = torch.relu(functional.conv_transpose2d(x, weight, None, 2, 1))
    near(ops.LAYER_WITH_EPILOGUE(*call), expected)
    assert len(prepared) == 1
    monkeypatch.setattr(routes, "find_route", lambda *_: None)
    near(ops.LAYER_WITH_EPILOGUE(*call), expected)


@pytest.mark.parametrize("family", ["mma", "wgmma", None])
def test_two_models_that_differ_in_their_weights_alone(
    family: str | None, prepared: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's caches take their graphs for the same."""
    if family == "wgmma" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs Hopper")
    insist(monkeypatch, family)
    x = drawn()
    for factor in (1, -2):
        torch._dynamo.reset()
        model = Model()
        model.first.weight.data.mul_(factor)
        near(torch.compile(model, backend=backend)(x), model(x))


def test_sizes_that_become_dynamic(prepared: list[torch.Tensor]) -> None:
    model = Model()
    compiled = torch.compile(model, backend=backend)
    for size in (16, 16, 20, 24):
        x = drawn(size)
        near(compiled(x), model(x))
