"""Programs behind layers on a GPU: by hand and through torch.compile, beside PyTorch's own operators."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import tconv
from tconv.compiler import backend

pytestmark = pytest.mark.gpu

#: Of layers: dimensions, input, weight, stride; one for each family that has its own stores.
LAYERS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], int]] = {
    "direct": (2, (3, 3, 17, 19), (3, 5, 3, 3), 2),
    "tensor cores": (2, (4, 64, 33, 31), (64, 48, 3, 3), 2),
    "stride 1": (2, (2, 64, 40, 36), (64, 64, 3, 3), 1),
    "1-D": (1, (3, 64, 301), (64, 32, 8), 4),
    "3-D": (3, (2, 32, 5, 9, 11), (32, 40, 3, 3, 3), 2),
}
EPILOGUES: dict[str, Callable[..., torch.Tensor]] = {
    "relu": lambda y, skip, scale, gate: torch.relu(y),
    "all operands": lambda y, skip, scale, gate: functional.gelu(y * scale) * gate + skip,
    "functions": lambda y, skip, scale, gate: functional.mish(y) - torch.tanh(y) / (skip.abs() + 1) + torch.sin(y),
}


@pytest.fixture(autouse=True)
def insists(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from tconv.settings import settings

    monkeypatch.setenv("TCONV_INSIST", "1")
    settings.cache_clear()
    torch._dynamo.reset()
    yield
    settings.cache_clear()
    torch._dynamo.reset()


def drawn(name: str, dtype: torch.dtype, last: bool) -> tuple[Any, ...]:
    dims, x, weight, stride = LAYERS[name]
    torch.manual_seed(0)
    call = getattr(functional, f"conv_transpose{dims}d")
    tensors = [torch.randn(shape, device="cuda") for shape in (x, weight, (weight[1],))]
    tensors[1] /= (x[1] * 4) ** 0.5
    shape = call(*tensors, stride).shape
    tensors += [torch.randn(s, device="cuda") for s in (shape, (shape[1], *(1,) * dims), (*shape[:2], *(1,) * dims))]
    tensors = [t.to(dtype) for t in tensors]
    if last:
        format: Any = {2: torch.channels_last, 3: torch.channels_last_3d}[dims]
        tensors[0], tensors[3] = (tensors[i].to(memory_format=format) for i in (0, 3))
    return dims, stride, call, tensors


def near(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Within TF32's rounding of products, or that of the type."""
    tolerance = {torch.float64: 1e-12, torch.bfloat16: 4e-2}.get(got.dtype, 4e-3)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("name", LAYERS)
def test_by_hand(name: str, epilogue: str, last: bool, dtype: torch.dtype) -> None:
    if last and LAYERS[name][0] == 1:
        pytest.skip("PyTorch has no channels_last in one dimension")
    dims, stride, call, (x, weight, bias, *operands) = drawn(name, dtype, last)
    ours = getattr(tconv, f"conv_transpose{dims}d")
    made = tconv.Epilogue(EPILOGUES[epilogue])
    explained = tconv.explain(x, weight, bias, stride, epilogue=made, epilogue_inputs=operands)
    assert explained.plan is not None and explained.plan.problem.layer.epilogue
    got = ours(x, weight, bias, stride, epilogue=made, epilogue_inputs=operands)
    # In 16-bit types PyTorch rounds between the steps: beside it in float32.
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sums = call(*(t.to(wide) for t in (x, weight, bias)), stride)
    expected = EPILOGUES[epilogue](sums, *(t.to(wide) for t in operands))
    assert got.stride() == call(x, weight, bias, stride).stride()
    near(got, expected.to(dtype))


