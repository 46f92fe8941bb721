"""A generated file on CPU tensors: its own CUDA text, run by the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tconv.emulator import Launch, Mode, Order, run
from tconv.kernels.source import LAUNCHING, PREPARING, PREPARING_INPUTS, launching_of_any
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
    grid, threads, shared_bytes = _numbers(cut, problem)
    launches = []
    if cut.inputs is not None:
        ordered = x.new_empty(x.numel())
        of_inputs = cut.inputs.grid, cut.inputs.threads, cut.inputs.shared_bytes
        arguments = x, ordered, problem.batch, *problem.input_size
        launches.append(Launch(PREPARING_INPUTS.format(cut.kernel), *of_inputs, arguments))
        x = ordered
    if cut.preparation is not None:
        prepared = weight.new_empty(cut.preparation.bytes // weight.itemsize)
        of_weights = cut.preparation.grid, cut.preparation.threads
        launches.append(Launch(PREPARING.format(cut.kernel), *of_weights, 0, (weight, prepared)))
        weight = prepared
    of_kernel = (x, weight, bias, y, problem.batch, *problem.input_size, *problem.output_size)
    return [*launches, Launch(cut.kernel, grid, threads, shared_bytes, of_kernel)]


def _numbers(cut: Cut, problem: Any) -> tuple[int, int, int]:
    """Blocks, threads of a block, and its shared memory; from the file's text where that computes them.

    Raises:
        ValueError: the grid would be too large.
    """
    if cut.grid is not None and cut.threads is not None and cut.shared_bytes is not None:
        return cut.grid, cut.threads, cut.shared_bytes
    numbers = torch.zeros(3, dtype=torch.int64)
    arguments = (numbers, cut.multiprocessors, problem.batch, *problem.output_size)
    run(cut.source + launching_of_any(cut.kernel), [Launch(LAUNCHING.format(cut.kernel), 1, 1, 0, arguments)])
    grid, threads, shared_bytes = numbers.tolist()
    return grid, threads, shared_bytes
