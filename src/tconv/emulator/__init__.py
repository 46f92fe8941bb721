"""Kernels on the CPU: compiled by g++ and run with a fiber for every CUDA thread.

For tests, and for saying something true on a machine without a GPU. `run` executes launches of a CUDA
translation unit on CPU tensors, plainly or under AddressSanitizer or ThreadSanitizer, in several orders
of the threads. See docs/kernels.md.
"""

from tconv.emulator.errors import EmulatorError, Kind
from tconv.emulator.execution import Copies, Launch, Order, run
from tconv.emulator.program import Fibers, Mode, build

__all__ = ["Copies", "EmulatorError", "Fibers", "Kind", "Launch", "Mode", "Order", "build", "run"]
