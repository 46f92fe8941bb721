"""Each planted bug is found, with the kernel's line; its corrected twin is not reported."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from tconv.emulator import EmulatorError, Kind, Launch, Mode, Order, run

ORDERS: tuple[Order, ...] = ("ascending", "descending", "random")
HEAD = """
extern "C" __global__ void kernel(const float* x, float* y, int count) {
  float* tile = reinterpret_cast<float*>(tconv_emulator::shared_memory());
  const int t = threadIdx.x, lane = t % 32;
"""


@dataclass(frozen=True)
class Bug:
    """A kernel's body in which `wrong` stands for `right`; the report must name the lines that hold `marks`."""

    kind: Kind
    mode: Mode
    body: str
    right: str
    wrong: str
    marks: tuple[str, ...]
    says: str = ""
    grid: int = 1

    def source(self, part: str) -> str:
        return HEAD + self.body.replace("BUG", part) + "\n}\n"

    def lines(self) -> list[str]:
        texts = self.source(self.wrong).splitlines()
        return [
            f"kernel.cu:{number}" for number, text in enumerate(texts, 1) if any(mark in text for mark in self.marks)
        ]


BUGS = {
    "missing __syncthreads": Bug(
        "race",
        "thread",
        """
  tile[t] = x[t];  // write
  BUG
  y[t] = tile[(t + 1) % 64];  // read
""",
        "__syncthreads();",
        "",
        ("// write", "// read"),
        "data race",
    ),
    "missing second __syncthreads": Bug(
        "race",
        "thread",
        """
  float sum = 0;
  for (int round = 0; round < 3; ++round) {
    tile[t] = x[t] + round;  // write
    __syncthreads();
    sum += tile[63 - t];  // read
    BUG
  }
  y[t] = sum;
""",
        "__syncthreads();",
        "",
        ("// write", "// read"),
        "data race",
    ),
    "missing __syncwarp": Bug(
        "race",
        "thread",
        """
  tile[t] = x[t];  // write
  BUG
  y[t] = tile[t ^ 1];  // read
""",
        "__syncwarp();",
        "",
        ("// write", "// read"),
        "data race",
    ),
    "a shuffle in place of a __syncwarp": Bug(
        "race",
        "thread",
        """
  tile[t] = x[t];  // write
  const float other = __shfl_xor_sync(0xffffffffu, x[t], 1);
  BUG
  y[t] = tile[t ^ 1] + other;  // read
""",
        "__syncwarp();",
        "",
        ("// write", "// read"),
        "data race",
    ),
    "a __syncwarp in place of a __syncthreads": Bug(
        "race",
        "thread",
        """
  tile[t] = x[t];  // write
  BUG;
  y[t] = tile[(t + 32) % 64];  // read
""",
        "__syncthreads()",
        "__syncwarp()",
        ("// write", "// read"),
        "data race",
    ),
    "two blocks write one element": Bug(
        "race",
        "thread",
        """
  const int i = (blockIdx.x * BUG + t) % 128;
  y[i] = i;  // write
""",
        "64",
        "63",
        ("// write",),
        "block 0",
        grid=2,
    ),
    "two blocks write the same elements, past a barrier": Bug(
        "race",
        "thread",
        """
  tile[t] = x[t];
  __syncthreads();
  y[BUG + t] = tile[t];  // write
""",
        "blockIdx.x * 64",
        "blockIdx.x",
        ("// write",),
        "block 0",
        grid=2,
    ),
    "global index past the end": Bug(
        "address",
        "address",
        """
  const int i = blockIdx.x * 64 + t;
  if (i BUG 2 * count) y[i] = 1;  // store
""",
        "<",
        "<=",
        ("// store",),
        "0 bytes past the end of argument 1 of 512 bytes",
        grid=3,
    ),
    "global index before the start": Bug(
        "address",
        "address",
        """
  float before = 0;
  if (t BUG 0) before = x[t - 1];  // load
  y[t] = before;
""",
        ">",
        ">=",
        ("// load",),
        "4 bytes before the start of argument 0 of 400 bytes",
    ),
    "shared index past the end": Bug(
        "address",
        "address",
        """
  tile[t] = x[t];
  __syncthreads();
  y[t] = tile[BUG];  // load
""",
        "(t + 1) % 64",
        "t + 1",
        ("// load",),
        "0 bytes past the end of the block's 256 bytes of shared memory",
    ),
    "misaligned float4": Bug(
        "undefined",
        "address",
        """
  const float4 v = *reinterpret_cast<const float4*>(x + BUG);  // load
  if (t == 0) y[0] = v.x + v.w;
""",
        "4",
        "3",
        ("// load",),
        "misaligned address",
    ),
    "a lane gone before a shuffle": Bug(
        "warp",
        "plain",
        """
  BUG
  float sum = x[t];
  for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(0xffffffffu, sum, delta);  // shuffle
  if (lane == 0) y[t] = sum;
""",
        "",
        "if (lane == 31) return;",
        ("// shuffle",),
        "31",
    ),
    "a shuffle from outside its mask": Bug(
        "warp",
        "plain",
        """
  if (lane < 8) y[t] = __shfl_sync(0xffu, x[t], BUG);
""",
        "7",
        "8",
        (),
        "reads from lane 8, which takes no part",
    ),
    "a lane that its mask lacks": Bug(
        "warp",
        "plain",
        """
  y[t] = __ballot_sync(BUG, x[t] > 2) ? 1 : 0;  // vote
""",
        "0xffffffffu",
        "0xfffffffeu",
        ("// vote",),
        "lacks this lane",
    ),
    "a barrier under divergence": Bug(
        "divergence",
        "plain",
        """
  if (t BUG 32) {
    tile[t] = x[t];
    __syncthreads();  // one
  } else {
    __syncthreads();  // other
  }
  y[t] = x[t];
""",
        ">= 0 || t <",
        "<",
        ("// one", "// other"),
        "threads of a block arrive at different __syncthreads",
    ),
    "a part of a warp leaves before a barrier": Bug(
        "divergence",
        "plain",
        """
  if (t >= BUG) return;
  tile[t] = x[t];
  __syncthreads();  // barrier
  y[t] = tile[31 - t % 32];
""",
        "32",
        "40",
        ("// barrier",),
        "a part of warp 1 is at __syncthreads and the rest has left",
    ),
    "halves of a warp at different primitives": Bug(
        "deadlock",
        "plain",
        """
  if (lane < 16) {
    __syncwarp();  // half
  } else {
    BUG;  // half
  }
  __syncthreads();
  y[t] = 1;
""",
        "__syncwarp()",
        "__any_sync(0xffffffffu, 1)",
        ("// half",),
        "waits for lanes 0-15 of warp 0",
    ),
    "masks that do not agree": Bug(
        "deadlock",
        "plain",
        """
  if (t == 0) y[0] = __shfl_sync(0x3u, x[0], 1);  // shuffle
  if (t == 1) y[1] = __shfl_sync(BUG, x[1], 0);  // shuffle
  __syncthreads();  // barrier
""",
        "0x3u",
        "0x7u",
        ("// shuffle", "// barrier"),
        "waits for lanes 0, 2 of warp 0",
    ),
}
CASES = [pytest.param(bug, id=name) for name, bug in BUGS.items()]


def launch(bug: Bug, part: str, order: Order) -> torch.Tensor:
    """Blocks of 64 threads with 64 elements of shared memory; x has 100 elements, y 128."""
    x, y = torch.arange(100.0), torch.full((128,), -1.0)
    run(bug.source(part), [Launch("kernel", bug.grid, 64, 256, (x, y, 64))], mode=bug.mode, order=order)
    return y


@pytest.mark.parametrize("bug", CASES)
def test_planted_bug_is_found(bug: Bug) -> None:
    for order in ORDERS:
        with pytest.raises(EmulatorError) as error:
            launch(bug, bug.wrong, order)
        assert error.value.kind == bug.kind, error.value.report
        assert bug.says in error.value.report
    report = error.value.report
    assert any(line in report for line in bug.lines()) or not bug.marks, report
    if bug.kind == "race":
        assert all(line in report for line in bug.lines()), report


@pytest.mark.parametrize("bug", CASES)
def test_corrected_twin_is_clean(bug: Bug) -> None:
    results = [launch(bug, bug.right, order) for order in ORDERS]
    assert all(torch.equal(results[0], result) for result in results[1:])
    assert (results[0] != -1).any()


def test_missing_barrier_shows_in_plain_results_of_some_order() -> None:
    bug = replace(BUGS["missing __syncthreads"], mode="plain")
    right = launch(bug, bug.right, "ascending")[:64]
    assert torch.equal(right, torch.arange(1.0, 65.0) % 64)
    wrong = [launch(bug, bug.wrong, order)[:64] for order in ORDERS]
    assert any(not torch.equal(result, right) for result in wrong)


def test_deadlock_report_names_every_waiting_place() -> None:
    bug = BUGS["masks that do not agree"]
    with pytest.raises(EmulatorError) as error:
        launch(bug, bug.wrong, "ascending")
    one, other, barrier = bug.lines()
    assert "no thread of block 0 of kernel kernel can go on" in error.value.report
    assert f"thread 0: at __shfl_sync with mask 0x00000003, {one}, waits for lanes 1" in error.value.report
    assert f"thread 1: at __shfl_sync with mask 0x00000007, {other}, waits for lanes 0, 2" in error.value.report
    assert f"threads 2-63: at __syncthreads, {barrier}" in error.value.report
    assert "__syncthreads();  // barrier" in error.value.report


def test_stack_overflow_and_endless_loop_are_named() -> None:
    deep = """
    __device__ int depth(volatile char* outer, int n) {
      volatile char own[4096];
      own[0] = outer[0];
      return n == 0 ? own[0] : depth(own, n - 1) + own[0];
    }
    extern "C" __global__ void kernel(int* y, int n) { char c = 1; y[0] = depth(&c, n); }
    """
    with pytest.raises(EmulatorError, match=r"thread 0 need more than its stack of 128 KiB") as error:
        run(deep, [Launch("kernel", 1, 1, 0, (torch.zeros(1, dtype=torch.int32), 1000))])
    assert error.value.kind == "crash"
    endless = 'extern "C" __global__ void kernel(volatile int* y) { while (y[0] == 0) {} }'
    with pytest.raises(EmulatorError, match=r"no end within 0.5 s") as error:
        run(endless, [Launch("kernel", 1, 1, 0, (torch.zeros(1, dtype=torch.int32),))], timeout_s=0.5)
    assert error.value.kind == "timeout"
