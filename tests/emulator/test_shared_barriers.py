"""Barriers in shared memory, stages that go round, and products of warpgroups: what is used rightly is right in every
order, and what is forgotten shows."""

from __future__ import annotations

import pytest
import torch

from tconv.emulator import Copies, EmulatorError, Launch, Mode, Order, run

ORDERS: tuple[Order, ...] = ("ascending", "descending", "random")
COPIES: tuple[Copies, ...] = ("eager", "late")
ROUNDS = 5

#: A warp brings 32 numbers a round into one of two stages, another one stores them the other way round.
RING = """
#include "primitives/barriers.cuh"
extern "C" __global__ void ring(const float* x, float* y, int rounds) {
  TCONV_SHARED(shared);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      tconv::make_barrier(shared + 256 + 8 * i, PRODUCERS);
      tconv::make_barrier(shared + 272 + 8 * i, 32);
    }
    tconv::show_barriers();
  }
  __syncthreads();
  tconv::ArrivingCopies<4> copies;
  for (int round = 0; round < rounds; ++round) {
    float* const stage = reinterpret_cast<float*>(shared) + round % 2 * 32;
    unsigned char* const full = shared + 256 + round % 2 * 8, * const empty = full + 16;
    const unsigned parity = round / 2 % 2;
    const float* const from = x + round * 32;
    if (threadIdx.x < 32) {
      // Who does not arrive must not wait, either: it could come so late that the parity has turned twice.
      if (lane >= PRODUCERS) break;
      tconv::wait(empty, parity ^ 1);
      BRING
    } else {
      tconv::wait(full, parity);
      y[round * 32 + lane] = stage[31 - lane];
      tconv::arrive(empty);
    }
  }
}
"""
#: How a producer brings a stage, and how many arrivals that makes.
BRINGING = {
    "stores": ("stage[lane] = from[lane]; tconv::arrive(full);", 32),
    "copies": ("copies.begin(stage + lane, from + lane, true); copies.arrive(full);", 32),
    "one bulk copy": (
        "tconv::arrive_and_expect(full, 128); tconv::copy_to_shared(stage, from, 128, full);",
        1,
    ),
}
#: Three warps, of which two meet.
MEETING = """
#include "primitives/barriers.cuh"
extern "C" __global__ void meeting(float* y) {
  TCONV_SHARED(shared);
  float* const numbers = reinterpret_cast<float*>(shared);
  const int t = threadIdx.x;
  if (t >= 64) return;
  numbers[t] = t;
  tconv::meet<64>(1);
  y[t] = numbers[63 - t];
}
"""
#: A warpgroup: D = A times B transposed, 64 x 16; rows of A come from memory, those of B, swizzled, by a bulk copy.
PRODUCT = """
#include "primitives/barriers.cuh"
#include "primitives/warpgroups.cuh"
extern "C" __global__ void product(const ELEMENT* a, const ELEMENT* b, float* d) {
  TCONV_SHARED(shared);
  unsigned char* const barrier = shared + 16 * ROW_BYTES;
  if (threadIdx.x == 0) {
    tconv::make_barrier(barrier, 1);
    tconv::show_barriers();
    tconv::arrive_and_expect(barrier, 16 * ROW_BYTES);
    tconv::copy_to_shared(shared, b, 16 * ROW_BYTES, barrier);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  unsigned factors[ROW_BYTES / 32][4];
  for (int i = 0; i < ROW_BYTES / 32 * 4; ++i)
    factors[i / 4][i % 4] = reinterpret_cast<const unsigned*>(
        a)[(row + i % 2 * 8) * (ROW_BYTES / 4) + i / 4 * 8 + i % 4 / 2 * 4 + lane % 4];
  float sums[8] = {};
  tconv::WarpgroupProducts products;
  tconv::wait(barrier, 0);
  products.begin_group();
  for (int step = 0; step < ROW_BYTES / 32; ++step)
    products.add<ELEMENT, 16>(sums, factors[step], tconv::FactorRows<ROW_BYTES>(shared), step * 32);
  products.end_group();
  products.wait<0>();
  for (int i = 0; i < 8; ++i) d[(row + i % 4 / 2 * 8) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
}
"""
ELEMENTS = {torch.float32: "float", torch.float16: "tconv::Half", torch.bfloat16: "tconv::BFloat16"}


