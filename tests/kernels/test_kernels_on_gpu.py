"""Every instance on a GPU: bit for bit what the emulator gives on integers, and within the bound on random numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_runs import (
    GPU,
    INSTANCES,
    PROGRAMMED,
    Tensors,
    emulate,
    integer_tensors,
    plan_of,
    random_tensors,
    seen,
    stored,
    stored_weight,
    worst,
)

from tconv.jit.loader import gpu_of, launcher
from tconv.kernels.instances import Instance

pytestmark = [pytest.mark.gpu, pytest.mark.rotates(16, by="name")]
EVERY = {**INSTANCES, **PROGRAMMED}


def launch(instance: Instance, tensors: Tensors) -> torch.Tensor:
    plan = plan_of(instance, replace(gpu_of(0), multiprocessors=GPU.multiprocessors))
    x, weight, bias = (None if tensor is None else tensor.cuda() for tensor in tensors[:3])
    weight = stored_weight(weight, instance.problem)
    operands = [stored(operand.cuda(), instance) for operand in tensors.operands]
    y = torch.full(instance.problem.output_shape, float("nan"), dtype=x.dtype, device="cuda")
    x, y = stored(x, instance), stored(y, instance)
    addresses = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
    stream = torch.cuda.current_stream().cuda_stream
    launcher(plan, 0).enqueue(stream, *addresses, *(operand.data_ptr() for operand in operands))
    return seen(y, instance).cpu()


@pytest.mark.parametrize("name", [*INSTANCES, *(name for name in PROGRAMMED if not name.endswith("mish"))])
def test_gpu_and_emulator_agree_bit_for_bit_on_integers(name):
    instance = EVERY[name]
    tensors = integer_tensors(instance.problem)
    got, emulated = launch(instance, tensors), emulate(instance, tensors)
    assert emulated.isfinite().all()
    # Zeros may differ in sign nowhere either: the same sums are taken in the same order.
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    assert torch.equal(got.view(bits), emulated.view(bits))


@pytest.mark.parametrize("name", EVERY)
def test_gpu_equals_float64(name):
    instance = EVERY[name]
    tensors = random_tensors(instance.problem)
    # A tensor core drops bits where it adds; exact sums of wgmma leave it every few products.
    layer, family = instance.problem.layer, instance.kernel.family
    stays = family in ("mma", "col2im", "col2im_wgmma", "col2im_rows") or (
        family == "wgmma" and layer.precision != "fp32"
    )
    units = 8 + layer.products_per_output / 32 * stays
    assert worst(instance.problem, tensors, launch(instance, tensors), units) <= 1
