"""Sizes beyond 2^31 on a GPU: `direct` writes everything, and chosen outputs are right; so is what the library takes.

Values are small integers, so that every family gives the same bits.
"""

from __future__ import annotations

import math

import pytest
import torch
from huge import HUGE, LIMIT, Weights, input_at, output_at, weights_of
from torch import Tensor

import tconv
from tconv.dispatch import decide
from tconv.jit.loader import gpu_of, launcher
from tconv.planner import DIRECT
from tconv.problem import Problem

pytestmark = pytest.mark.gpu

#: Elements that are filled or looked at together.
K_TILE = 2**26
#: Outputs in a row that are compared, at places of which each may hide a mistake of its own, and at random ones.
STRETCH, RANDOM_PLACES = 2**14, 30
SPARE_BYTES = 6 * 2**30


def needs_memory(problem: Problem) -> None:
    items = math.prod(problem.input_shape) + 2 * math.prod(problem.output_shape)
    needed, free = items * problem.layer.item_bytes + SPARE_BYTES, torch.cuda.mem_get_info()[0]
    if free < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free GPU memory, got {free / 2**30:.0f}")


def filled_input(problem: Problem) -> Tensor:
    x = torch.empty(problem.input_shape, dtype=getattr(torch, problem.layer.dtype), device="cuda")
    for start in range(0, x.numel(), K_TILE):
        part = x.view(-1)[start : start + K_TILE]
        part.copy_(input_at(torch.arange(start, start + len(part), device="cuda")))
    return x


def chosen_starts(problem: Problem) -> list[int]:
    """Where stretches of outputs begin: the first and the last, those around each multiple of 2^31, some at random."""
    last = math.prod(problem.output_shape) - STRETCH
    borders = [border - STRETCH // 2 for border in range(LIMIT, last, LIMIT)]
    places = torch.randint(last, (RANDOM_PLACES,), generator=torch.Generator().manual_seed(5)).tolist()
    return [0, last, *borders, *places]


@pytest.mark.parametrize("name", HUGE)
def test_huge_problems(name):
    problem = HUGE[name]
    needs_memory(problem)
    plan = DIRECT.plan(problem, gpu_of(0))
    weights = Weights(*(tensor.cuda() for tensor in weights_of(problem.layer)))
    x = filled_input(problem)
    y = torch.full(problem.output_shape, float("nan"), dtype=x.dtype, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    launcher(plan, 0).enqueue(stream, x.data_ptr(), *(tensor.data_ptr() for tensor in weights), y.data_ptr())

    layer, used = problem.layer, slice(3 - problem.layer.spatial_dims, None)
    arguments = (layer.stride[used], layer.padding[used], problem.output_padding[used], layer.groups)
    call = (x, *weights, *arguments, layer.dilation[used])
    taken = decide(*call).plan
    assert taken is not None and (taken == plan or taken.kernel.family == "mma")
    front = (tconv.conv_transpose1d, tconv.conv_transpose2d, tconv.conv_transpose3d)[layer.spatial_dims - 1]
    again = front(*call)

    for start in range(0, y.numel(), K_TILE):
        part = y.view(-1)[start : start + K_TILE]
        assert not part.isnan().any(), f"some of the outputs from {start} on are never written"
        assert torch.equal(part, again.view(-1)[start : start + K_TILE])
    starts = chosen_starts(problem)
    got = torch.cat([y.view(-1)[start : start + STRETCH] for start in starts])
    chosen = torch.cat([torch.arange(start, start + STRETCH, device="cuda") for start in starts])
    assert torch.equal(got.double(), output_at(problem, weights, chosen))