def ring(
    bringing: str, mode: Mode = "plain", order: Order = "ascending", copies: Copies = "late", text: str = RING
) -> torch.Tensor:
    """What the ring stores of 0, 1, 2, ...; NaN where it stored nothing."""
    x, y = torch.arange(32.0 * ROUNDS), torch.full((32 * ROUNDS,), float("nan"))
    bring, producers = BRINGING[bringing]
    text = text.replace("BRING", bring).replace("PRODUCERS", str(producers))
    run(text, [Launch("ring", 1, 64, 288, (x, y, ROUNDS))], mode=mode, order=order, copies=copies)
    return y


RIGHT = torch.arange(32.0 * ROUNDS).view(ROUNDS, 32).flip(1).flatten()


@pytest.mark.rotates(18)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["plain", "address", "thread"])
@pytest.mark.parametrize("bringing", BRINGING)
def test_stages_go_round(bringing: str, mode: Mode, order: Order, copies: Copies) -> None:
    assert torch.equal(ring(bringing, mode, order, copies), RIGHT)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bringing", BRINGING)
def test_a_stage_that_nobody_waits_for_to_be_empty(bringing: str, order: Order) -> None:
    """Stages are overwritten, or their phases turn too often: what comes of it depends on the order."""
    text = RING.replace("tconv::wait(empty, parity ^ 1);", "")
    with pytest.raises(EmulatorError) as caught:
        ring(bringing, "thread", order, text=text)
    assert caught.value.kind in ("race", "deadlock") or "more arrivals" in caught.value.report


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bringing", BRINGING)
def test_a_stage_given_back_before_it_is_read(bringing: str, order: Order, copies: Copies) -> None:
    text = RING.replace("      tconv::arrive(empty);\n", "").replace("(full, parity);", "(full, parity);\n ARRIVE")
    with pytest.raises(EmulatorError) as caught:
        ring(bringing, "thread", order, copies, text.replace("ARRIVE", "tconv::arrive(empty);"))
    assert caught.value.kind == "race"


def test_a_full_stage_that_nobody_waits_for() -> None:
    text = RING.replace("tconv::wait(full, parity);", "")
    assert not torch.equal(ring("copies", text=text), RIGHT)
    with pytest.raises(EmulatorError) as caught:
        ring("stores", "thread", text=text)
    assert caught.value.kind == "race"
    with pytest.raises(EmulatorError, match="more arrivals"):  # at a stage whose bytes have not landed
        ring("one bulk copy", text=text)


def test_an_empty_stage_of_the_wrong_phase_never_comes() -> None:
    with pytest.raises(EmulatorError) as caught:
        ring("stores", text=RING.replace("parity ^ 1", "parity"))
    assert caught.value.kind == "deadlock"


@pytest.mark.parametrize("bytes_expected", [112, 144])
def test_bytes_that_are_not_those_expected_never_come(bytes_expected: int) -> None:
    text = RING.replace("BRING", BRINGING["one bulk copy"][0]).replace(
        "expect(full, 128)", f"expect(full, {bytes_expected})"
    )
    with pytest.raises(EmulatorError) as caught:
        ring("one bulk copy", text=text)
    assert caught.value.kind == "deadlock"


def test_more_arrivals_than_a_barrier_was_made_for_are_refused() -> None:
    bring = BRINGING["one bulk copy"][0]
    text = RING.replace("BRING", bring.replace("128);", "128); tconv::arrive(full);", 1))
    with pytest.raises(EmulatorError, match="more arrivals than the barrier was made for"):
        ring("one bulk copy", text=text)


@pytest.mark.parametrize("operation", ["tconv::wait(shared + 304, 0);", "tconv::arrive(shared + 304);"])
def test_a_barrier_that_was_never_made_is_refused(operation: str) -> None:
    kernel = f'extern "C" __global__ void kernel() {{ TCONV_SHARED(shared); {operation} }}'
    with pytest.raises(EmulatorError, match="no barrier was made there"):
        run(f'#include "primitives/barriers.cuh"\n{kernel}', [Launch("kernel", 1, 32, 512, ())])


def test_a_barrier_lies_at_a_multiple_of_its_size() -> None:
    kernel = 'extern "C" __global__ void kernel() { TCONV_SHARED(shared); tconv::make_barrier(shared + 4, 1); }'
    with pytest.raises(EmulatorError, match="not at a multiple of 8 bytes"):
        run(f'#include "primitives/barriers.cuh"\n{kernel}', [Launch("kernel", 1, 1, 64, ())])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["plain", "thread"])
