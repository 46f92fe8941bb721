"""Every operation as CUDA: in the emulator and on a GPU what PyTorch computes, not-a-number and infinities included."""

from __future__ import annotations

import pytest
import torch

from tconv.emulator import run
from tconv.jit.loader import gpu_of, load
from tconv.kernels.source import header_directory, launch_numbers, unit
from tconv.planner import Kernel
from tconv.planner.direct.builder import default_tile
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.operations import OPERATIONS
from tconv.pointwise.program import parse
from tconv.problem import Layer, Precision, Problem
from tconv.sandbox.cut import Cut, launch_of
from tconv.sandbox.emulated import ask, launches

NAME = "tconv_kernel"
#: Of the type that it is computed in: how far a function may be from PyTorch's, relative and absolute.
_NEAR = {"fp32": 4e-6, "fp16": 2e-3, "bf16": 1.6e-2, "fp64": 1e-14}
_EXPONENTS = (2.5, -3.0, 4.0, 1 / 3)


def text_of(name: str) -> str:
    """A program of the operation."""
    operation = OPERATIONS[name]
    if operation.chooses:
        return "where(y > output0, y, output0)"
    if operation.tests:
        return f"where(y {operation.symbol} output0, 1, 2)"
    if operation.symbol:
        return f"y {operation.symbol} output0" if operation.arity == 2 else f"{operation.symbol}y"
    return f"{name}(y, output0)" if operation.arity == 2 else f"{name}(y)"


TEXTS = [
    *(text_of(name) for name in OPERATIONS if name != "pow"),
    *(f"pow(y, {exponent})" for exponent in _EXPONENTS),
    "y + 1e39",
    "min(y, inf) - 0.1",
    "max(y, nan)",
    "y * (y - output0 * (y + output0)) / (y - -3)",
    "y * 0.5 * (1 + erf(y * 0.7071067811865476))",
    "erf(y) + erf(output0) + 1",
    "(erf(y + 1) * 2) * (erf(output0) + 1)",
    "t0 = exp(min(y, 20)); t1 = t0 * (t0 + 2); y * (t1 / (t1 + 2))",
    "output0 / (1 + exp(-abs(y)))",
]


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of numbers of all kinds."""
    special = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 0.3, -0.7, 5.0, -5.0, 30.0, -30.0, 88.0]
    values = torch.tensor([*special, *torch.randn(18, generator=torch.Generator().manual_seed(1)).tolist()])
    pairs = torch.cartesian_prod(values, values)
    return pairs[:, 0].contiguous(), pairs[:, 1].contiguous()


def kernel_of(text: str, precision: Precision, count: int) -> tuple[str, Problem]:
    """A layer of one channel, whose weight is 1."""
    layer = Layer(1, 1, 1, (1, 1, 1), precision=precision, epilogue=text)
    source = unit(Kernel("direct", layer, default_tile(layer)), NAME) + launch_numbers(NAME, False)
    return source, Problem(layer, 1, (1, 1, count))


def check(got: torch.Tensor, text: str, x: torch.Tensor, other: torch.Tensor, precision: Precision) -> None:
    sums = (x if precision == "fp64" else x.float()) + 0  # the sum of one product is never -0
    expected = evaluate(parse(text), sums.reshape(1, 1, -1), [other.reshape(1, 1, -1)] * len(parse(text).operands))
    expected = expected.to(x.dtype).flatten()
    near = _NEAR[precision]
    assert torch.allclose(got, expected, rtol=near, atol=near * 1e-1, equal_nan=True), text
    if OPERATIONS.get(text.partition("(")[0]) is None and "where" not in text:
        assert torch.equal(got.isnan(), expected.isnan())


@pytest.mark.rotates(24)
@pytest.mark.parametrize("precision", _NEAR)
@pytest.mark.parametrize("text", TEXTS)
def test_equals_pytorch(text: str, precision: Precision) -> None:
    x, other = (
        values.to(getattr(torch, Layer(1, 1, 1, (1, 1, 1), precision=precision).dtype)) for values in operands()
    )
    source, problem = kernel_of(text, precision, len(x))
    y, weight = torch.zeros_like(x), torch.ones_like(x[:1])
    how = launch_of(Cut(source, NAME, False), problem, 1, ask)
    read = [other] * len(parse(text).operands)
    run(source, launches(NAME, how, problem, x, weight, None, y, read))
    check(y, text, x, other, precision)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", _NEAR)
def test_equals_pytorch_on_gpu(precision: Precision) -> None:
    from numpy import int32

    from tconv.jit.compile import compile_source
    from tconv.jit.toolchain import cuda_core

    core = cuda_core()
    for text in TEXTS:
        x, other = (
            values.to(getattr(torch, Layer(1, 1, 1, (1, 1, 1), precision=precision).dtype)) for values in operands()
        )
        source, problem = kernel_of(text, precision, len(x))
        how = launch_of(Cut(source, NAME, False), problem, 1, ask)
        cubin = compile_source(source, gpu_of(0).arch, headers=header_directory()).cubin
        function = load(cubin, NAME, how.shared_bytes, 0)
        device = [values.cuda() for values in (x, torch.ones_like(x[:1]), torch.zeros_like(x), other)]
        stream = core.Stream.from_handle(torch._C._cuda_getCurrentRawStream(0))
        sizes = (problem.y_channels, 1, 1, 1, len(x), 1, 1, len(x))
        addresses = [values.data_ptr() for values in device]
        arguments = [addresses[0], addresses[1], 0, addresses[2], *map(int32, sizes)]
        arguments += [addresses[3]] * len(parse(text).operands)
        core.launch(
            stream,
            core.LaunchConfig(grid=how.grid, block=how.threads, shmem_size=how.shared_bytes),
            function,
            *arguments,
        )
        check(device[2].cpu(), text, x, other, precision)
