"""Clusters of blocks: what reaches other blocks' shared memory is right in every order, and what is forgotten shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from tconv.emulator import Copies, EmulatorError, Launch, Mode, Order, run
from tconv.jit.compile import compile_source
from tconv.kernels.source import header_directory

MODES: tuple[Mode, ...] = ("plain", "address", "thread")
ORDERS: tuple[Order, ...] = ("ascending", "descending", "random")
COPIES: tuple[Copies, ...] = ("eager", "late")
ROUNDS, STAGES = 7, 3

#: A thread of each block brings its part of a stage, 32 numbers, to all blocks of the cluster. A warp of each adds up
#: the parts, each of them times another number, the other way round, and gives the stage back to all who bring.
RING = """
#include "primitives/clusters.cuh"
struct Tile {
  static constexpr int cluster = SIZE, stages = STAGES;
};
extern "C" __global__ void __launch_bounds__(64, 1) __cluster_dims__(Tile::cluster, 1, 1)
ring(const float* x, float* y, int rounds) {
  TCONV_SHARED(shared);
  unsigned char* const barriers = shared + Tile::stages * Tile::cluster * 128;
  const int rank = tconv::cluster_rank(), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::stages; ++i) {
      tconv::make_barrier(barriers + 16 * i, 1);
      tconv::make_barrier(barriers + 16 * i + 8, Tile::cluster);
    }
    tconv::show_barriers();
  }
  tconv::meet_cluster();  // before
  for (int round = 0; round < rounds; ++round) {
    float* const stage = reinterpret_cast<float*>(shared) + round % Tile::stages * Tile::cluster * 32;
    unsigned char* const full = barriers + round % Tile::stages * 16, * const empty = full + 8;
    const unsigned parity = round / Tile::stages % 2;
    if (threadIdx.x == 0) {
      tconv::wait_cluster(empty, parity ^ 1);
      tconv::arrive_and_expect(full, Tile::cluster * 128);
      const float* const from = x + (blockIdx.x / Tile::cluster * rounds + round) * Tile::cluster * 32;
      tconv::copy_to_cluster(stage + rank * 32, from + rank * 32, 128, full, (1 << Tile::cluster) - 1);
    } else if (threadIdx.x >= 32) {
      tconv::wait(full, parity);
      float sum = 0.0f;
      for (int part = 0; part < Tile::cluster; ++part) sum += (part + 1) * stage[part * 32 + 31 - lane];
      y[(blockIdx.x * rounds + round) * 32 + lane] = sum;
      __syncwarp();
      if (lane < Tile::cluster) tconv::arrive_in_cluster(empty, lane);
    }
  }
  tconv::meet_cluster();  // after
}
"""


def ring(
    size: int,
    mode: Mode = "plain",
    order: Order = "ascending",
    copies: Copies = "late",
    text: str = RING,
    clusters: int = 1,
) -> bool:
    """Whether the ring gives what it should."""
    x = torch.randint(-99, 100, (clusters, ROUNDS, size, 32), generator=torch.Generator().manual_seed(size)).float()
    y = torch.full((clusters, size, ROUNDS, 32), float("nan"))
    text = text.replace("SIZE", str(size)).replace("STAGES", str(STAGES))
    launch = Launch("ring", clusters * size, 64, STAGES * (size * 128 + 16), (x, y, ROUNDS))
    run(text, [launch], mode=mode, order=order, copies=copies)
    right = (x * torch.arange(1.0, size + 1).view(-1, 1)).sum(2).flip(-1)
    return torch.equal(y, right[:, None].expand_as(y))


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "clusters"), [(1, 2), (2, 1), (2, 3), (4, 2)])
def test_stages_go_round(size: int, clusters: int, mode: Mode, order: Order, copies: Copies) -> None:
    assert ring(size, mode, order, copies, clusters=clusters)


#: Each block of the cluster writes numbers to global memory, and then reads those of the next one.
EXCHANGE = """
#include "primitives/clusters.cuh"
extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) exchange(float* given, float* got) {
  TCONV_SHARED(shared);
  const int rank = tconv::cluster_rank(), first = blockIdx.x - rank, t = threadIdx.x;
  const int before = (rank + SIZE - 1) % SIZE, behind = (rank + 1) % SIZE;
  if (t == 0) {
    tconv::make_barrier(shared, 32);
    tconv::show_barriers();
  }
  tconv::meet_cluster();
  given[blockIdx.x * 32 + t] = 100 * rank + t;
  ORDERED
  got[blockIdx.x * 32 + t] = given[(first + behind) * 32 + 31 - t];
  tconv::meet_cluster();
}
"""
ORDERED = {
    "meeting": "tconv::meet_cluster();",
    "arriving": "tconv::arrive_in_cluster(shared, before); tconv::wait_cluster(shared, 0);",
}


def exchange(
    size: int, ordered: str, mode: Mode = "plain", order: Order = "ascending"
) -> tuple[torch.Tensor, torch.Tensor]:
    """What two clusters get, and what they should."""
    given, got = torch.full((2, size, 32), float("nan")), torch.full((2, size, 32), float("nan"))
    text = EXCHANGE.replace("SIZE", str(size)).replace("ORDERED", ordered)
    run(text, [Launch("exchange", 2 * size, 32, 8, (given, got))], mode=mode, order=order)
    ranks = torch.arange(1, size + 1) % size
    right = 100.0 * ranks[:, None] + torch.arange(31.0, -1.0, -1.0)
    return got, right.expand_as(got)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("ordered", ORDERED)
def test_blocks_of_a_cluster_wait_for_each_other(ordered: str, size: int, mode: Mode, order: Order) -> None:
    got, right = exchange(size, ORDERED[ordered], mode, order)
    assert torch.equal(got, right)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ordered", ["", "__syncthreads();", ORDERED["arriving"].replace("wait_cluster", "wait")])
def test_what_orders_no_memory_of_a_cluster_is_a_race(ordered: str, order: Order) -> None:
    """A wait of a block's scope does not see what other blocks did before they arrived."""
    with pytest.raises(EmulatorError) as caught:
        exchange(2, ordered, "thread", order)
    assert caught.value.kind == "race"


