"""What `tconv.planner.gpu` wants to know of a GPU: its bandwidth and its rates, by PyTorch, on that GPU.

    PYTHONPATH=src python3 benchmarks/rates.py

Prints them for a method beside `Gpu.h200`. The products read random numbers, as layers do: on zeros the clock stays
higher.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor

_COPIED_BYTES, _SIZE = 1 << 32, 8192
#: Seconds of calls in a row, so that the clock is down to where it stays.
_SECONDS = 0.3


def bandwidth() -> float:
    """Bytes read and written a second by a large copy on the device."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPIED_BYTES / _seconds(lambda: target.copy_(source))


def rate(dtype: torch.dtype, rounded: bool = False) -> float:
    """Operations a second of a large product of matrices, a multiply-add counted as two."""
    torch.backends.cuda.matmul.allow_tf32 = rounded
    a, b = (torch.randn(_SIZE, _SIZE, device="cuda").to(dtype) for _ in range(2))
    return 2 * _SIZE**3 / _seconds(lambda: a @ b)


def _seconds(call: Callable[[], Tensor]) -> float:
    """Of one call among many in a row."""
    return _of_each(call, math.ceil(_SECONDS / _of_each(call, 5)))


def _of_each(call: Callable[[], Tensor], count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def main() -> int:
    if not torch.cuda.is_available():
        print("rates.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    print(f"{torch.cuda.get_device_name()}: {multiprocessors} multiprocessors, {bandwidth():.3g} bytes a second")
    for name, dtype, rounded in (
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("fp16", torch.float16, False),
    ):
        print(f"{name}: {rate(dtype, rounded):.3g} operations a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
