"""The backend of torch.compile: what it fuses, where a chain ends, and that results stay PyTorch's. Without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph
from torch.nn import functional

import tconv
from tconv import compiler, ops
from tconv.jit import loader
from tconv.planner import Gpu

#: Each compiles by Inductor, without its caches.
pytestmark = pytest.mark.rotates(18)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """CPU tensors are taken for a GPU's; lists the programs that graphs call: an empty one for a layer alone."""
    found: list[str] = []
    of_pass = compiler.FuseEpilogues.__call__

    def note(self: compiler.FuseEpilogues, graph: Graph) -> None:
        of_pass(self, graph)
        found.extend(node.args[8] for node in graph.nodes if node.target is compiler._LAYER_WITH_EPILOGUE)

    monkeypatch.setattr(compiler.FuseEpilogues, "__call__", note)
    monkeypatch.setattr(compiler, "_is_ours", lambda value: True)
    monkeypatch.setattr(compiler, "why_pytorch", lambda call: None)
    monkeypatch.setattr(loader, "gpu_of", lambda device: Gpu.h200())
    torch._dynamo.reset()
    # Inductor's caches outlive a run, and what they hold runs no pass.
    with torch._inductor.config.patch(force_disable_caches=True):
        yield found
    torch._dynamo.reset()


class Up(nn.Module):
    """A layer and its epilogue."""

    def __init__(self, behind: Callable[..., Any], dims: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1](4, 8, 3, 2, 1, 1)
        self.norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](8)
        self.scale = nn.Parameter(torch.randn(8, *(1,) * dims))
        for values in (self.norm.weight, self.norm.bias, self.norm.running_mean):
            nn.init.normal_(values)  # type: ignore[arg-type]
        self.behind = behind
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.behind(self, self.up(x), *others)


def compare(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> None:
    compiled = torch.compile(model, backend="tconv", **options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)


X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(1))
SKIP = torch.randn(2, 8, 12, 10, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("behind", "program"),
    [
        (lambda m, y: torch.relu(y), "max(y, 0)"),
        (lambda m, y: functional.leaky_relu(y, 0.2) * m.scale, "where(y > 0, y, y * 0.2) * channel0"),
        (lambda m, y: torch.relu(m.norm(y)), None),
        (lambda m, y: functional.gelu(y) * 0.5, None),
        (lambda m, y: functional.silu(y) + functional.softplus(y), None),
        (lambda m, y: functional.mish(y), "t0 = exp(min(y, 20)); t1 = t0 * (t0 + 2); y * (t1 / (t1 + 2))"),
        (lambda m, y: y.clone().detach() * y + y, "y * y + y"),
        (lambda m, y: torch.min(y + 0.5, torch.tensor(0.0)), "min(y + 0.5, 0)"),
        (lambda m, y: torch.clamp(y, 0, 1) / 2, "min(max(y, 0), 1) / 2"),
        (lambda m, y: y, ""),
        (lambda m, y: y.cumsum(1), ""),
        (lambda m, y: torch.relu(y).cumsum(1), "max(y, 0)"),
        (lambda m, y: (torch.relu(y), y), ""),
        (lambda m, y: torch.relu(y) + y.mean(), ""),
        (lambda m, y: torch.cat([torch.relu(y), y * 2], 1), ""),
        (lambda m, y: functional.max_pool2d(functional.leaky_relu(y, 0.2), 2), "where(y > 0, y, y * 0.2)"),
    ],
)
def test_what_stands_behind_a_layer(behind: Callable[..., Any], program: str | None, calls: list[str]) -> None:
    compare(Up(behind), X)
    assert len(calls) == 1 and (calls[0] == program if program is not None else calls[0])


def test_other_tensors_and_a_chain_that_goes_on(calls: list[str]) -> None:
    compare(Up(lambda m, y, skip: torch.relu(y + skip) * skip), X, SKIP)
    assert calls == ["max(y + output0, 0) * output0"]


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions(dims: int, calls: list[str]) -> None:
    compare(Up(lambda m, y: torch.tanh(m.norm(y)), dims), torch.randn(2, 4, *(5, 4, 3)[:dims]))
    assert len(calls) == 1 and calls[0].startswith("tanh(")


