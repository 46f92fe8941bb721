"""Kernels whose outputs are a slice of the channels of a larger tensor: right, and the rest of that is untouched."""

from __future__ import annotations

import pytest
import torch
from kernel_runs import (
    GPU,
    SLICED,
    Tensors,
    integer_tensors,
    plan_of,
    random_tensors,
    stored,
    stored_weight,
    worst,
)

from tconv.emulator import EmulatorError, Mode, Order, run
from tconv.kernels.instances import Instance
from tconv.kernels.source import inlined, unit
from tconv.planner import FAMILIES
from tconv.problem import Problem
from tconv.sandbox.emulated import launches

NAME = "tconv_kernel"


def begin_of(problem: Problem, last: bool) -> int:
    """The first channel of the slice."""
    return 16 // problem.layer.item_bytes if last else 3


def sliced(problem: Problem, tensors: Tensors, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The larger tensor, and what of it is handed to a kernel: from the slice's first element on."""
    batch, _, *sizes = problem.output_shape
    shape = (batch, *sizes, problem.into) if last else (batch, problem.into, *sizes)
    y = torch.full(shape, float("nan"), dtype=tensors.x.dtype)
    begin = begin_of(problem, last) * (1 if last else y[0, 0].numel())
    return y, y.view(-1)[begin:]


def seen(y: torch.Tensor, problem: Problem, last: bool) -> torch.Tensor:
    """The slice; the rest must be as it was."""
    channels = y.movedim(-1, 1) if last else y
    begin, end = begin_of(problem, last), begin_of(problem, last) + problem.layer.out_channels
    assert channels[:, :begin].isnan().all() and channels[:, end:].isnan().all()
    return channels[:, begin:end]


def emulate(
    instance: Instance,
    tensors: Tensors,
    mode: Mode = "plain",
    order: Order = "ascending",
    text: str | None = None,
) -> torch.Tensor:
    problem, last = instance.problem, bool(getattr(instance.kernel.tile, "channels_last", 0))
    y, slice_ = sliced(problem, tensors, last)
    x, weight, bias, _ = tensors
    x, weight = stored(x, instance), stored_weight(weight, problem)
    of_plan = launches(NAME, plan_of(instance, GPU), problem, x, weight, bias, slice_)
    run(text or unit(instance.kernel, NAME), of_plan, mode=mode, order=order)
    return seen(y, problem, last)


@pytest.mark.rotates(72)
@pytest.mark.parametrize("order", ["ascending", "random"])
@pytest.mark.parametrize("name", SLICED)
def test_it_is_right(name: str, order: Order) -> None:
    instance = SLICED[name]
    tensors = random_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, order=order)) <= 1


@pytest.mark.rotates(144)
@pytest.mark.parametrize("mode", ["address", "thread"])
@pytest.mark.parametrize("name", SLICED)
def test_it_stays_in_bounds_and_has_no_races(name: str, mode: Mode) -> None:
    instance = SLICED[name]
    tensors = integer_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, mode)) == 0


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_kernel_that_forgets_the_larger_tensor_is_caught(family: str) -> None:
    instance = next(each for each in SLICED.values() if each.kernel.family == family and each.problem.batch > 1)
    text = inlined([(instance.kernel, NAME)])
    wrong = text.replace("y, y_channels, ", f"y, {instance.problem.layer.out_channels}, ")
    assert wrong != text
    tensors = random_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, text=text)) <= 1
    with pytest.raises((AssertionError, EmulatorError)):
        assert worst(instance.problem, tensors, emulate(instance, tensors, text=wrong)) <= 1