RANKS = """
#include "primitives/clusters.cuh"
extern "C" __global__ void __launch_bounds__(32) __cluster_dims__(SIZE) ranks(int* y) {
  if (threadIdx.x == 0) y[blockIdx.x] += 10 * tconv::cluster_rank() + 1;
}
"""


def ranks(size: int, grid: int, blocks: range | None = None, order: Order = "ascending") -> list[int]:
    y = torch.zeros(grid, dtype=torch.int32)
    run(RANKS.replace("SIZE", str(size)), [Launch("ranks", grid, 32, 0, (y,), blocks)], order=order)
    return y.tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_neighbouring_blocks_are_a_cluster(order: Order) -> None:
    assert ranks(2, 6, order=order) == [1, 11] * 3
    assert ranks(4, 8, order=order) == [1, 11, 21, 31] * 2


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("blocks", "clusters"),
    [(range(3, 4), [1]), (range(1, 12, 3), [0, 2, 3, 5]), (range(2, 5), [1, 2]), (range(0, 12, 6), [0, 3])],
)
def test_clusters_of_chosen_blocks_run_as_a_whole_and_once(blocks: range, clusters: list[int], order: Order) -> None:
    assert ranks(2, 12, blocks, order) == [(1, 11)[b % 2] if b // 2 in clusters else 0 for b in range(12)]


def test_a_grid_is_whole_clusters() -> None:
    with pytest.raises(ValueError, match="clusters of 4 blocks; a grid of 6 is not a multiple"):
        ranks(4, 6)


def test_a_cluster_has_up_to_8_blocks() -> None:
    with pytest.raises(EmulatorError, match="up to 8 blocks") as caught:
        ranks(16, 16)
    assert caught.value.kind == "build"


TOLD = "if (lane < Tile::cluster) tconv::arrive_in_cluster(empty, lane);"
MASK = "(1 << Tile::cluster) - 1"
OWN_ONE = ("barriers + 16 * i + 8, Tile::cluster", "barriers + 16 * i + 8, 1")
#: What is done wrong: the changes of the text, and how it shows, in plain mode with copies that land at once and in
#: thread mode with late ones; wrong numbers, or a kind of error.
BUGS: dict[str, tuple[list[tuple[str, str]], set[str], set[str]]] = {
    "a stage is given back by the own block alone": (
        [OWN_ONE, (TOLD, "if (lane == 0) tconv::arrive_in_cluster(empty, rank);")],
        {"numbers"},
        {"race"},
    ),
    "a stage is given back by more than are counted": ([OWN_ONE], {"deadlock", "barrier"}, {"deadlock", "barrier"}),
    "the other block is not told": (
        [(TOLD, "if (lane == 0) tconv::arrive_in_cluster(empty, rank);")],
        {"deadlock"},
        {"deadlock"},
    ),
    "the own block is told instead": ([("(empty, lane)", "(empty, rank)")], {"numbers"}, {"race"}),
    "a stage is given back before it is read": (
        [(TOLD, ""), ("tconv::wait(full, parity);", "tconv::wait(full, parity);\n" + TOLD)],
        {"numbers", "deadlock"},
        {"race"},
    ),
    "the wait for an empty stage is of the block's scope": (
        [("wait_cluster(empty", "wait(empty")],
        set(),
        {"race"},
    ),
    "nobody waits for an empty stage": ([("tconv::wait_cluster(empty, parity ^ 1);", "")], {"barrier"}, {"barrier"}),
    "an empty stage of the wrong phase": ([("parity ^ 1", "parity")], {"deadlock"}, {"deadlock"}),
    "a full stage of the wrong phase": (
        [("wait(full, parity)", "wait(full, parity ^ 1)")],
        {"deadlock", "barrier"},
        {"barrier"},
    ),
    "blocks do not meet before": ([("tconv::meet_cluster();  // before", "__syncthreads();")], {"barrier"}, {"race"}),
    "blocks do not meet after": ([("tconv::meet_cluster();  // after", "")], {"cluster"}, {"cluster"}),
    "a copy goes to the own block alone": ([(MASK, "1 << rank")], {"deadlock"}, {"deadlock"}),
    "a copy goes to a block that is none": ([(MASK, "(2 << Tile::cluster) - 1")], {"cluster"}, {"cluster"}),
    "an arrival at a block that is none": ([("(empty, lane)", "(empty, lane + 1)")], {"cluster"}, {"cluster"}),
    "a part goes to another's place": (
        [("stage + rank * 32, from", "stage + (rank ^ 1) * 32, from")],
        {"numbers"},
        {"numbers"},
    ),
    "all parts go to one place": ([("stage + rank * 32, from", "stage, from")], {"numbers"}, {"race"}),
    "a part is that of another": ([("from + rank * 32", "from")], {"numbers"}, {"numbers"}),
    "a block expects its own part alone": (
        [("Tile::cluster * 128);\n      const", "128);\n      const")],
        {"deadlock"},
        {"race"},
    ),
}
#: A random order may hide by chance that nobody waits.
ORDERLY: tuple[Order, ...] = ("ascending", "descending")


def outcome(bug: str, mode: Mode, order: Order, copies: Copies) -> str:
    text = RING
    for right, wrong in BUGS[bug][0]:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    try:
        return "right" if ring(2, mode, order, copies, text) else "numbers"
    except EmulatorError as error:
        return error.kind


@pytest.mark.parametrize("order", ORDERLY)
@pytest.mark.parametrize("bug", [bug for bug, (_, shows, _) in BUGS.items() if shows])
def test_a_bug_shows_in_plain_mode(bug: str, order: Order) -> None:
    assert outcome(bug, "plain", order, "eager") in BUGS[bug][1]


@pytest.mark.parametrize("order", ORDERLY)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_shows_in_thread_mode(bug: str, order: Order) -> None:
    assert outcome(bug, "thread", order, "late") in BUGS[bug][2]


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_to_a_block_that_has_ended(order: Order) -> None:
    kernel = """
#include "primitives/clusters.cuh"
extern "C" __global__ void __cluster_dims__(2) early(const float* x) {
  TCONV_SHARED(shared);
  tconv::make_barrier(shared, 1);
  tconv::meet_cluster();
  if (tconv::cluster_rank() == 1) return;
  tconv::arrive_and_expect(shared, 16);
  tconv::copy_to_cluster(shared + 16, x, 16, shared, 3);
  tconv::wait(shared, 0);
}
"""
    with pytest.raises(EmulatorError, match="a copy of block 0 reaches the shared memory of block 1, which had ended"):
        run(kernel, [Launch("early", 2, 1, 32, (torch.zeros(4),))], copies="late", order=order)


def test_reports_name_both_blocks() -> None:
    text = RING.replace("tconv::meet_cluster();  // after", "")
    with pytest.raises(EmulatorError, match="an arrival of block 1 reaches the shared memory of block 0, which had"):
        ring(2, text=text)
    with pytest.raises(EmulatorError) as caught:
        ring(2, text=RING.replace("parity ^ 1", "parity"))
    for block in range(2):
        assert f"no thread of block {block} of kernel ring can go on" in caught.value.report
    assert "threads 1-31: where the cluster meets" in caught.value.report


@pytest.mark.parametrize(
    ("wrong", "kind", "report"),
    [
        (("stage + rank * 32, from", "stage + rank * 32 + 1, from"), "undefined", "misaligned address"),
        ((f"32, 128, full, {MASK}", "32, 4096, full, 2"), "address", "the end of block 1's 816 bytes of shared memory"),
        (("full, (1 <<", "barriers + 4096 * 64, (1 <<"), "cluster", "has no place in another's"),
    ],
)
def test_places_are_in_shared_memory_and_aligned(wrong: tuple[str, str], kind: str, report: str) -> None:
    with pytest.raises(EmulatorError, match=report) as caught:
        ring(2, "address", copies="eager", text=RING.replace(*wrong))
    assert caught.value.kind == kind


def test_nvrtc_compiles_it() -> None:
    text = RING.replace("SIZE", "2").replace("STAGES", str(STAGES))
    compiled = compile_source(text, "sm_90a", name="ring", headers=header_directory())
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    assert "Compiling entry function 'ring' for 'sm_90a'" in compiled.log


def test_nvcc_compiles_it(cuda_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "ring.cu"
    source.write_text(RING.replace("SIZE", "2").replace("STAGES", str(STAGES)), encoding="utf-8")
    command = [str(cuda_home / "bin" / "nvcc"), "-std=c++17", "-arch=sm_90a", f"-I{header_directory()}", "-cubin"]
    subprocess.run([*command, str(source), "-o", str(tmp_path / "ring.cubin")], check=True)