def test_layers_one_behind_the_other(calls: list[str]) -> None:
    model = nn.Sequential(
        *(nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.ReLU(True), nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.Sigmoid()),
        *(nn.Conv2d(4, 4, 3), nn.ReLU()),
    )
    compare(model.eval().requires_grad_(False), X)
    assert sorted(calls) == ["max(y, 0)", "sigmoid(y)"]


def test_channels_last(calls: list[str]) -> None:
    model = Up(lambda m, y, skip: torch.relu(y) + skip).to(memory_format=torch.channels_last)
    compare(model, *(t.to(memory_format=torch.channels_last) for t in (X, SKIP)))
    assert calls == ["max(y, 0) + output0"]


def test_dynamic_shapes(calls: list[str]) -> None:
    model = Up(lambda m, y: torch.relu(y) * m.scale)
    compiled = torch.compile(model, backend="tconv", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for x in (X, torch.randn(3, 4, 9, 7), torch.randn(5, 4, 3, 11)):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert calls == ["max(y, 0) * channel0"]


@pytest.mark.parametrize(
    ("behind", "program"),
    [
        (lambda m, y: torch.relu(y), "max(y, 0)"),
        (lambda m, y: y * m.scale + 1, ""),
        (lambda m, y: functional.mish(y), ""),
        (lambda m, y: y + 1, "y + 1"),
    ],
)
def test_where_a_gradient_is_asked_for_what_backward_keeps_ends_the_chain(
    behind: Callable[..., Any], program: str, calls: list[str]
) -> None:
    model = Up(behind).requires_grad_(True)
    compiled = torch.compile(model, backend="tconv")
    x = X.clone().requires_grad_()
    of = [x, *model.up.parameters()]
    result = compiled(x)
    assert calls == [program]
    torch.testing.assert_close(result, model(x), rtol=1e-5, atol=1e-5)
    got, expected = (torch.autograd.grad(y.square().sum(), of) for y in (result, model(x)))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert calls == [program], "backward's graph has no transposed convolution"


def test_a_layer_of_ours_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operator, which the traced graph calls, has fewer arguments than the one that takes its place."""
    monkeypatch.setattr(ops, "_is_ordinary", lambda tensor, dtype: True)
    layer = tconv.ConvTranspose2d(4, 3, 3, stride=2)
    compiled = torch.compile(nn.Sequential(layer, nn.Conv2d(3, 2, 3)), backend="tconv", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), compiled._orig_mod(X))
    assert calls == [""]


def test_types_of_16_bits(calls: list[str]) -> None:
    model = Up(lambda m, y: functional.gelu(y) * m.scale).to(torch.bfloat16)
    compiled = torch.compile(model, backend="tconv")
    with torch.no_grad():
        got, expected = compiled(X.bfloat16()), model(X.bfloat16())
    assert got.dtype == torch.bfloat16 and len(calls) == 1 and "erf" in calls[0]
    torch.testing.assert_close(got, expected, rtol=5e-2, atol=5e-2)


class Own(CustomGraphPass):
    """A user's own pass."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Graph) -> None:
        self.graphs += 1

    def uuid(self) -> Any:
        return "own"


def test_the_users_own_pass_runs_too(calls: list[str]) -> None:
    own = Own()
    compare(Up(lambda m, y: torch.relu(y)), X, options={"post_grad_custom_pre_pass": own})
    assert own.graphs == 1 and calls == ["max(y, 0)"]
    assert "own" in compiler.FuseEpilogues(own).uuid()
    assert compiler.FuseEpilogues(lambda graph: None).uuid() is None


def test_modes(calls: list[str]) -> None:
    compare(Up(lambda m, y: torch.relu(y)), X, mode="reduce-overhead")
    assert calls == ["max(y, 0)"]


def test_too_long_a_chain_is_cut(calls: list[str]) -> None:
    def behind(m: Up, y: torch.Tensor) -> torch.Tensor:
        for number in range(50):
            y = torch.sin(y) + number
        return y

    compare(Up(behind), X)
    assert len(calls) == 1 and calls[0].count("sin") == 32
