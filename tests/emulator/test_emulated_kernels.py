"""Correct kernels give the right numbers in every mode and order, with the same bits, and nothing is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tconv.emulator import EmulatorError, Fibers, Launch, Mode, Order, run

ORDERS: tuple[Order, ...] = ("ascending", "descending", "random")
# ucontext is what machines other than x86-64 take; under ThreadSanitizer it is only slower.
SETTINGS: tuple[tuple[Mode, Fibers], ...] = (
    ("plain", "native"),
    ("address", "native"),
    ("thread", "native"),
    ("plain", "ucontext"),
    ("address", "ucontext"),
)

REDUCTION = """
// Each block sums up to 128 values: extern "C" __global__ void not_a_kernel(int);
extern "C" __global__ void __launch_bounds__(128, 2)
block_sum(const float* __restrict__ x, float* __restrict__ sums, int count) {
  float* tile = reinterpret_cast<float*>(tconv_emulator::shared_memory());
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < count ? x[i] : 0.0f;
  for (int width = blockDim.x / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) tile[threadIdx.x] += tile[threadIdx.x + width];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = tile[0];
}
"""

SCAN = """
// Prefix sums of each warp, the warps' totals through shared memory, and what the lanes vote.
extern "C" __global__ void scan(const int* x, int* prefix, unsigned* odd, int* flags) {
  int* totals = reinterpret_cast<int*>(tconv_emulator::shared_memory());
  const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  const int own = x[threadIdx.x];
  int sum = own;
  for (int delta = 1; delta < 32; delta *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, sum, delta);
    if (lane >= delta) sum += below;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  for (int before = 0; before < warp; ++before) sum += totals[before];
  prefix[threadIdx.x] = sum;
  const unsigned ballot = __ballot_sync(0xffffffffu, own & 1);
  if (lane == 0) odd[warp] = ballot;
  const int any = __any_sync(0xffffffffu, own == 7), all = __all_sync(0xffffffffu, own < 100);
  if (lane == 5) flags[warp] = any * 2 + all;
}
"""

VECTORS = """
extern "C" __global__ void scale4(const float4* x, float4* y, int count, long long factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float4 v = __ldg(x + i);
  y[i] = make_float4(v.x * factor, fmaf(v.y, factor, 1.0f), max(v.z, 0.0f), rsqrtf(v.w));
}
"""

SHUFFLES = """
extern "C" __global__ void shuffles(long long* y, double* broadcast) {
  const int lane = threadIdx.x;
  y[lane] = __shfl_xor_sync(0xffffffffu, lane, 5);
  y[32 + lane] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  y[64 + lane] = __shfl_sync(0xffffffffu, 1ll << lane, 2, 16);
  y[96 + lane] = __shfl_xor_sync(0xffffffffu, lane, 12, 8);
  broadcast[lane] = __shfl_sync(0xffffffffu, lane * 0.5, 31);
}
"""

GROUPS = """
// The halves of a warp go separate ways, with masks of their own, and meet again.
extern "C" __global__ void halves(int* y) {
  int* tile = reinterpret_cast<int*>(tconv_emulator::shared_memory());
  const int lane = threadIdx.x;
  int value = lane;
  if (lane < 16) {
    for (int delta = 8; delta > 0; delta /= 2) value += __shfl_xor_sync(0x0000ffffu, value, delta);
  } else {
    value = __shfl_sync(0xffff0000u, value, 20);
  }
  tile[lane] = value;
  __syncwarp();
  y[lane] = tile[31 - lane];
}
"""

LEAVERS = """
// Whole warps may leave before a barrier, and lanes before a vote or a __syncwarp: those that stay go on.
extern "C" __global__ void leavers(int* y) {
  int* tile = reinterpret_cast<int*>(tconv_emulator::shared_memory());
  if (threadIdx.x >= 64) return;
  tile[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const int value = tile[63 - threadIdx.x];
  __syncthreads();
  if (threadIdx.x % 32 >= 24) return;
  tile[threadIdx.x] = value;
  __syncwarp();
  const unsigned voters = __ballot_sync(0xffffffffu, 1);
  y[threadIdx.x] = tile[threadIdx.x ^ 1] + static_cast<int>(__popc(voters)) * 100;
}
"""


@pytest.mark.rotates(9)
@pytest.mark.parametrize(("mode", "fibers"), SETTINGS)
def test_block_reduction(mode: Mode, fibers: Fibers) -> None:
    x = torch.linspace(-3, 5, 300)
    padded = torch.nn.functional.pad(x, (0, 84)).view(3, 128)
    results = []
    for order in ORDERS:
        sums = torch.full((3,), torch.nan)
        launch = Launch("block_sum", 3, 128, 512, (x, sums, 300))
        run(REDUCTION, [launch], mode=mode, order=order, fibers=fibers, seed=7)
        torch.testing.assert_close(sums, padded.double().sum(1).float())
        results.append(sums)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize(("mode", "fibers"), SETTINGS)
@pytest.mark.parametrize("order", ORDERS)
def test_warp_scan_and_votes(mode: Mode, fibers: Fibers, order: Order) -> None:
    x = torch.randint(0, 100, (96,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    x[40] = 7
    x[70] = 100
    prefix, odd, flags = (torch.full((n,), -1, dtype=torch.int32) for n in (96, 3, 3))
    run(SCAN, [Launch("scan", 1, 96, 12, (x, prefix, odd, flags))], mode=mode, order=order, fibers=fibers)
    assert torch.equal(prefix, x.cumsum(0, dtype=torch.int32))
    bits = [sum((int(v) & 1) << lane for lane, v in enumerate(warp)) for warp in x.view(3, 32)]
    assert [int(value) % 2**32 for value in odd] == bits
    assert flags.tolist() == [2 * bool((w == 7).any()) + bool((w < 100).all()) for w in x.view(3, 32)]


@pytest.mark.parametrize("mode", ["plain", "address"])
def test_vector_loads(mode: Mode) -> None:
    x = torch.tensor([[1.5, -2.0, -3.0, 4.0]]) * torch.arange(1, 101).view(-1, 1)
    y = torch.full_like(x, torch.nan)
    run(VECTORS, [Launch("scale4", 2, 64, 0, (x, y, 100, 2**33))], mode=mode)
    expected = torch.stack([x[:, 0] * 2**33, x[:, 1] * 2**33 + 1, x[:, 2].clamp(min=0), x[:, 3].rsqrt()], 1)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_follow_ptx(order: Order) -> None:
    y = torch.zeros(4, 32, dtype=torch.int64)
    broadcast = torch.zeros(32, dtype=torch.float64)
    run(SHUFFLES, [Launch("shuffles", 1, 32, 0, (y, broadcast))], order=order)
    lanes = range(32)
    assert y[0].tolist() == [lane ^ 5 for lane in lanes]
    assert y[1].tolist() == [lane + 3 if lane % 8 < 5 else lane for lane in lanes]
    assert y[2].tolist() == [1 << (lane // 16 * 16 + 2) for lane in lanes]
    # A lane of an earlier segment can be read, one of a later segment cannot.
    assert y[3].tolist() == [lane ^ 12 if lane ^ 12 <= lane | 7 else lane for lane in lanes]
    assert broadcast.tolist() == [15.5] * 32


@pytest.mark.parametrize("mode", ["plain", "thread"])
@pytest.mark.parametrize("order", ORDERS)
def test_parts_of_a_warp_meet_separately(mode: Mode, order: Order) -> None:
    y = torch.zeros(32, dtype=torch.int32)
    run(GROUPS, [Launch("halves", 1, 32, 128, (y,))], mode=mode, order=order)
    assert y.tolist() == [20] * 16 + [120] * 16


@pytest.mark.parametrize("mode", ["plain", "thread"])
@pytest.mark.parametrize("order", ORDERS)
def test_threads_may_leave_where_hardware_allows_it(mode: Mode, order: Order) -> None:
    y = torch.zeros(64, dtype=torch.int32)
    run(LEAVERS, [Launch("leavers", 1, 128, 256, (y,))], mode=mode, order=order)
    expected = [2400 + 63 - (t ^ 1) if t % 32 < 24 else 0 for t in range(64)]
    assert y.tolist() == expected


def test_chosen_blocks_of_a_huge_grid() -> None:
    source = 'extern "C" __global__ void mark(int* y, unsigned step) { y[blockIdx.x / step] = gridDim.x - blockIdx.x; }'
    grid, step = 2**31 - 1, 2**27
    y = torch.zeros(16, dtype=torch.int32)
    for order in ORDERS:
        y.zero_()
        run(source, [Launch("mark", grid, 1, 0, (y, step), blocks=range(0, grid, step))], order=order, seed=3)
        assert y.tolist() == [grid - n * step for n in range(16)]


def test_launches_see_what_earlier_launches_wrote() -> None:
    source = """
    extern "C" __global__ void prepare(const float* x, float* prepared) { prepared[threadIdx.x] = 2 * x[threadIdx.x]; }
    extern "C" __global__ void use(const float* prepared, const float* bias, float* y) {
      y[threadIdx.x] = prepared[31 - threadIdx.x] + (bias ? bias[threadIdx.x] : 0.0f);
    }
    """
    x, prepared, y = torch.arange(32.0), torch.zeros(32), torch.zeros(32)
    launches = [Launch("prepare", 1, 32, 0, (x, prepared)), Launch("use", 1, 32, 0, (prepared, None, y))]
    for mode in ("plain", "address", "thread"):
        run(source, launches, mode=mode)
        assert torch.equal(y, 2 * x.flip(0))


def test_shared_memory_starts_as_nan_for_every_block() -> None:
    source = """
    extern "C" __global__ void peek(float* y) {
      float* tile = reinterpret_cast<float*>(tconv_emulator::shared_memory());
      y[blockIdx.x] = tile[0];
      tile[0] = 1.0f;
    }
    """
    y = torch.zeros(8)
    run(source, [Launch("peek", 8, 1, 4, (y,))])
    assert y.isnan().all()


def test_tensors_of_any_dtype_shape_and_offset() -> None:
    source = """
    extern "C" __global__ void copy(const unsigned short* x, unsigned short* y, int count) {
      if (threadIdx.x < count) y[threadIdx.x] = x[threadIdx.x];
    }
    extern "C" __global__ void where(const char* x, long long* y) { *y = reinterpret_cast<long long>(x) % 256; }
    """
    x = torch.randn(41).bfloat16()[3:]
    y, place, empty = torch.zeros(38).bfloat16(), torch.zeros((), dtype=torch.int64), torch.empty(0)
    run(source, [Launch("copy", 1, 64, 0, (x, y, 38)), Launch("where", 1, 1, 0, (x, place))])
    assert torch.equal(x, y)
    assert place.item() == 6  # a GPU's allocations start at multiples of 256
    run(source, [Launch("copy", 1, 64, 0, (empty, empty, 0))])


FAR_APART = """
extern "C" __global__ void far_apart(const short* x, short* y, long long step, int past) {
  y[blockIdx.x * step + past] = x[blockIdx.x * step] + 1;
}
"""


@pytest.mark.parametrize("mode", ["plain", "address", "thread"])
def test_a_sparse_file_of_many_gigabytes_is_mapped(tmp_path: Path, mode: Mode) -> None:
    step, count = 2**31, 4
    x, y = (torch.from_file(str(tmp_path / n), shared=True, size=step * count, dtype=torch.int16) for n in "xy")
    x[::step] = torch.arange(count).short()
    run(FAR_APART, [Launch("far_apart", count, 1, 0, (x, y, step, 1), blocks=range(1, count))], mode=mode)
    assert y[1::step].tolist() == [0, 2, 3, 4]
    assert (tmp_path / "y").stat().st_blocks * 512 < 2**20, "only touched pages take memory"


@pytest.mark.parametrize(("mode", "past"), [("plain", -1), ("plain", 3 * 2048), ("address", -1), ("address", 5000)])
def test_a_mapped_file_has_ends(tmp_path: Path, mode: Mode, past: int) -> None:
    """Ends to the byte under the sanitizer, else to the page: 5000 elements lie on three."""
    x, y = (torch.from_file(str(tmp_path / n), shared=True, size=5000, dtype=torch.int16) for n in "xy")
    with pytest.raises(EmulatorError, match=r"bytes (before the start|past the end) of argument 1"):
        run(FAR_APART, [Launch("far_apart", 1, 1, 0, (x, y, 0, past))], mode=mode)


def test_a_text_with_primitives_of_its_own_takes_those() -> None:
    """As files have them that older versions wrote."""
    source = """
    namespace tconv {
    inline float half_to_float(unsigned short) { return 7; }
    }
    extern "C" __global__ void both(float* y) {
      y[0] = tconv::half_to_float(0x3c00);
      y[1] = tconv::float_to_half(1.0f);
    }
    """
    y = torch.zeros(2)
    run(source, [Launch("both", grid=1, block=1, shared_bytes=0, arguments=(y,))])
    assert y.tolist() == [7, 0x3C00]
