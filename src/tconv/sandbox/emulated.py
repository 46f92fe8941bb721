"""A generated file on CPU tensors: its own CUDA text, run by the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tconv.emulator import Launch, Mode, Order, run
from tconv.kernels.source import PREPARING, PREPARING_INPUTS, LaunchNumbers
from tconv.planner.plan import Plan
from tconv.sandbox.cut import Cut, CutLaunch, cut_of, launch_of, runs_all


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

    def launch(launch: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *operands: Tensor) -> None:
        cut = cut_of(launch.kernel, namespace["_CUDA"])
        sizes = _Sizes(launch.y_channels, x.shape[0], launch.input_size, launch.output_size)
        how = launch_of(cut, sizes, namespace["_gpu"](x.device).multiprocessors, ask)
        arguments = launches(cut.kernel, how, sizes, x, weight, bias, as_buffer(y), operands)
        run(cut.source, arguments, mode=mode, order=order)

    for name, replacement in {**runs_all(namespace), "_launch": launch}.items():
        if name not in namespace:
            raise KeyError(f"the file has no {name}: tconv did not write it")
        namespace[name] = replacement


class _Sizes(NamedTuple):
    """As much of a problem as a launch asks for."""

    y_channels: int
    batch: int
    input_size: tuple[int, ...]
    output_size: tuple[int, ...]


def as_buffer(y: Tensor) -> Tensor:
    """What the emulator takes for a tensor: of some channels of a larger one, that from their first element on."""
    if y.is_contiguous():
        return y
    storage = y.untyped_storage()
    elements = storage.nbytes() // y.element_size() - y.storage_offset()
    return y.new_empty(0).set_(storage, y.storage_offset(), (elements,), (1,))


def ask(source: str, name: str, arguments: tuple[int, ...]) -> list[int]:
    """What a function of `source` says of launches, by the emulator."""
    numbers = torch.zeros(len(LaunchNumbers._fields), dtype=torch.int64)
    run(source, [Launch(name, 1, 1, 0, (numbers, *arguments))])
    return numbers.tolist()


def launch_for_few(cut: Cut, problem: Any, multiprocessors: int) -> CutLaunch:
    """As `launch_of`. Of blocks that go on from work to work there are so few that they do on small problems, too."""
    how = launch_of(cut, problem, multiprocessors, ask)
    fewest = launch_of(cut, problem, 0, ask).grid
    return replace(how, grid=min(how.grid, 2 * fewest))


def launches(
    kernel: str,
    how: CutLaunch | Plan,
    problem: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    operands: Sequence[Tensor] = (),
) -> list[Launch]:
    """Those of `problem`, tconv's or a file's own, by the kernel of this name, on contiguous tensors.

    `operands` are what the layer's program reads.

    What a kernel before it shall prepare is full of NaN, so that an element that it forgets is seen in `y`.
    """

    def unwritten(like: Tensor, count: int) -> Tensor:
        return like.new_full((count,), float("nan"))

    before = []
    if (of_inputs := how.inputs) is not None:
        ordered = unwritten(x, x.numel())
        arguments = (x, ordered, problem.batch, *problem.input_size)
        before.append(Launch(PREPARING_INPUTS.format(kernel), of_inputs.grid, of_inputs.threads, 0, arguments))
        x = ordered
    if (of_weights := how.preparation) is not None:
        prepared = unwritten(weight, of_weights.bytes // weight.itemsize)
        shape = (of_weights.grid, of_weights.threads, 0)
        before.append(Launch(PREPARING.format(kernel), *shape, (weight, prepared)))
        weight = prepared
    sizes = (problem.y_channels, problem.batch, *problem.input_size, *problem.output_size)
    threads = how.threads if isinstance(how, CutLaunch) else how.kernel.threads
    return [*before, Launch(kernel, how.grid, threads, how.shared_bytes, (x, weight, bias, y, *sizes, *operands))]