#: Of each way to a gradient: by a kernel, from the result, and by kernels for what scales, too.
WITH_GRADIENTS: dict[str, Callable[..., torch.Tensor]] = {
    "kernel": lambda y, skip, scale, gate: functional.mish(y + scale) * 2 - skip + gate,
    "result": lambda y, skip, scale, gate: torch.tanh(y * 0.5 + scale + skip - gate),
    "own gradients": lambda y, skip, scale, gate: functional.gelu(y * scale) * gate + skip,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("epilogue", WITH_GRADIENTS)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_by_hand(name: str, epilogue: str, last: bool, dtype: torch.dtype) -> None:
    """Beside float64, as near as PyTorch's own in that type: what is summed over a map is far from both."""
    if last and LAYERS[name][0] == 1:
        pytest.skip("PyTorch has no channels_last in one dimension")
    dims, stride, call, tensors = drawn(name, dtype, last)
    ours, function = getattr(tconv, f"conv_transpose{dims}d"), WITH_GRADIENTS[epilogue]
    incoming = torch.randn_like(tensors[3])

    def gradients(wide: torch.dtype, fused: bool) -> tuple[torch.Tensor, ...]:
        of = [t.to(wide).requires_grad_() for t in tensors]
        if fused:
            result = ours(*of[:3], stride, epilogue=tconv.Epilogue(function), epilogue_inputs=of[3:])
        else:
            result = function(call(*of[:3], stride), *of[3:])
        return torch.autograd.grad(result, of, incoming.to(wide))

    exact = gradients(torch.float64, False)
    for mine, other, right in zip(gradients(dtype, True), gradients(dtype, False), exact, strict=True):
        assert mine.dtype == dtype
        allowed = 2 * (other - right).square().mean() + (2e-3 if dtype == torch.float32 else 8e-3) ** 2 * right.var()
        assert (mine - right).square().mean() <= allowed


def test_a_gradient_that_is_summed_takes_little_memory() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(6, 16, 511, 512, device="cuda"), torch.randn(16, 32, 2, 2, device="cuda") / 8
    scale = torch.rand(32, 1, 1, device="cuda", requires_grad=True)
    result = tconv.conv_transpose2d(
        x, weight, None, 2, epilogue=tconv.Epilogue(lambda y, s: y * s), epilogue_inputs=(scale,)
    )
    incoming = torch.rand_like(result)
    torch.autograd.grad(result, scale, incoming, retain_graph=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    (found,) = torch.autograd.grad(result, scale, incoming)
    assert result.nbytes > 800e6 and torch.cuda.max_memory_allocated() - before < 320e6
    plain = functional.conv_transpose2d(x, weight, None, 2)
    exact = sum((y.double() * g).sum((1, 2)) for y, g in zip(plain, incoming, strict=True))
    torch.testing.assert_close(found.flatten().double(), exact, rtol=5e-3, atol=5e-3 * float(exact.abs().mean()))


class Learner(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.first, self.second = nn.ConvTranspose2d(16, 32, 4, 2, 1), nn.ConvTranspose2d(32, 3, 3, 1, 1)
        self.scale, self.shift = nn.Parameter(torch.ones(32, 1, 1)), nn.Parameter(torch.zeros(32, 1, 1))
        self.epilogues = tconv.Epilogue(self.middle), tconv.Epilogue(torch.tanh)
        self.fused = fused

    @staticmethod
    def middle(y: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return functional.mish(y * scale + shift) * 1.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (self.first.weight, self.first.bias, 2, 1), (self.second.weight, self.second.bias, 1, 1)
        given = (self.scale, self.shift)
        if self.fused:
            y = tconv.conv_transpose2d(x, *first, epilogue=self.epilogues[0], epilogue_inputs=given)
            return tconv.conv_transpose2d(y, *second, epilogue=self.epilogues[1])
        y = self.middle(functional.conv_transpose2d(x, *first), *given)
        return torch.tanh(functional.conv_transpose2d(y, *second))


def test_300_steps_take_pytorchs_course() -> None:
    """Beside exact products no further than PyTorch's own in TF32."""

    def curve(fused: bool, exact: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = Learner(fused).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        wanted = torch.tanh(torch.randn(4, 3, 32, 32, device="cuda"))
        x, losses = torch.randn(4, 16, 16, 16, device="cuda"), []
        torch.backends.cudnn.allow_tf32 = not exact
        try:
            for _ in range(300):
                loss = (model(x) - wanted).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        finally:
            torch.backends.cudnn.allow_tf32 = True
        return torch.stack(losses).cpu()

    exact, theirs, ours = curve(False, True), curve(False, False), curve(True, False)
    assert exact[-1] < 0.8 * exact[0]
    assert (ours - exact).abs().max() <= 3 * (theirs - exact).abs().max() + 1e-4 * exact[0]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.ConvTranspose2d(32, 64, 4, 2, 1), nn.BatchNorm2d(64)
        self.second, self.conv = nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.Conv2d(32, 8, 3)
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.norm(self.first(x)))
        return torch.tanh(self.conv(functional.leaky_relu(self.second(x), 0.2) + skip))


@pytest.mark.parametrize(
    "options",
    [{}, {"fullgraph": True, "dynamic": True}, {"mode": "reduce-overhead"}, {"mode": "max-autotune-no-cudagraphs"}],
)
@pytest.mark.parametrize("last", [False, True])
def test_compiled(options: dict[str, Any], last: bool) -> None:
    torch.manual_seed(0)
    model = Model().cuda()
    model = model.to(memory_format=torch.channels_last) if last else model  # type: ignore[call-overload]
    compiled = torch.compile(model, backend=backend, **options)
    with torch.no_grad():
        for size in (16, 16, 16, 20):
            x = torch.randn(2, 32, size, size, device="cuda")
            skip = torch.randn(2, 32, 4 * size, 4 * size, device="cuda")
            if last:
                x, skip = (t.to(memory_format=torch.channels_last) for t in (x, skip))
            near(compiled(x, skip).clone(), model(x, skip))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_compiled_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Model().cuda()
    compiled = torch.compile(model, backend=backend)
    x, skip = torch.randn(2, 32, 16, 16, device="cuda"), torch.randn(2, 32, 64, 64, device="cuda")
    # The caches of PyTorch 2.11 do not tell the types of autocast apart.
    caches = torch._inductor.config.patch(force_disable_caches=True)
    with torch.no_grad(), torch.autocast("cuda", dtype), caches:
        torch.testing.assert_close(compiled(x, skip), model(x, skip), rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_float32_parameter_under_autocast(dtype: torch.dtype) -> None:
    """It promotes the result, which the kernel for float32 computes."""
    torch.manual_seed(0)
    of = [torch.randn(shape, device="cuda") for shape in [(4, 64, 32, 32), (64, 64, 3, 3), (64,), (64, 1, 1)]]
    epilogue = tconv.Epilogue(lambda y, shift: torch.clamp(torch.nn.functional.mish(y + shift), -1.0, 1.0))
    sides = []
    for fused in (True, False, None):
        given = [(t.double() if fused is None else t).clone().requires_grad_() for t in of]
        with torch.autocast("cuda", dtype, enabled=fused is not None):
            if fused:
                y = tconv.conv_transpose2d(*given[:3], 2, 1, 1, epilogue=epilogue, epilogue_inputs=given[3:])
            else:
                y = epilogue(torch.nn.functional.conv_transpose2d(*given[:3], 2, 1, 1), *given[3:])
        sides.append([y, *torch.autograd.grad(y.square().sum(), given)])
    for mine, other, right in zip(*sides, strict=True):
        assert mine.dtype == other.dtype == torch.float32
        assert (mine - right).abs().max() <= 2 * (other - right).abs().max() + 1e-4 * right.abs().max()


def test_compiled_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TF32, which decides by its rounding on which of its slopes `leaky_relu` is near 0."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model = Model().cuda().requires_grad_(True)
    compiled = torch.compile(model, backend=backend)
    x, skip = torch.randn(2, 32, 16, 16, device="cuda"), torch.randn(2, 32, 64, 64, device="cuda")
    exact = copy.deepcopy(model).double()
    sides = [
        torch.autograd.grad(run(*(t.to(dtype) for t in (x, skip))).square().sum(), list(own.parameters()))
        for run, own, dtype in [
            (compiled, model, torch.float32),
            (model, model, torch.float32),
            (exact, exact, torch.float64),
        ]
    ]
    for ours, theirs, right in zip(*sides, strict=True):
        assert (ours - right).abs().max() <= 2 * (theirs - right).abs().max() + 1e-4 * right.abs().max()


def test_a_captured_graph_replays() -> None:
    _, stride, _, (x, weight, bias, *operands) = drawn("tensor cores", torch.float32, False)
    epilogue = tconv.Epilogue(EPILOGUES["all operands"])

    def run() -> torch.Tensor:
        return tconv.conv_transpose2d(x, weight, bias, stride, epilogue=epilogue, epilogue_inputs=operands)

    expected = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    got.zero_()
    graph.replay()
    assert torch.equal(got, expected)
