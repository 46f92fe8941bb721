"""From a plan to something that can be called: built or fetched, loaded on a device, launched with pointers.

Loading is all that must not happen while a CUDA graph is captured: the cubin, its function in the device's context, and
the attribute that allows more than 48 KiB of shared memory. Planning may; a launch does nothing else.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import _C, Tensor

from tconv.errors import NotWarmedUp
from tconv.jit.allocation import empty
from tconv.jit.cache import cache_key, default_cache
from tconv.jit.compile import Compiled, compile_source
from tconv.jit.launch import Function, launch_of
from tconv.jit.toolchain import check_driver, cuda_core, driver, driver_version, uninterrupted
from tconv.kernels.source import PREPARING, PREPARING_INPUTS, header_digest, header_directory, unit
from tconv.planner import FAMILIES, Gpu, Kernel, Plan
from tconv.pointwise.program import parse

_log = logging.getLogger("tconv")
_NAME = "tconv_kernel"
#: A block has this much dynamic shared memory without asking.
_SHARED_BYTES_BY_DEFAULT = 48 * 1024
#: Of a multiprocessor, and of a thread at most, in the steps in which they are given.
_REGISTERS, _MOST_REGISTERS = 65536, 256

#: The strides of a row of bytes.
_ONE_AFTER_THE_OTHER = (1,)

_lock = threading.Lock()


class Built(NamedTuple):
    """A kernel as it was compiled, perhaps for fewer blocks than were asked for, and its code."""

    kernel: Kernel[Any]
    cubin: bytes


#: A kernel, and those that prepare its weights and its inputs, None without.
Functions = tuple[Function, Function | None, Function | None]
#: What each planned kernel became; and it, and those that prepare its weights and its inputs, loaded.
_loaded: dict[tuple[Kernel[Any], int, int], tuple[Kernel[Any], Functions]] = {}


class Launcher:
    """One plan on one device.

    Args:
        kernel: with the arguments of `tconv.kernels.source.unit`.
        plan: its grid, block, shared memory and sizes.
        device: index of the CUDA device.
        preparing: the kernel that prepares the weights, where the plan has a preparation.
        of_inputs: the kernel that prepares the inputs, where the plan has that.
    """

    __slots__ = (
        "_device",
        "_prepare_alone",
        "_prepared_bytes",
        "enqueue",
        "enqueue_prepared",
        "preparing",
        "weights_last",
    )

    #: Enqueues the kernels of a call on a stream of the device, which is the current device: a function
    #: ``(stream, x, weight, bias, y, *operands)`` of the stream and addresses; `bias` is 0 for a layer without,
    #: `operands` are of what the layer's program reads. It raises RuntimeError if the driver refuses a launch.
    enqueue: Callable[..., None]
    #: The same, where `weight` is what `prepare` gave; for kernels that take weights as they are no other function.
    enqueue_prepared: Callable[..., None]
    #: The kernel that prepares the weights, one for all sizes; None if they are taken as they are.
    preparing: Function | None
    #: Whether `prepare` reads weights in channels_last; else they are contiguous. So are those of `enqueue`.
    weights_last: bool

    def __init__(
        self,
        kernel: Function,
        plan: Plan,
        device: int,
        preparing: Function | None = None,
        of_inputs: Function | None = None,
    ) -> None:
        problem, layer = plan.problem, plan.problem.layer
        name = layer.describe()

        def behind(kernel: Function | None) -> bool:
            """Whether what is launched behind a kernel of ours begins while that runs, and waits for it itself.

            In front of the others anybody's kernel may stand, and write what they read at once.
            """
            return kernel is not None and overlaps(device)

        sizes = (problem.batch, *problem.input_size)
        launch = partial(
            launch_of,
            f"the kernel for {name}",
            *(kernel, plan.grid, plan.kernel.threads, plan.shared_bytes),
            addresses=4,
            numbers=(problem.y_channels, *sizes, *problem.output_size),
            operands=len(parse(layer.epilogue).operands) if layer.epilogue else 0,
        )
        self._device, self.preparing, self.weights_last = device, preparing, plan.kernel.layer.weights_last
        prepare_weights = prepare_inputs = None
        input_bytes = 0
        if preparing is not None and (of_weights := plan.preparation) is not None:
            what = f"the kernel that prepares the weights of {name}"
            of_preparing = partial(launch_of, what, preparing, of_weights.grid, of_weights.threads, addresses=2)
            prepare_weights = of_preparing(overlapping=behind(of_inputs))
            self._prepare_alone = of_preparing()
            self._prepared_bytes = (of_weights.bytes,)
        if of_inputs is not None and (how := plan.inputs) is not None:
            what = f"the kernel that prepares the inputs of {name}"
            prepare_inputs = launch_of(what, of_inputs, how.grid, how.threads, addresses=2, numbers=sizes)
            input_bytes = math.prod(problem.input_shape) * layer.item_bytes
        self.enqueue = self.enqueue_prepared = launch(overlapping=behind(of_inputs))
        if prepare_weights is not None:
            self.enqueue = self._preparing_weights(prepare_weights, launch(overlapping=behind(preparing)))
        if prepare_inputs is not None:
            self.enqueue = _preparing_inputs(prepare_inputs, input_bytes, self.enqueue)
            self.enqueue_prepared = _preparing_inputs(prepare_inputs, input_bytes, self.enqueue_prepared)

    def _preparing_weights(self, prepare: Callable[..., None], enqueue: Callable[..., None]) -> Callable[..., None]:
        def prepare_and_enqueue(stream: int, x: int, weight: int, *others: int) -> None:
            # Freed when the call returns: whoever gets the memory next runs behind this stream's work.
            prepared = self._prepare(stream, prepare, weight)
            enqueue(stream, x, prepared.data_ptr(), *others)

        return prepare_and_enqueue

    def prepare(self, weight: int, memory: Tensor | None = None) -> Tensor:
        """Enqueues the preparation alone, of the weights at address `weight`.

        Args:
            memory: what an earlier call gave, to be written anew; by default memory is allocated.

        Returns:
            The bytes that the kernel takes for its weights, at the sizes of any plan with the same `preparing`.
        """
        if _C._cuda_getDevice() != self._device:
            with torch.cuda.device(self._device):
                return self.prepare(weight, memory)
        return self._prepare(_C._cuda_getCurrentRawStream(self._device), self._prepare_alone, weight, memory)

    def _prepare(self, stream: int, launch: Callable[..., None], weight: int, memory: Tensor | None = None) -> Tensor:
        if memory is None:
            memory = empty(self._prepared_bytes, _ONE_AFTER_THE_OTHER, torch.uint8)
        launch(stream, weight, memory.data_ptr())
        return memory


def _preparing_inputs(prepare: Callable[..., None], count: int, enqueue: Callable[..., None]) -> Callable[..., None]:
    """`enqueue` behind the kernel that writes the inputs, so many bytes, in the order in which it takes them."""

    def prepare_and_enqueue(stream: int, x: int, *others: int) -> None:
        # Freed when the call returns, as above.
        ordered = empty((count,), _ONE_AFTER_THE_OTHER, torch.uint8)
        prepare(stream, x, ordered.data_ptr())
        enqueue(stream, ordered.data_ptr(), *others)

    return prepare_and_enqueue


def launcher(plan: Plan, device: int, built: Built | None = None) -> Launcher:
    """The launcher of `plan` on CUDA device `device`; compiles and loads its kernel at the first call.

    Blocks that work at the same time are as many as fit with the registers that the compiler gave them.

    Args:
        built: what `build` gave for the plan's kernel; it is called if None.

    Raises:
        NotWarmedUp: the kernel is not loaded and a CUDA graph is being captured.
        MissingToolchain: cuda-core, its bindings or NVRTC are absent or do not fit the driver.
        CompileError: NVRTC refused the kernel.
    """
    key = _key(plan, device)
    loaded = _loaded.get(key)
    if loaded is None:
        if torch.cuda.is_current_stream_capturing():
            raise NotWarmedUp(
                f"the kernel for {plan.kernel.layer.describe()} is not loaded and a CUDA graph is being captured; "
                "run the layer once on inputs of this shape and dtype before the capture"
            )
        with _lock:
            loaded = _loaded.get(key)
            if loaded is None:
                check_driver()
                built = build(plan.kernel, gpu_of(device).arch) if built is None else built
                loaded = _loaded[key] = built.kernel, load_all(plan, built.cubin, device)
    compiled, (kernel, preparing, of_inputs) = loaded
    if compiled != plan.kernel:
        plan = FAMILIES[compiled.family].plan_with(plan.problem, compiled, gpu_of(device))
    return Launcher(kernel, plan, device, preparing, of_inputs)


def is_loaded(plan: Plan, device: int) -> bool:
    """Whether `launcher` has nothing left to compile and load."""
    return _key(plan, device) in _loaded


def _key(plan: Plan, device: int) -> tuple[Kernel[Any], int, int]:
    return plan.kernel, device, plan.shared_bytes


def load_all(plan: Plan, cubin: bytes, device: int, name: str = _NAME) -> Functions:
    """The functions of `plan` on `device`: its kernel, and what prepares its weights and its inputs, None without."""
    preparing = None if plan.preparation is None else load(cubin, PREPARING.format(name), 0, device)
    of_inputs = None if plan.inputs is None else load(cubin, PREPARING_INPUTS.format(name), 0, device)
    return load(cubin, name, plan.shared_bytes, device), preparing, of_inputs


def build(kernel: Kernel[Any], arch: str) -> Built:
    """`kernel` compiled for `arch`, from the cache or by NVRTC. Needs no GPU.

    Raises:
        MissingToolchain, CompileError: as `compile_source`.
    """
    return uninterrupted(lambda: _build(kernel, arch))


def _build(kernel: Kernel[Any], arch: str) -> Built:
    became, compiled = compile_kernel(kernel, arch)
    return Built(became, compiled.cubin)


def compile_kernel(kernel: Kernel[Any], arch: str, name: str = _NAME) -> tuple[Kernel[Any], Compiled]:
    """`kernel` compiled for `arch`, and the kernel that it became. Needs no GPU.

    How many registers a thread needs differs between archs and compilers; the planner estimates it. Where its number
    of blocks for each multiprocessor leaves too few, the kernel is compiled for fewer blocks, until nothing spills or
    a thread may have as many as there are. That changes no result; where blocks work at one block tile after the other,
    fewer are launched.

    Raises:
        MissingToolchain, CompileError: as `compile_source`.
    """
    while True:
        compiled = compile_kept(unit(kernel, _NAME), arch, name=name, headers=True)
        if compiled.seconds:
            _log.info("compiled %s for %s in %.2f s", kernel.layer.describe(), arch, compiled.seconds)
        blocks = kernel.tile.blocks
        if not compiled.spill_bytes or blocks == 1 or blocks * kernel.threads * _MOST_REGISTERS <= _REGISTERS:
            return kernel, compiled
        kernel = replace(kernel, tile=replace(kernel.tile, blocks=blocks * 3 // 4))


def compile_kept(source: str, arch: str, *, name: str, headers: bool = False) -> Compiled:
    """As `compile_source`, with this package's headers or without any; from the cache, without a log, if it is there.

    Raises:
        MissingToolchain, CompileError: as `compile_source`.
    """
    kept, digest = default_cache(), header_digest() if headers else ""
    key = cache_key(source, arch, name=name, header_digest=digest)
    if (entry := kept.get(key)) is not None:
        return Compiled.from_bytes(entry)
    compiled = compile_source(source, arch, name=name, headers=header_directory() if headers else None)
    if not headers or header_digest() == digest:  # else it may be of headers that were changed while NVRTC read them
        kept.put(key, compiled.to_bytes())
    return compiled


def load(cubin: bytes, name: str, shared_bytes: int, device: int) -> Function:
    """The function `name` of `cubin`, ready to be launched on `device`."""
    bindings = driver()
    with torch.cuda.device(device):
        cuda_core().Device(device).set_current()
        kernel = cuda_core().ObjectCode.from_cubin(cubin, name=name).get_kernel(name)
        # Modules load lazily; asking for the function loads it into this context now.
        handle = int(_checked(bindings.cuKernelGetFunction(kernel.handle)))
        if shared_bytes > _SHARED_BYTES_BY_DEFAULT:
            attribute = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(bindings.cuKernelSetAttribute(attribute, shared_bytes, kernel.handle, bindings.CUdevice(device)))
    return Function(handle, kernel)


def written_by(cubin: bytes, name: str, device: int, count: int, arguments: Sequence[int]) -> list[int]:
    """The 64-bit numbers that one thread of the function `name` writes to its first argument; these are the others."""
    launch = launch_of(name, load(cubin, name, 0, device), 1, 1, addresses=1, numbers=arguments)
    numbers = torch.zeros(count, dtype=torch.int64, device=f"cuda:{device}")
    with torch.cuda.device(device):
        launch(torch._C._cuda_getCurrentRawStream(device), numbers.data_ptr())
    return numbers.tolist()


@cache
def overlaps(device: int) -> bool:
    """Whether a kernel may begin there before the one in front of it has ended, in CUDA graphs as well."""
    version = driver_version()
    return torch.cuda.get_device_capability(device) >= (9, 0) and version is not None and version >= (12, 3)


@cache
def gpu_of(device: int) -> Gpu:
    """What the planner needs to know of CUDA device `device`.

    Raises:
        MissingToolchain: cuda-core or its bindings are absent.
    """
    properties = torch.cuda.get_device_properties(device)
    measured = Gpu.measured(properties.name)
    return Gpu(
        name=properties.name,
        # Some of sm_90's instructions are for that architecture alone.
        arch=f"sm_{properties.major}{properties.minor}" + ("a" if properties.major == 9 else ""),
        multiprocessors=properties.multi_processor_count,
        # torch 2.6 does not tell this one.
        shared_bytes_per_block=cuda_core().Device(device).properties.max_shared_memory_per_block_optin,
        bandwidth=None if measured is None else measured.bandwidth,
        rates={} if measured is None else measured.rates,
    )


def _checked(answer: tuple[Any, ...]) -> Any:
    status, *found = answer
    if status != driver().CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver answered {status.name} while a kernel was loaded")
    return found[0] if found else None
