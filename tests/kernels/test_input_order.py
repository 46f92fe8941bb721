"""The kernel that brings contiguous inputs into channels_last order, alone, with few blocks and many."""

from __future__ import annotations

import pytest
import torch
from kernel_runs import INSTANCES

from tconv.emulator import Launch, run
from tconv.evaluation.reference import rounded_tf32
from tconv.kernels import source
from tconv.kernels.source import PREPARING_INPUTS
from tconv.planner.block_tiles import PREPARING_THREADS

NAME = PREPARING_INPUTS.format("tconv_kernel")


@pytest.mark.parametrize("mode", ["plain", "address"])
@pytest.mark.parametrize("grid", [1, 3, 64])
@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (1, (1, 1, 1)),
        (70, (1, 1, 3)),  # images of less than a tile, rows that begin anywhere
        (3, (1, 7, 9)),
        (2, (2, 4, 17)),
        (1, (1, 33, 65)),  # so many that a thread has four places of a tile
        (5, (3, 16, 10)),
    ],
)
@pytest.mark.parametrize(
    "name", ["wgmma-2d-k3x2-s2x2-aligned-one-prepared", "col2im_wgmma-1d-k5-s3-vectors-tf32-prepared"]
)
def test_puts_channels_last(name, batch, size, grid, mode):
    kernel = INSTANCES[name].kernel
    layer = kernel.layer
    x = torch.randn(batch, layer.in_channels, *size, generator=torch.Generator().manual_seed(1))
    x = x.to(getattr(torch, layer.dtype))
    prepared = torch.full((batch, *size, layer.in_channels), float("nan"), dtype=x.dtype)
    launch = Launch(NAME, grid=grid, block=PREPARING_THREADS, shared_bytes=0, arguments=(x, prepared, batch, *size))
    run(source.unit(kernel), [launch], mode=mode)
    expected = rounded_tf32(x, layer.precision) if layer.precision == "tf32" else x
    assert torch.equal(prepared, expected.movedim(1, -1))
