"""Running launches: tensors and integers out to the program, changed tensors back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from tconv.emulator.errors import EmulatorError, failure
from tconv.emulator.program import UNIT_NAME, Fibers, Mode, build, kernel_headers, kernel_names

Order = Literal["ascending", "descending", "random"]
#: When asynchronous copies land: where they are asked for, or where they are waited for.
Copies = Literal["eager", "late"]

ORDERS: tuple[Order, ...] = get_args(Order)
COPIES: tuple[Copies, ...] = get_args(Copies)
MAX_BLOCK = 1024
MAX_GRID = 2**31 - 1
MAX_SHARED_BYTES = 227 * 1024


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: name of an ``extern "C" __global__`` function of the source.
        grid: blocks, along x.
        block: threads of a block, along x.
        shared_bytes: dynamic shared memory of a block.
        arguments: for each parameter a contiguous CPU tensor (its pointer), an integer, or None (nullptr).
        blocks: run only these blocks of the grid; None runs all.
    """

    kernel: str
    grid: int
    block: int
    shared_bytes: int
    arguments: tuple[torch.Tensor | int | None, ...]
    blocks: range | None = None

    def __post_init__(self) -> None:
        for name, low, high in (("grid", 1, MAX_GRID), ("block", 1, MAX_BLOCK), ("shared_bytes", 0, MAX_SHARED_BYTES)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"got {name}={value}; allowed are {low} to {high}")
        chosen = self.chosen_blocks
        if chosen and not (chosen.step > 0 and chosen[0] >= 0 and chosen[-1] < self.grid):
            raise ValueError(f"got blocks={chosen}; allowed are ascending ranges within the grid of {self.grid}")

    @property
    def chosen_blocks(self) -> range:
        return range(self.grid) if self.blocks is None else self.blocks


def run(
    source: str,
    launches: Sequence[Launch],
    *,
    mode: Mode = "plain",
    order: Order = "ascending",
    seed: int = 0,
    copies: Copies = "eager",
    timeout_s: float = 120,
    fibers: Fibers = "native",
) -> None:
    """Run `launches` one after another; tensors that the kernels write are updated in place.

    Equivalent to launching each kernel of `source` on one stream of a GPU and synchronising. Two arguments
    that are one tensor are one buffer; every buffer ends exactly where its tensor ends. Tensors are copied to the
    program and back, but for one that is a file (``torch.from_file(name, shared=True, size=n)``): the program maps the
    same file, so that of a huge tensor only the pages that kernels touch cost memory and time.

    Args:
        source: one translation unit, as NVRTC would take it.
        mode: "plain", "address" (finds accesses out of bounds and undefined behaviour) or "thread" (finds races;
            some hundred times slower, so for a few blocks).
        order: in which order threads that can run do run, and blocks too. A result that depends on it is a bug
            of the kernel.
        seed: for order "random".
        copies: when asynchronous copies land. "late" shows a missing wait, "eager" a copy into what is still read.
        timeout_s: seconds for running, not counting the build.

    Raises:
        EmulatorError: what the kernel did wrong; `kind` says which sort, `report` where.
        ValueError: the launches do not fit the source or each other.
    """
    _check(source, launches, order, copies)
    program = build(source, mode, fibers=fibers)
    buffers = _buffers(launches)
    with tempfile.TemporaryDirectory(prefix="tconv-emulator-") as directory:
        for number, tensor in enumerate(buffers):
            place = Path(directory, str(number))
            if (file := _file_of(tensor)) is not None:
                place.symlink_to(file)
            else:
                place.write_bytes(_bytes_of(tensor))
        # The sanitizers need to see every access from one OS thread.
        os_threads = min(2, os.cpu_count() or 1) if mode == "plain" else 1
        request = _request(launches, buffers, f"{order} {seed} {os_threads} {copies}")
        Path(directory, "request").write_text(request, encoding="utf-8")
        _execute(program, directory, source, timeout_s)
        for number, tensor in enumerate(buffers):
            if _file_of(tensor) is None:
                _bytes_of(tensor)[:] = Path(directory, str(number)).read_bytes()


