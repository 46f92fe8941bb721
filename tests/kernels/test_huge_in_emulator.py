"""Sizes beyond 2^31 without the memory for them: chosen blocks of the grid over sparse files in memory.

A block's outputs are found by running it on an input of zeros: what it wrote is the bias, elsewhere the file is empty.
Then their inputs are filled in, and it runs again.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest
import torch
from huge import HUGE, LARGE_GRIDS, LIMIT, input_at, inputs_of, output_at, weights_of
from torch import Tensor

from tconv.emulator import EmulatorError, Launch, run
from tconv.kernels import source
from tconv.planner import DIRECT, MMA, Gpu, Plan
from tconv.problem import Layer, Problem

#: Outputs that are compared, in stretches, of all that the chosen blocks write.
STRETCHES, STRETCH = 60, 256

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux's files in memory")


class SparseFile:
    """A file in memory, of which only pages that were written take any."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._descriptor = os.memfd_create("tconv-huge")
        name = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self.tensor = torch.from_file(name, shared=True, size=math.prod(shape), dtype=dtype)

    def __enter__(self) -> SparseFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def nonzero(self) -> Tensor:
        """The indices of the elements that are not 0, looked for only where the file has pages."""
        found, end, size = [torch.empty(0, dtype=torch.int64)], 0, self.tensor.element_size()
        while True:
            try:
                start = os.lseek(self._descriptor, end, os.SEEK_DATA)
            except OSError:  # no data behind `end`
                return torch.cat(found)
            end = os.lseek(self._descriptor, start, os.SEEK_HOLE)
            found.append(self.tensor[start // size : end // size].nonzero().flatten() + start // size)


def chosen_blocks_are_right(plan: Plan, text: str | None = None) -> bool:
    """Whether the first, a middle and the last block write about their share of the outputs, and right numbers."""
    problem = plan.problem
    dtype = getattr(torch, problem.layer.dtype)
    weights = weights_of(problem.layer)
    text = text or source.inlined([(plan.kernel, "tconv_kernel")])
    # Not quite the middle: there the grid's parts might all be the same one.
    blocks = (0, plan.grid // 2 + 1, plan.grid - 1)
    with SparseFile(problem.input_shape, dtype) as x, SparseFile(problem.output_shape, dtype) as y:
        weight, launches = weights.weight, []
        if plan.preparation is not None:
            weight = torch.empty(plan.preparation.bytes // dtype.itemsize, dtype=dtype)
            of_weights = (plan.preparation.grid, plan.preparation.threads, 0, (weights.weight, weight))
            launches.append(Launch("tconv_kernel_weights", *of_weights))
        sizes = (problem.y_channels, problem.batch, *problem.input_size, *problem.output_size)
        arguments = (x.tensor, weight, weights.bias, y.tensor, *sizes)
        launches += [
            Launch("tconv_kernel", plan.grid, plan.kernel.threads, plan.shared_bytes, arguments, range(n, n + 1))
            for n in blocks
        ]
        run(text, launches)
        written = y.nonzero()
        share = y.tensor.numel() * len(blocks) / plan.grid
        if not share / 4 < len(written) < share * 4:
            return False
        starts = torch.linspace(0, len(written) - 1, STRETCHES).long()[:, None]
        compared = written[(starts + torch.arange(STRETCH)).clamp(max=len(written) - 1).flatten().unique()]
        for index in inputs_of(problem, compared):
            x.tensor[index] = input_at(index).to(dtype)
        run(text, launches)
        return torch.equal(y.tensor[compared].double(), output_at(problem, weights, compared))


def one_block_tile_a_block(problem):
    """The plan on tensor cores, for so many multiprocessors that no block goes through several block tiles."""
    kernel = MMA.plan(problem, Gpu.h200()).kernel
    return MMA.plan_with(problem, kernel, replace(Gpu.h200(), multiprocessors=2**28))


@pytest.mark.rotates(18)
@pytest.mark.parametrize("name", HUGE)
def test_chosen_blocks_of_huge_problems(name):
    assert chosen_blocks_are_right(DIRECT.plan(HUGE[name], Gpu.h200()))


@pytest.mark.rotates(18)
@pytest.mark.parametrize("name", ["input and output", "a plane of the output", "a plane of the input", "positions"])
def test_chosen_blocks_on_tensor_cores(name):
    assert chosen_blocks_are_right(one_block_tile_a_block(HUGE[name]))


def test_lanes_that_store_channels_planes_apart():
    """Each plane has fewer than 2^31 outputs; a lane's next channel is several planes on."""
    layer = Layer(2, 4, 16, (1, 8, 1), (1, 8, 1), bias=True, precision="fp16")
    assert chosen_blocks_are_right(one_block_tile_a_block(Problem(layer, 1, (1, 2**22, 16))))


@pytest.mark.parametrize("name", ["input and output", "a plane of the output", "positions"])
def test_32_bits_are_not_enough(name):
    """The same with all 64-bit arithmetic of the kernel replaced."""
    plan = DIRECT.plan(HUGE[name], Gpu.h200())
    text = source.inlined([(plan.kernel, "tconv_kernel")])
    try:
        assert not chosen_blocks_are_right(plan, text.replace("long long", "int"))
    except EmulatorError as error:
        assert error.kind == "crash"


def test_the_problems_are_huge():
    assert math.prod(HUGE["input and output"].input_shape) > LIMIT
    for name, problem in HUGE.items():
        assert max(math.prod(problem.input_shape), math.prod(problem.output_shape)) > LIMIT, name
    assert math.prod(HUGE["a plane of the output"].output_size) > LIMIT
    assert math.prod(HUGE["a plane of the input"].input_size) > LIMIT
    assert math.prod(HUGE["a volume"].input_size) > LIMIT
    assert all(DIRECT.plan(HUGE[name], Gpu.h200()).grid > 65535 for name in LARGE_GRIDS)
    wide = {DIRECT.plan(problem, Gpu.h200()).kernel.wide_index for problem in HUGE.values()}
    assert wide == {True, False}, "64-bit offsets matter where positions have 32 bits, too"
