"""The logic of timing, apart from the clock: interleaved series, and which run of the reference counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tconv.evaluation.verdict import Check, Series

#: The reference may differ by this much between the candidate's process and one of its own.
AGREEMENT = 0.05
#: Device-wide time may exceed event time by this factor, the host's share and the constant (ms) aside.
_CROSS_CHECK_FACTOR = 1.25
_CROSS_CHECK_MS = 0.05

Call = Callable[[], object]


class Clock(Protocol):
    """Times calls on a device. Every series leaves the first calls out and starts each call with a cold L2 cache."""

    def device_ms(self, call: Call, count: int) -> list[float]:
        """Milliseconds between two events around each call, with enough queued work that the host is hidden."""

    def synchronised_ms(self, call: Call, count: int) -> list[float]:
        """Milliseconds of wall time of each call with the whole device waited for before and after."""

    def host_us(self, call: Call, count: int) -> float:
        """Microseconds that a call takes on the host."""


@dataclass(frozen=True)
class Measured:
    """One side's times: device milliseconds of each call, their synchronised median, host microseconds a call."""

    device_ms: tuple[float, ...]
    synchronised_ms: float
    host_us: float

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Measured:
        """The inverse of dataclasses.asdict, also after a passage through JSON."""
        return cls(tuple(fields["device_ms"]), fields["synchronised_ms"], fields["host_us"])

    @property
    def series(self) -> Series:
        """Median and spread of the device times."""
        return Series(quantile(self.device_ms, 0.5), quantile(self.device_ms, 0.2), quantile(self.device_ms, 0.8))


def interleave(clock: Clock, calls: Mapping[str, Call], *, rounds: int = 10, each: int = 10) -> dict[str, Measured]:
    """Time several calls by turns, so that clocks and temperature change for all of them alike.

    Every round times each call `each` times; every other round goes through them backwards.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
            times[name] += clock.device_ms(calls[name], each)
    return {
        name: Measured(tuple(times[name]), quantile(clock.synchronised_ms(call, each), 0.5), clock.host_us(call, each))
        for name, call in calls.items()
    }


def settle(beside: Measured, alone: Measured) -> tuple[Series, str]:
    """The reference's time that counts, and a sentence that says which one it is.

    Args:
        beside: measured by turns with the candidate, in the candidate's process.
        alone: measured in a process that never loaded the candidate.
    """
    ours, theirs = beside.series, alone.series
    apart = abs(ours.median - theirs.median) / theirs.median
    figures = f"{ours.median:.4g} ms beside the candidate, {theirs.median:.4g} ms in a process of its own"
    if apart <= AGREEMENT:
        return ours, f"by turns with the candidate; the reference agrees with its own process ({figures})"
    return theirs, f"a process of its own: the reference differs by {apart:.0%} beside the candidate ({figures})"


def cross_check(name: str, measured: Measured) -> Check:
    """Device-wide waiting must not show much more work than the events saw: it would be on another stream or thread."""
    events = measured.series.median
    allowed = _CROSS_CHECK_FACTOR * events + measured.host_us / 1e3 + _CROSS_CHECK_MS
    passed = measured.synchronised_ms <= allowed
    reason = f"events {events:.4g} ms, device-wide {measured.synchronised_ms:.4g} ms, allowed {allowed:.4g} ms"
    if not passed:
        reason += "; is there work that the current stream does not see?"
    return Check(f"{name}: events and device-wide time agree", passed, measured.synchronised_ms, allowed, reason)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which that part of the values lies, interpolated."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