def _check(source: str, launches: Sequence[Launch], order: Order, copies: Copies) -> None:
    if order not in ORDERS:
        raise ValueError(f"got order {order!r}; allowed are {', '.join(ORDERS)}")
    if copies not in COPIES:
        raise ValueError(f"got copies {copies!r}; allowed are {', '.join(COPIES)}")
    names = kernel_names(source)
    for launch in launches:
        if launch.kernel not in names:
            raise ValueError(f"got kernel {launch.kernel!r}; the source has {', '.join(names) or 'none'}")
        for number, argument in enumerate(launch.arguments):
            if argument is None or isinstance(argument, int):
                continue
            if not isinstance(argument, torch.Tensor):
                raise ValueError(
                    f"argument {number} of {launch.kernel} is a {type(argument).__name__}; allowed are tensors, "
                    "integers and None"
                )
            if argument.device.type != "cpu" or not argument.is_contiguous():
                raise ValueError(
                    f"argument {number} of {launch.kernel} must be a contiguous CPU tensor; got one on "
                    f"{argument.device} with shape {tuple(argument.shape)} and strides {argument.stride()}"
                )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory, writable, whatever its dtype."""
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _file_of(tensor: torch.Tensor) -> Path | None:
    """The file that the tensor is, from its first byte to its last; None for one in memory."""
    storage = tensor.untyped_storage()
    name = storage.filename
    return Path(name).absolute() if name is not None and storage.nbytes() == tensor.nbytes else None


def _buffers(launches: Sequence[Launch]) -> list[torch.Tensor]:
    """One tensor for each piece of memory that the launches use."""
    found: list[torch.Tensor] = []
    for launch in launches:
        for argument in launch.arguments:
            if argument is None or isinstance(argument, int) or any(_same_memory(argument, other) for other in found):
                continue
            if any(_overlap(argument, other) for other in found):
                raise ValueError("two arguments overlap without being the same memory; pass one of them as a copy")
            found.append(argument)
    return found


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.data_ptr() == other.data_ptr() and one.nbytes == other.nbytes > 0)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    start, other_start = one.data_ptr(), other.data_ptr()
    return start < other_start + other.nbytes and other_start < start + one.nbytes


def _request(launches: Sequence[Launch], buffers: Sequence[torch.Tensor], settings: str) -> str:
    """What to run, in the words of include/emulator/runner.cpp."""
    lines = [settings, str(len(buffers))]
    for buffer in buffers:
        kind = "copied" if _file_of(buffer) is None else "mapped"
        # On a GPU a tensor starts at a multiple of 256 bytes plus its offset in its storage.
        lines.append(f"{kind} {buffer.nbytes} {buffer.storage_offset() * buffer.element_size() % 256}")
    lines.append(str(len(launches)))
    for launch in launches:
        chosen = launch.chosen_blocks
        words = [launch.kernel, launch.grid, launch.block, launch.shared_bytes, chosen.start, len(chosen), chosen.step]
        lines.append(" ".join(map(str, [*words, len(launch.arguments)])))
        lines += [_argument(argument, buffers) for argument in launch.arguments]
    return "\n".join(lines) + "\n"


def _argument(argument: torch.Tensor | int | None, buffers: Sequence[torch.Tensor]) -> str:
    if argument is None:
        return "n"
    if isinstance(argument, int):
        return f"i {int(argument)}"
    return f"p {next(n for n, buffer in enumerate(buffers) if _same_memory(argument, buffer))}"


def _execute(program: Path, directory: str, source: str, timeout_s: float) -> None:
    try:
        with _fixed_address_layout():
            command = [str(program), directory]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired:
        report = f"no end within {timeout_s:g} s: an endless loop, or too much work for the emulator (run fewer blocks)"
        raise EmulatorError("timeout", report) from None
    if process.returncode != 0:
        raise failure(process.returncode, output, {UNIT_NAME: source, **kernel_headers()})


@contextlib.contextmanager
def _fixed_address_layout() -> Iterator[None]:
    """Programs started within get no address space randomisation.

    The sanitizers' runtimes of some g++ versions fail under the randomisation of recent Linux kernels, before
    main, so that the program itself cannot help. It also makes reports the same each time.
    """
    no_randomisation, ask = 0x0040000, 0xFFFFFFFF
    personality = getattr(ctypes.CDLL(None), "personality", None)
    if personality is None:
        yield
        return
    before = personality(ctypes.c_ulong(ask))
    personality(ctypes.c_ulong(before | no_randomisation))
    try:
        yield
    finally:
        personality(ctypes.c_ulong(before))
