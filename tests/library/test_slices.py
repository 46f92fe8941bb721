"""Results that are written to a place of the caller's: what is a slice of channels, what is copied, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tconv
from tconv import epilogues, routes, slices
from tconv.epilogues import Epilogue
from tconv.slices import Slice, slice_of

LAST = torch.channels_last


def whole(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(shape, **options)


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        (whole(2, 6, 4, 5), Slice(6, False)),
        (whole(2, 6, 4, 5)[:, 1:4], Slice(6, False)),
        (whole(2, 6, 4, 5)[1:, 1:4], Slice(3, False)),  # of one sample there is no more to know
        (whole(2, 6, 7)[:, 4:], Slice(6, False)),
        (whole(2, 6, 3, 4, 5)[:, :2], Slice(6, False)),
        (whole(2, 6, 4, 5)[:, 2:3], Slice(6, False)),
        (whole(2, 6, 4, 5).to(memory_format=LAST), Slice(6, True)),
        (whole(2, 6, 4, 5).to(memory_format=LAST)[:, 2:4], Slice(6, True)),
        (whole(2, 6, 3, 4, 5).to(memory_format=torch.channels_last_3d)[:, 2:4], Slice(6, True)),
        (whole(2, 6, 4, 5).to(memory_format=LAST)[:1, 2:4], Slice(6, True)),
        (whole(2, 6, 1, 5).to(memory_format=LAST)[:, 2:4], Slice(6, True)),
        (whole(2, 6, 1, 1)[:, 2:4], Slice(6, False)),
        (whole(2, 6, 4, 5)[:, ::2], None),
        (whole(2, 6, 4, 5)[:, :, :3], None),
        (whole(2, 6, 4, 5)[..., 1:], None),
        (whole(4, 6, 4, 5)[::2], Slice(12, False)),  # as if of a tensor with all channels of two samples
        (whole(2, 6, 5, 4).transpose(2, 3), None),
        (whole(1, 6, 4, 5).expand(2, 6, 4, 5), None),
        (whole(2, 4, 5, 6).movedim(-1, 1)[:, :3, :2], None),
    ],
)
def test_what_is_a_slice(out: Tensor, expected: Slice | None) -> None:
    assert slice_of(out) == expected


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((2, 5, 4, 5), (5, 3, 3, 3), (3,)))
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


def test_on_a_cpu_it_is_copied() -> None:
    x, weight, bias = drawn()
    expected = functional.conv_transpose2d(x, weight, bias, 2, output_padding=1)
    larger = whole(2, 9, *expected.shape[2:])
    out = larger[:, 4:7]
    assert tconv.conv_transpose2d(x, weight, bias, 2, output_padding=1, out=out) is out
    assert torch.equal(out, expected) and larger[:, :4].eq(0).all() and larger[:, 7:].eq(0).all()
    tconv.conv_transpose2d(x, weight, bias, 2, output_padding=1, out=out, epilogue=Epilogue(torch.tanh))
    assert torch.equal(out, expected.tanh())
    single = whole(3, *expected.shape[2:])
    tconv.conv_transpose2d(x[1], weight, bias, 2, output_padding=1, out=single)
    assert torch.allclose(single, expected[1], atol=1e-6)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (whole(2, 3, 9, 12), r"shape \(2, 3, 9, 12\); the result has \(2, 3, 9, 11\)"),
        (whole(2, 3, 9, 11).double(), "dtype torch.float64; the result has torch.float32"),
        (whole(2, 3, 9, 11, device="meta"), "device meta; the result has cpu"),
    ],
)
def test_what_does_not_fit_is_refused(out: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tconv.conv_transpose2d(*drawn(), 2, out=out)


def test_gradients_are_refused() -> None:
    x, weight, bias = drawn()
    out = whole(2, 3, 9, 11)
    with pytest.raises(RuntimeError, match=r"out= takes no part in gradients.*no_grad"):
        tconv.conv_transpose2d(x, weight.requires_grad_(), bias, 2, out=out)
    with torch.no_grad():
        tconv.conv_transpose2d(x, weight, bias, 2, out=out)
    assert out.ne(0).any()


def test_under_a_compiler_it_is_a_copy() -> None:
    x, weight, bias = drawn()
    larger = whole(2, 5, 9, 11)

    def call(x: Tensor, larger: Tensor) -> Tensor:
        tconv.conv_transpose2d(x, weight, bias, 2, out=larger[:, 1:4])
        return larger * 2

    result = torch.compile(call, backend="aot_eager", fullgraph=True)(x, larger)
    assert torch.allclose(result[:, 1:4], functional.conv_transpose2d(x, weight, bias, 2) * 2)
    assert torch.equal(result, larger * 2)


def test_a_epilogue_under_a_compiler_is_no_break_in_its_graph() -> None:
    x, weight, bias = drawn()
    epilogue = Epilogue(torch.tanh)

    def call(x: Tensor) -> Tensor:
        return tconv.conv_transpose2d(x, weight, bias, 2, epilogue=epilogue) + 1

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), functional.conv_transpose2d(x, weight, bias, 2).tanh() + 1)


Told = list[tuple[Any, ...]]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Told:
    """As on a GPU, with kernels for contiguous tensors."""
    told: Told = []

    def write(
        dims: int,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        arguments: Any,
        out: Tensor,
        place: Any,
        *epilogue: Any,
    ) -> bool:
        told.append((place, *epilogue))
        if place[1]:
            return False
        out.copy_(functional.conv_transpose2d(x, weight, bias, *arguments))
        return True

    why_apart: Callable[..., str | None] = epilogues.why_apart
    monkeypatch.setattr(epilogues, "why_apart", lambda *tensors: why_apart(*tensors, anywhere=True))
    monkeypatch.setattr(routes, "write", write)
    return told


def test_kernels_are_told_the_place(kernels: Told) -> None:
    x, weight, bias = drawn()
    expected = functional.conv_transpose2d(x, weight, bias, 2)
    out = whole(2, 9, 9, 11)[:, 4:7]
    tconv.conv_transpose2d(x, weight, bias, 2, out=out)
    assert kernels == [(Slice(9, False), "", [])] and torch.equal(out, expected)
    kernels.clear()
    scale = torch.rand(3, 1, 1)
    epilogue = Epilogue(lambda y, scale: torch.relu(y) * scale)
    tconv.conv_transpose2d(x, weight, bias, 2, out=out, epilogue=epilogue, epilogue_inputs=(scale,))
    (place, program, operands) = kernels[0]
    assert (place, program) == (Slice(9, False), "max(y, 0) * channel0") and operands[0] is scale


def test_a_kernel_of_another_format_does_not_write(kernels: Told) -> None:
    x, weight, bias = drawn(torch.float64)
    larger = whole(2, 8, 9, 11).double().to(memory_format=LAST)
    tconv.conv_transpose2d(x, weight, bias, 2, out=larger[:, 4:7])
    assert kernels == [(Slice(8, True), "", [])]
    assert torch.equal(larger[:, 4:7], functional.conv_transpose2d(x, weight, bias, 2))


@pytest.mark.parametrize(
    ("out", "epilogue"),
    [
        (whole(2, 6, 9, 11)[:, ::2], None),
        (whole(2, 10, 9, 11)[:, 2:5], Epilogue(lambda y, skip: y + skip)),
        (torch.empty(1 + 2 * 3 * 8 * 12, dtype=torch.float32)[1:].view(2, 3, 8, 12), None),
        (whole(2, 7, 9, 11).to(memory_format=LAST)[:, :3], None),
        (whole(2, 8, 9, 11).to(memory_format=LAST)[:, 1:4], None),
    ],
)
def test_what_no_kernel_can_write_is_copied(out: Tensor, epilogue: Epilogue | None, kernels: Told) -> None:
    x, weight, bias = drawn()
    sizes = {"output_padding": 1} if out.shape[-1] == 12 else {}
    padding = {"padding": 1} if out.shape[-1] == 12 else {}
    if out.shape[-1] == 12:
        x, sizes, padding = torch.randn(2, 5, 4, 6), {"output_padding": 1}, {"padding": 1}
    skip = (torch.rand(out.shape),) if epilogue else ()
    tconv.conv_transpose2d(x, weight, bias, 2, **padding, **sizes, out=out, epilogue=epilogue, epilogue_inputs=skip)
    expected = functional.conv_transpose2d(x, weight, bias, 2, **padding, **sizes)
    assert kernels == [] and torch.equal(out, expected + skip[0] if skip else expected)


def test_a_promoted_result_is_copied(kernels: Told) -> None:
    """It is float32 behind a layer of 16 bits, and so must `out` be."""
    x, weight, shift = torch.rand(2, 3, 4, 5).bfloat16(), torch.rand(3, 4, 3, 3).bfloat16(), torch.rand(4, 1, 1)
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(2, 4, 6, 7, dtype=dtype)
        asked = {"out": out, "epilogue": Epilogue(torch.add), "epilogue_inputs": (shift,)}
        if dtype == torch.bfloat16:
            with pytest.raises(ValueError, match=r"the result has torch\.float32"):
                tconv.conv_transpose2d(x, weight, **asked)
        else:
            expected = torch.nn.functional.conv_transpose2d(x, weight) + shift
            torch.testing.assert_close(tconv.conv_transpose2d(x, weight, **asked), expected)
    assert not kernels


def test_rows_that_are_stored_together_lie_at_multiples_of_their_size() -> None:
    for columns, bytes_ in ((11, 4), (10, 8), (12, 16), (16, 16)):
        storage = torch.zeros(64 + 2 * 6 * columns)
        for offset in range(4):
            out = storage[offset:][: 2 * 6 * columns].view(2, 3, 2, columns)
            may = slices._why_copied(out, slice_of(out), "") is None
            assert may == (4 * offset % math.gcd(4 * columns, 16) == 0), (columns, offset, bytes_)
