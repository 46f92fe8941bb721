"""What the planner knows of a GPU, as plain data; and the roofline bound that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tconv.planner.numbers import least, most
from tconv.problem import Precision, Problem

#: No launch is counted as faster than this.
SHORTEST_SECONDS = 2e-6
#: Bytes a second and multiprocessor of copies, where nobody measured them.
_BANDWIDTH = 30e9
#: Shared memory of a Hopper multiprocessor that blocks may have, and what each takes of it beside its own.
SHARED_BYTES, RESERVED_SHARED_BYTES = 227 * 1024, 1024
#: Registers of a multiprocessor, and those that a thread may have.
REGISTERS, THREAD_REGISTERS = 65536, 255
#: The oldest GPUs with TF32 and bfloat16 on tensor cores.
FIRST_WITH_TF32 = 80


@dataclass(frozen=True)
class Gpu:
    """A GPU for the planner: its limits, and its rates where somebody measured them.

    Args:
        name: as the driver gives it, ``"NVIDIA H200"``.
        arch: as compilers name it, ``"sm_90a"``.
        multiprocessors: how many it has.
        shared_bytes_per_block: bytes of dynamic shared memory that a block may ask for.
        bandwidth: bytes a second that a large copy reads and writes, both counted; None if nobody measured it.
        rates: operations a second of a large matrix product, by precision; a multiply-add is two operations.
    """

    name: str
    arch: str
    multiprocessors: int
    shared_bytes_per_block: int
    bandwidth: float | None = None
    rates: Mapping[Precision, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @property
    def capability(self) -> int:
        """The compute capability as one number: 90 for ``"sm_90a"``."""
        return int("".join(filter(str.isdigit, self.arch)))

    @property
    def is_measured(self) -> bool:
        """Whether somebody measured its rates, and PyTorch's layers on it, with one version of cuDNN."""
        return self.bandwidth is not None

    @property
    def copy_bandwidth(self) -> float:
        """Bytes a second: `bandwidth`, or an estimate by the number of multiprocessors."""
        return self.bandwidth or _BANDWIDTH * self.multiprocessors

    def matrix_rate(self, precision: Precision) -> float:
        """Operations a second: that of `rates`, or an estimate by the number of multiprocessors beside an H200's."""
        known = Gpu.h200()
        return self.rates.get(precision) or known.rates[precision] / known.multiprocessors * self.multiprocessors

    @classmethod
    def measured(cls, name: str) -> Gpu | None:
        """The GPU of this name with its rates; None if nobody measured them. `benchmarks/rates.py` measures a GPU."""
        return next((gpu for gpu in (cls.h200(), cls.h100()) if gpu.name == name), None)

    @classmethod
    def any_with_tensor_cores(cls) -> Gpu:
        """A GPU with the limits that all GPUs from compute capability 8.0 on share, and an H200's multiprocessors."""
        return cls("GPU of compute capability 8.0 or newer", "sm_80", cls.h200().multiprocessors, 99 * 1024)

    @classmethod
    def h200(cls) -> Gpu:
        """One NVIDIA H200. A device-to-device copy and products of 8192x8192 matrices in PyTorch gave its rates.

        The fp64 rate is the vendor's figure.
        """
        rates: dict[Precision, float] = {
            "fp32": 51e12,
            "tf32": 355e12,
            "tf32_rna": 355e12,
            "fp16": 697e12,
            "bf16": 697e12,
            "fp64": 67e12,
        }
        return cls("NVIDIA H200", "sm_90a", 132, 227 * 1024, 4.25e12, MappingProxyType(rates))

    @classmethod
    def h100(cls) -> Gpu:
        """One NVIDIA H100 with 80 GB of HBM3. `benchmarks/rates.py` measured its rates.

        The fp64 rate is the vendor's figure.
        """
        rates: dict[Precision, float] = {
            "fp32": 51.7e12,
            "tf32": 379e12,
            "tf32_rna": 379e12,
            "fp16": 686e12,
            "bf16": 686e12,
            "fp64": 67e12,
        }
        return cls("NVIDIA H100 80GB HBM3", "sm_90a", 132, 227 * 1024, 3.03e12, MappingProxyType(rates))


def floor_seconds(problem: Problem, gpu: Gpu) -> float | None:
    """The roofline bound: max(2 µs, bytes / copy bandwidth, operations / matrix rate), None if unmeasured."""
    rate = gpu.rates.get(problem.layer.precision)
    if gpu.bandwidth is None or rate is None:
        return None
    return max(SHORTEST_SECONDS, problem.bytes_moved / gpu.bandwidth, 2 * problem.multiply_adds / rate)


def registers_fit(registers: Any, threads: Any) -> Any:
    """Whether a multiprocessor has so many registers for each thread of a block, and a thread may have them."""
    return (registers <= THREAD_REGISTERS) & (registers * threads <= REGISTERS)


def blocks_that_fit(registers: Any, shared_bytes: Any, limit: int) -> Any:
    """Blocks that a Hopper multiprocessor holds, of so many registers and bytes of shared memory; 1 to `limit`."""
    by_memory = SHARED_BYTES // (shared_bytes + RESERVED_SHARED_BYTES)
    return most(1, least(least(REGISTERS // registers, by_memory), limit))
