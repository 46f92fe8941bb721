"""Matrices through shared memory and tensor cores, in the emulator: right numbers, and what is forgotten shows."""

from __future__ import annotations

import pytest
import torch

from tconv.emulator import Copies, EmulatorError, Launch, Mode, run

#: One warp: 16 rows of A and 8 of B, 32 bytes each, come to shared memory by asynchronous copies; D = A times B
#: transposed.
PRODUCT = """
#include "primitives/asynchronous.cuh"
#include "primitives/tensor_cores.cuh"
struct All {
  TCONV_DEVICE bool operator()(int) const { return true; }
};
extern "C" __global__ void product(const ELEMENT* a, const ELEMENT* b, tconv::AccumulatorOf<ELEMENT>::type* d) {
  TCONV_SHARED(shared);
  const int lane = threadIdx.x;
  tconv::BlockCopy<32, All> of_a(shared + 768), of_b(shared + 776);
  of_a.begin(shared, a, 512, 1, {});
  of_b.begin(shared + 512, b, 64, 4, {});
  of_a.wait();
  of_b.wait();
  __syncwarp();
  unsigned rows[4], columns[4];
  tconv::load_matrices(shared + (lane % 16) * 32 + lane / 16 * 16, rows);
  tconv::load_matrices(shared + 512 + lane % 8 * 32 + lane / 8 % 2 * 16, columns);
  const unsigned column_words[2] = {columns[0], columns[1]};
  tconv::AccumulatorOf<ELEMENT>::type sums[4] = {};
  tconv::multiply_fragments<ELEMENT>(sums, rows, column_words);
  for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}
"""
#: A row of doubles lies as low words, then high ones; a fragment has the words of one row, then those of the other.
PRODUCT_OF_DOUBLES = PRODUCT.replace(
    "  tconv::AccumulatorOf",
    "  const unsigned low_of_other = rows[1];\n  rows[1] = rows[2], rows[2] = low_of_other;\n  tconv::AccumulatorOf",
)
ELEMENTS = {torch.float32: "float", torch.float16: "tconv::Half", torch.bfloat16: "tconv::BFloat16"}


def product(a: torch.Tensor, b: torch.Tensor, text: str = PRODUCT, mode: Mode = "plain", copies: Copies = "late"):
    d = torch.full((16, 8), float("nan"))
    source = text.replace("ELEMENT", ELEMENTS[a.dtype])
    run(source, [Launch("product", 1, 32, 784, (a, b, d))], mode=mode, copies=copies)
    return d


def integers(rows: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(-9, 10, (rows, 32 // dtype.itemsize), generator=generator).to(dtype)


@pytest.mark.parametrize("copies", ["eager", "late"])
@pytest.mark.parametrize("mode", ["plain", "address", "thread"])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_products_of_integers_are_exact(dtype: torch.dtype, mode: Mode, copies: Copies) -> None:
    a, b = integers(16, dtype), integers(8, dtype)
    assert torch.equal(product(a, b, mode=mode, copies=copies), a.float() @ b.float().T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_number_is_read_as_it_is(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = bits[bits.isfinite()][: 2**16 // 32 * 16]
    one = torch.eye(8, 16).to(dtype)
    for values in finite[: finite.numel() // 256 * 256].view(-1, 16, 16)[::17]:
        assert torch.equal(product(values.contiguous(), one), values[:, :8].float())


@pytest.mark.parametrize("copies", ["eager", "late"])
@pytest.mark.parametrize("mode", ["plain", "address", "thread"])
def test_products_of_doubles(mode: Mode, copies: Copies) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, 4, generator=generator, dtype=torch.float64) for rows in (16, 8))
    d = torch.full((16, 8), float("nan"), dtype=torch.float64)
    source = PRODUCT_OF_DOUBLES.replace("ELEMENT", "double")
    run(source, [Launch("product", 1, 32, 784, (low_words_first(a), low_words_first(b), d))], mode=mode, copies=copies)
    assert torch.allclose(d, a @ b.T, rtol=1e-14, atol=1e-14)


def low_words_first(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(torch.int32).view(len(rows), 4, 2).transpose(1, 2).contiguous().view(torch.float64).view(-1, 4)


def test_operands_that_are_not_rounded_lose_their_low_bits() -> None:
    a = torch.full((16, 8), 1.0 + 2.0**-11)
    assert torch.equal(product(a, torch.eye(8)), torch.ones(16, 8))


def test_not_a_number_and_infinity_go_through() -> None:
    a = torch.zeros(16, 8)
    a[3, 2], a[5, 1] = float("nan"), float("inf")
    d = product(a, torch.ones(8, 8))
    assert d[3].isnan().all()
    assert (d[5] == float("inf")).all()
    assert d.isfinite().sum() == 14 * 8


def test_a_copy_that_nobody_waits_for_does_not_land() -> None:
    a, b = integers(16, torch.float32), integers(8, torch.float32)
    text = PRODUCT.replace("  of_b.wait();\n", "")
    assert not torch.equal(product(a, b, text), a @ b.T)
    assert torch.equal(product(a, b, text, copies="eager"), a @ b.T)


def test_a_copy_that_others_read_needs_more_than_its_own_wait() -> None:
    a, b = integers(16, torch.float32), integers(8, torch.float32)
    with pytest.raises(EmulatorError) as caught:
        product(a, b, PRODUCT.replace("  __syncwarp();\n", ""), mode="thread")
    assert caught.value.kind == "race"


def test_a_product_wants_the_whole_warp() -> None:
    a, b = integers(16, torch.float32), integers(8, torch.float32)
    with pytest.raises(EmulatorError, match=r"mma\.sync") as caught:
        product(a, b, PRODUCT.replace("  tconv::Acc", "  if (lane == 7) return;\n  tconv::Acc"))
    assert caught.value.kind == "warp"


def test_rows_of_matrices_are_aligned() -> None:
    a, b = integers(16, torch.float32), integers(8, torch.float32)
    text = PRODUCT.replace("of_a.begin(shared,", "of_a.begin(shared + 4,")
    with pytest.raises(EmulatorError) as caught:
        product(a, b, text, "address")
    assert caught.value.kind == "undefined"
