"""A generated file on CPU tensors: its own CUDA text, run by the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch import Tensor

from tconv.emulator import Launch, Mode, Order, run
from tconv.kernels.source import PREPARING


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
        source = namespace["_cuda_source"]([plan.kernel])
        run(source, emulator_launches(plan, x, weight, bias, y), mode=mode, order=order)

    for name, replacement in (("_build", build), ("_launch", launch)):
        if name not in namespace:
            raise KeyError(f"the file has no {name}: tconv did not write it")
        namespace[name] = replacement


def emulator_launches(plan: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> list[Launch]:
    """The launches of one of the file's own plans, by the name that its CUDA text gives the kernel."""
    problem, name = plan.problem, "tconv_kernel_0"
    sizes = (problem.batch, *problem.input_size, *problem.output_size)
    launches = []
    if plan.preparation is not None:
        preparing, weight = preparing_launch(name, plan.preparation, weight)
        launches.append(preparing)
    tensors = (x, weight, bias, y)
    return [*launches, Launch(name, plan.grid, plan.kernel.threads, plan.shared_bytes, (*tensors, *sizes))]


def preparing_launch(name: str, preparation: Any, weight: Tensor) -> tuple[Launch, Tensor]:
    """The launch that prepares the weights of kernel `name`, and the tensor that they will be in."""
    prepared = weight.new_empty(preparation.bytes // weight.itemsize)
    return Launch(PREPARING.format(name), preparation.grid, preparation.threads, 0, (weight, prepared)), prepared
