"""A warm-up compiles side by side what a model's calls need, and leaves the model as it was. Without a GPU."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

import tconv
from tconv import epilogues, routes
from tconv.jit import loader

Layer = tconv.ConvTranspose2d


class Model(nn.Module):
    """Layers of two kinds, one of them called twice, with statistics and random numbers between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(32, 32, 3, stride=2), Layer(32, 16, 2, stride=2)
        self.norm, self.drop = nn.BatchNorm2d(32), nn.Dropout(0.5)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.seen.append(x)
        y = self.drop(self.norm(self.first(x))) + torch.rand(1)
        return self.second(y) * scale


X = torch.randn(1, 32, 8, 8)


def test_the_next_call_compiles_nothing(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    def build(kernel: Any, arch: str) -> loader.Built:
        built.append((kernel, len(as_cuda)))
        return loader.Built(kernel, b"cubin")

    monkeypatch.setattr(loader, "build", build)
    model = Model()
    found = tconv.warmup(model, X, scale=2.0)
    assert (found.calls, found.kernels) == (2, 2)
    assert len({kernel for kernel, _ in built}) == 2
    assert [launched for _, launched in built] == [0, 0], "all is compiled before anything is launched"
    launched = len(as_cuda)
    model(X, scale=2.0)
    assert len(as_cuda) == launched + 2
    assert len(built) == 2
    assert tconv.warmup(model, X) == tconv.WarmUp(0, 0, pytest.approx(0, abs=60))
    tconv.warmup(model, torch.cat([X, X]))
    assert len(built) <= 4


def test_kernels_are_compiled_side_by_side(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    both = threading.Barrier(2, timeout=30)

    def build(kernel: Any, arch: str) -> loader.Built:
        both.wait()
        return loader.Built(kernel, b"cubin")

    monkeypatch.setattr(loader, "build", build)
    told: list[tuple[int, int]] = []
    tconv.warmup(Model(), X, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_the_model_is_left_as_it_was(as_cuda: Any) -> None:
    model = Model().train()
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    tconv.warmup(model, X)
    after = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), after)
    assert model.training and model.drop.training and not model.norm.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(model.seen) == 2, "once to see the calls, once by the kernels"


def test_a_model_that_raises_is_put_back_and_nothing_stays_noted(as_cuda: Any) -> None:
    class Raises(Model):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            super().forward(x, scale)
            raise ArithmeticError("no")

    model = Raises().train()
    with pytest.raises(ArithmeticError):
        tconv.warmup(model, X)
    assert model.training and not as_cuda
    model.first(X)
    assert len(as_cuda) == 1, "calls run kernels again"


def test_frozen_weights_are_prepared(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decide = routes.decide
    monkeypatch.setattr(routes, "decide", lambda *args, **options: decide(*args, family="mma", **options))
    layer = tconv.optimize(nn.ConvTranspose2d(32, 32, 3, stride=2), freeze=True, example_inputs=(X,))
    assert len(as_cuda.prepared) == 1
    with torch.no_grad():
        layer(X)
    assert len(as_cuda.prepared) == 1


def test_an_epilogue_is_one_call(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch runs its layer alone, to see the model's calls, and that is none of them."""
    why_apart = epilogues.why_apart
    monkeypatch.setattr(epilogues, "why_apart", lambda *tensors: why_apart(*tensors, anywhere=True))
    epilogue = tconv.Epilogue(torch.relu)

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 8, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return tconv.conv_transpose2d(x, self.weight, epilogue=epilogue)

    assert tconv.warmup(Fused(), X).calls == 1
    assert [plan.problem.layer.epilogue for plan in as_cuda] == ["max(y, 0)"]


def test_a_kernel_that_does_not_compile_is_said(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel: Any, arch: str) -> loader.Built:
        if kernel.layer.out_channels == 16:
            raise tconv.CompileError("no")
        time.sleep(0.01)
        return loader.Built(kernel, b"cubin")

    monkeypatch.setattr(loader, "build", fails)
    with pytest.raises(tconv.CompileError):
        tconv.warmup(Model(), X)
    assert not as_cuda


def test_on_a_cpu_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    found = tconv.warmup(Model(), X, progress=True)
    assert (found.calls, found.kernels) == (0, 0)
    assert "nothing to warm up" in str(found)
    assert capsys.readouterr().out == ""


def test_a_bar_goes_to_standard_error(as_cuda: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 calls are warm, 2 kernels" in str(tconv.warmup(Model(), X, progress=True))
    assert capsys.readouterr().out == ""


def test_during_a_capture_it_is_refused(as_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    model = Model()
    with pytest.raises(tconv.NotWarmedUp, match="before the capture"):
        tconv.warmup(model, X)
    assert not model.seen
