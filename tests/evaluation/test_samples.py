"""Large inputs run a few samples at a time only where that gives what all of them give at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tconv.evaluation.files.process import by_samples
from tconv.evaluation.files.process.by_samples import run_by_samples

SAMPLES = 11


class Pair(nn.Module):
    """Two inputs, and outputs in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 2, 2)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Any]:
        return {"up": self.up(x) * scale, "both": (x.mean((1, 2, 3)), 7)}


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + 0


class BesideTheFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x[:1]


def run(module: nn.Module, values: Sequence[Any]) -> Any:
    with torch.no_grad():
        return module(*values)


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_samples, "_AT_ONCE_BYTES", 2 * image()[:1].nbytes + 8)


def image() -> Tensor:
    return torch.randn(SAMPLES, 3, 5, 5, generator=torch.Generator().manual_seed(0))


def test_containers_are_joined_in_order() -> None:
    module, x, scale = Pair(), image(), torch.arange(1.0, 1 + SAMPLES).view(-1, 1, 1, 1)
    got, expected = run_by_samples(run, module, [x, scale]), run(module, [x, scale])
    torch.testing.assert_close(got["up"], expected["up"])
    torch.testing.assert_close(got["both"][0], expected["both"][0])
    assert got["both"][1] == 7 and isinstance(got["both"], tuple)


@pytest.mark.parametrize("module", [nn.BatchNorm2d(3), nn.Dropout(), BesideTheFirst(), nn.Flatten(0)])
def test_samples_that_depend_on_each_other_are_not_run_apart(module: nn.Module) -> None:
    assert run_by_samples(run, module, [image()]) is None


def test_neither_is_what_has_another_first_axis() -> None:
    assert run_by_samples(run, nn.Conv1d(SAMPLES, 3, 2), [image()[:, :, 0, 0]]) is None
    assert run_by_samples(run, nn.Bilinear(2, 2, 2), [torch.randn(90, 2), torch.randn(80, 2)]) is None
    assert run_by_samples(run, nn.Identity(), [image()[:2]]) is None  # small


def test_inputs_stay_and_the_trial_leaves_no_state() -> None:
    x, counting = image(), Counting()
    before = x.clone()
    assert torch.equal(run_by_samples(run, InPlace(), [x]), 2 * before) and torch.equal(x, before)
    assert torch.equal(run_by_samples(run, counting, [x]), x) and counting.calls == -(-SAMPLES // 2)
    assert run_by_samples(run, nn.BatchNorm2d(3), [x]) is None
