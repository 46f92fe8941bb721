"""The clock of `timing`: CUDA events, and the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tconv.evaluation.timing import Call, nothing, quantile

_WARM_CALLS = 3
#: Seconds of the first warm-up, and of later ones, before which the device has hardly rested.
_WARM_SECONDS, _STILL_WARM_SECONDS = 0.3, 0.1
#: As a program calls: the least number of calls before those that count, and the seconds after which they end early.
_WARM_CALLED, _LONGEST_WARM_SECONDS = 10, 2.0
#: Empty calls that are timed, to measure what timing itself costs the host.
_EMPTY = 5
#: The sleeping kernel counts clock cycles, at this rate a second. A slower clock makes it sleep longer.
_CYCLES_PER_SECOND = 2e9
#: The longest sleep in seconds. If the host queues a series for longer, the work itself hides it.
_LONGEST_SLEEP = 0.2


def load_libraries() -> None:
    """Make CUDA, cuDNN and cuBLAS load their code now. Each takes tenths of a second at its first use."""
    x = torch.zeros(1, 1, 1, 1, device="cuda")
    torch.nn.functional.conv_transpose2d(x, x)
    torch.mm(x[0, 0], x[0, 0])
    torch.cuda.synchronize()


class CudaClock:
    """Times calls on the current CUDA device by events on the current stream. See `timing.Clock`."""

    def __init__(self) -> None:
        # More than twice the L2 cache, so that no data of the last call stay in the cache.
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._flush = torch.empty(2 * cache + 2**20, dtype=torch.uint8, device="cuda")
        # Methods are bound now, since a candidate may patch the classes later.
        self._cool: Callable[[], Any] = self._flush.zero_
        self._now = time.perf_counter
        self._warm_seconds = _WARM_SECONDS
        self._event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
        self._record: Callable[[Any], None] = torch.cuda.Event.record
        self._elapsed: Callable[[Any, Any], float] = torch.cuda.Event.elapsed_time
        self._wait = torch.cuda.synchronize
        self._sleep: Callable[[int], None] = torch.cuda._sleep

    def warm_up(self, call: Call) -> None:
        """See `timing.Clock`."""
        end = self._now() + self._seconds_to_warm()
        while self._now() < end:
            call()
            self._wait()

    def device_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        """See `timing.Clock`."""
        self._warm(call, between)
        started = self._now()
        between()
        self._cool()
        call()
        seconds_on_host = self._now() - started
        self._wait()
        # The device sleeps while the host queues all calls, so it never waits for the host between them.
        self._sleep(int(min(2 * count * seconds_on_host, _LONGEST_SLEEP) * _CYCLES_PER_SECOND))
        events = [(self._event(), self._event()) for _ in range(count)]
        for start, end in events:
            between()
            self._cool()
            self._record(start)
            call()
            self._record(end)
        self._wait()
        return [self._elapsed(start, end) for start, end in events]

    def synchronised_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        """See `timing.Clock`."""
        self._warm(call, between)
        times = []
        for _ in range(count):
            between()
            self._cool()
            self._wait()
            started = self._now()
            call()
            self._wait()
            times.append((self._now() - started) * 1e3)
        return times

    def host_us(self, call: Call, count: int, between: Call = nothing) -> float:
        """See `timing.Clock`."""
        self._warm(call, between)
        times = []
        for _ in range(count):
            between()
            self._wait()
            started = self._now()
            call()
            times.append((self._now() - started) * 1e6)
            self._wait()
        return quantile(times, 0.5)

    def warm_called(self, call: Call, between: Call = nothing) -> float:
        """See `timing.Clock`."""
        between()
        call()  # it may build or compile, for any time
        self._wait()
        times, taken, wanted = list[float](), 0.0, self._seconds_to_warm()
        while taken < _LONGEST_WARM_SECONDS and (len(times) < _WARM_CALLED or taken < wanted):
            between()
            started = self._now()
            call()
            self._wait()
            times.append(self._now() - started)
            taken += times[-1]
        return quantile(times, 0.5) * 1e3

    def called_ms(self, call: Call, count: int, between: Call = nothing) -> tuple[list[float], list[float]]:
        """See `timing.Clock`."""
        start, end = self._event(), self._event()

        def timed(call: Call, between: Call) -> tuple[float, float]:
            between()
            self._cool()
            self._wait()
            started = self._now()
            self._record(start)
            call()
            self._record(end)
            self._wait()
            wall = (self._now() - started) * 1e3
            return self._elapsed(start, end), wall

        timed(call, between)  # wakes the process, and creates the events, which their first record does
        # The host's time to record two events and to wait, which differs between machines, is subtracted.
        around = quantile([wall - event for event, wall in (timed(nothing, nothing) for _ in range(_EMPTY))], 0.5)
        events, wall = zip(*(timed(call, between) for _ in range(count)), strict=True)
        return list(events), [max(event, each - around) for event, each in zip(events, wall, strict=True)]

    def _seconds_to_warm(self) -> float:
        seconds, self._warm_seconds = self._warm_seconds, _STILL_WARM_SECONDS
        return seconds

    def _warm(self, call: Call, between: Call) -> None:
        between()  # lets results of another call go
        for _ in range(_WARM_CALLS):
            call()
        self._wait()
