"""A generated file on CPU tensors: its own CUDA text, run by the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tconv.emulator import Launch, Mode, Order, run
from tconv.kernels.source import LAUNCHING, PREPARING, PREPARING_INPUTS, launching_of_any
from tconv.planner.plan import Plan
from tconv.sandbox.cut import Cut, cut_of


def install(file: ModuleType | dict[str, Any], *, mode: Mode = "plain", order: Order = "ascending") -> None:
    """Makes a file that tconv wrote launch in the emulator, and so take CPU tensors.

    What runs is the text that the file would hand to load_inline for the same launch.

    Args:
        file: the file's module, or its globals, after it was executed.
        mode: of the emulator: plain, or under a sanitizer.
        order: in which the emulator runs the CUDA threads.

    Raises:
        KeyError: tconv did not write this file.
    """
    namespace = vars(file) if isinstance(file, ModuleType) else file

    def build(kernels: Sequence[Any], device: Any) -> None:
        """Nothing to do: the emulator builds at the launch."""

    def launch(plan: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> None:
        cut = cut_of(plan, namespace["_cuda_source"])
        run(cut.source, emulator_launches(cut, plan.problem, x, weight, bias, y), mode=mode, order=order)

    for name, replacement in (("_build", build), ("_launch", launch)):
        if name not in namespace:
            raise KeyError(f"the file has no {name}: tconv did not write it")
        namespace[name] = replacement


def emulator_launches(
    cut: Cut, problem: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor
) -> list[Launch]:
    """What a file would launch for `problem`, tconv's or the file's own, on contiguous tensors."""
    return launches(cut.kernel, cut, _numbers(cut, problem), problem, x, weight, bias, y)


def launches(
    kernel: str,
    prepared_by: Plan | Cut,
    numbers: tuple[int, int, int],
    problem: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
) -> list[Launch]:
    """Those of `problem` by the kernel of this name, of so many blocks, threads and bytes of shared memory.

    What a kernel before it shall prepare is full of NaN, so that an element that it forgets is seen in `y`.
    """

    def unwritten(like: Tensor, count: int) -> Tensor:
        return like.new_full((count,), float("nan"))

    before = []
    if (of_inputs := prepared_by.inputs) is not None:
        ordered = unwritten(x, x.numel())
        arguments = (x, ordered, problem.batch, *problem.input_size)
        shape = (of_inputs.grid, of_inputs.threads, of_inputs.shared_bytes)
        before.append(Launch(PREPARING_INPUTS.format(kernel), *shape, arguments))
        x = ordered
    if (of_weights := prepared_by.preparation) is not None:
        prepared = unwritten(weight, of_weights.bytes // weight.itemsize)
        shape = (of_weights.grid, of_weights.threads, 0)
        before.append(Launch(PREPARING.format(kernel), *shape, (weight, prepared)))
        weight = prepared
    sizes = (problem.batch, *problem.input_size, *problem.output_size)
    return [*before, Launch(kernel, *numbers, (x, weight, bias, y, *sizes))]


def _numbers(cut: Cut, problem: Any) -> tuple[int, int, int]:
    """Blocks, threads of a block, and its shared memory; from the file's text where that computes them.

    Raises:
        ValueError: the grid would be too large.
    """
    if cut.grid is not None and cut.threads is not None and cut.shared_bytes is not None:
        return cut.grid, cut.threads, cut.shared_bytes
    numbers = torch.zeros(3, dtype=torch.int64)
    arguments = (numbers, problem.batch, *problem.output_size)
    run(cut.source + launching_of_any(cut.kernel), [Launch(LAUNCHING.format(cut.kernel), 1, 1, 0, arguments)])
    grid, threads, shared_bytes = numbers.tolist()
    return grid, threads, shared_bytes
