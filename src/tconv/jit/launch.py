"""A kernel's launch as one call of the driver, whose parameters are packed beforehand."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from tconv.errors import MissingToolchain
from tconv.jit.toolchain import cuda_core, driver

#: CUlaunchConfig: grid and block of three axes each, shared bytes, stream, attributes and how many there are.
_CONFIG = struct.Struct("@7IQQI4x")
#: Where it has the stream, and what is behind it, in items of eight bytes.
_STREAM, _ADDRESSES = struct.calcsize("@7I0Q") // 8, _CONFIG.size // 8
#: CUlaunchAttribute: which it is, and a value of 64 bytes.
_ATTRIBUTE = struct.Struct("@I4xI60x")
#: The CUDA release that brought cuLaunchKernelEx.
_SINCE = 11060
#: CUDA_ERROR_INVALID_CONTEXT: none is current in this thread.
_NO_CONTEXT = 201


class Function(NamedTuple):
    """A kernel on one device.

    Args:
        handle: the CUfunction, which the driver launches faster than a CUkernel: it looks for nothing.
        kernel: the `cuda.core.Kernel`, which keeps the code loaded.
    """

    handle: int
    kernel: Any


def launch_of(
    what: str,
    function: Function,
    grid: int,
    threads: int,
    shared_bytes: int = 0,
    *,
    addresses: int,
    numbers: Sequence[int] = (),
    operands: int = 0,
    overlapping: bool = False,
) -> Callable[..., None]:
    """The launch of one kernel: a function of a stream and the addresses, which enqueues it on the current device.

    A block of memory holds the driver's CUlaunchConfig and, behind it, the kernel's parameters and where each of them
    lies; a call writes the stream and the addresses, as items of an array, which takes less time than packing them. The
    driver has copied the block when it returns. Until then it is not among the free ones, so that no other thread
    writes it.

    Args:
        what: names the kernel in errors.
        function: of the current device.
        grid, threads, shared_bytes: blocks, threads of a block, and its dynamic shared memory.
        addresses: how many of them are the kernel's first parameters.
        numbers: the kernel's next parameters, of 32 bits.
        operands: how many addresses are its last parameters.
        overlapping: it may begin before the kernel in front of it has ended, for which it waits itself.

    The function raises:
        RuntimeError: the driver refuses the launch.
    """
    config = (grid, 1, 1, threads, 1, 1, shared_bytes)
    attributes = (ctypes.addressof(_overlapping()), 1) if overlapping else (0, 0)
    written = slice(_ADDRESSES, _ADDRESSES + addresses + operands)
    enqueue = launch_function()
    free: list[tuple[Any, tuple[Any, ...]]] = []

    def new_block() -> tuple[Any, tuple[Any, ...]]:
        """A new block of memory, and the driver's arguments, which point into it."""
        of_numbers = 8 * written.stop
        of_places = of_numbers + (4 * len(numbers) + 7) // 8 * 8
        count = addresses + len(numbers) + operands
        memory = (ctypes.c_uint64 * (of_places // 8 + count))()
        places = [ctypes.addressof(memory) + 8 * place for place in range(written.start, written.stop)]
        places[addresses:addresses] = [
            ctypes.addressof(memory) + of_numbers + 4 * place for place in range(len(numbers))
        ]
        _CONFIG.pack_into(memory, 0, *config, 0, *attributes)
        struct.pack_into(f"{len(numbers)}i", memory, of_numbers, *numbers)
        struct.pack_into(f"{count}Q", memory, of_places, *places)
        handle = ctypes.c_void_p(function.handle)
        return memory, (ctypes.byref(memory), handle, ctypes.byref(memory, of_places), None)

    def launch(stream: int, *given: int) -> None:
        try:
            block = free.pop()
        except IndexError:
            block = new_block()
        memory, arguments = block
        memory[_STREAM], memory[written] = stream, given
        status = enqueue(*arguments)
        if status == _NO_CONTEXT:
            # torch makes a device's context current when a thread changes device, not when it merely allocates.
            cuda_core().Device(torch._C._cuda_getDevice()).set_current()
            status = enqueue(*arguments)
        free.append(block)
        if status:
            raise RuntimeError(f"the CUDA driver answered {_name_of(status)} at the launch of {what}")

    return launch


@cache
def launch_function() -> Callable[..., int]:
    """The driver's cuLaunchKernelEx. That of the bindings makes objects at each call.

    Raises:
        MissingToolchain: the CUDA bindings are not installed, or the driver is too old.
    """
    bindings = driver()
    # Stream 0 is the legacy stream to torch, whatever the bindings take it for.
    legacy = bindings.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM.value
    status, address, _ = bindings.cuGetProcAddress(b"cuLaunchKernelEx", _SINCE, legacy)
    if status != bindings.CUresult.CUDA_SUCCESS or not address:
        raise MissingToolchain(f"the CUDA driver has no cuLaunchKernelEx ({status.name}); update it")
    # Without the GIL: a launch waits where the stream's queue is full.
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)


@cache
def _overlapping() -> Any:
    """The attribute of a launch that may begin early; launches read it at every call."""
    name = driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    return ctypes.create_string_buffer(_ATTRIBUTE.pack(name.value, 1), _ATTRIBUTE.size)


def _name_of(status: int) -> str:
    try:
        return str(driver().CUresult(status).name)
    except ValueError:  # of a newer driver than the bindings
        return f"error {status}"