def test_some_warps_of_a_block_meet(mode: Mode, order: Order) -> None:
    y = torch.full((64,), float("nan"))
    run(MEETING, [Launch("meeting", 1, 96, 256, (y,))], mode=mode, order=order)
    assert torch.equal(y, torch.arange(63.0, -1.0, -1.0))


def test_warps_that_do_not_meet() -> None:
    y = torch.zeros(64)
    with pytest.raises(EmulatorError) as caught:
        run(MEETING.replace("tconv::meet<64>(1);", ""), [Launch("meeting", 1, 96, 256, (y,))], mode="thread")
    assert caught.value.kind == "race"
    with pytest.raises(EmulatorError) as caught:
        run(MEETING.replace("meet<64>", "meet<96>"), [Launch("meeting", 1, 96, 256, (y,))])
    assert caught.value.kind == "deadlock"


def swizzled(rows: torch.Tensor) -> torch.Tensor:
    """Rows with their 16-byte vectors where a product looks for them: eight vectors of 128 bytes change places by the
    row's number, four of 64 bytes by that of the pair of rows."""
    vectors = rows.view(len(rows), -1, 16 // rows.itemsize)
    count = vectors.shape[1]
    number, row = torch.arange(count), torch.arange(len(rows))[:, None]
    return vectors[row, number ^ (row // (8 // count) % count)].reshape(rows.shape).contiguous()


def factors(row_bytes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers, 64 rows of the first factor and 16 of the second."""
    generator = torch.Generator().manual_seed(row_bytes)
    shapes = ((64, row_bytes // dtype.itemsize), (16, row_bytes // dtype.itemsize))
    a, b = (torch.randint(-9, 10, shape, generator=generator).to(dtype) for shape in shapes)
    return a, b


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    text: str = PRODUCT,
    mode: Mode = "plain",
    copies: Copies = "late",
    order: Order = "ascending",
) -> torch.Tensor:
    d, row_bytes = torch.full((64, 16), float("nan")), a.shape[1] * a.itemsize
    source = text.replace("ELEMENT", ELEMENTS[a.dtype]).replace("ROW_BYTES", str(row_bytes))
    launch = Launch("product", 1, 128, 16 * row_bytes + 8, (a, b, d))
    run(source, [launch], mode=mode, copies=copies, order=order)
    return d


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("mode", ["plain", "address", "thread"])
@pytest.mark.parametrize("row_bytes", [64, 128])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_products_of_integers_are_exact(dtype: torch.dtype, row_bytes: int, mode: Mode, copies: Copies) -> None:
    a, b = factors(row_bytes, dtype)
    right = a.float() @ b.float().T
    assert torch.equal(product(a, swizzled(b), mode=mode, copies=copies, order="random"), right)


@pytest.mark.parametrize("row_bytes", [64, 128])
def test_rows_that_are_not_swizzled_give_other_products(row_bytes: int) -> None:
    a, b = factors(row_bytes, torch.float32)
    assert not torch.equal(product(a, b), a @ b.T)


@pytest.mark.parametrize("wait", ["", "products.wait<1>();"])
def test_sums_that_nobody_waits_for_are_not_there(wait: str) -> None:
    a, b = factors(128, torch.float16)
    text, right = PRODUCT.replace("products.wait<0>();", wait), a.float() @ b.float().T
    assert not torch.equal(product(a, swizzled(b), text, copies="eager"), right)
    assert torch.equal(product(a, swizzled(b), text, copies="late"), right)


def test_operands_that_are_not_rounded_lose_their_low_bits() -> None:
    a = torch.full((64, 16), 1.0 + 2.0**-11)
    assert torch.equal(product(a, swizzled(torch.eye(16))), torch.ones(64, 16))


def test_a_product_wants_whole_warps() -> None:
    a, b = factors(64, torch.float32)
    text = PRODUCT.replace("  products.begin_group", "  if (lane == 7) return;\n  products.begin_group")
    with pytest.raises(EmulatorError, match="wgmma") as caught:
        product(a, swizzled(b), text, copies="eager")
    assert caught.value.kind == "warp"
