"""The logic of timing, without the clock: interleaved series, and the choice of the reference's run that counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from tconv.evaluation.verdict import Check, Series

#: The reference's times in the candidate's process and in a process of its own may differ by this share.
AGREEMENT = 0.05
#: Device-wide time may exceed event time by this factor, plus the host's share and the constant (ms).
_CROSS_CHECK_FACTOR = 1.25
_CROSS_CHECK_MS = 0.05
#: For steady calls: the rounds, an even number so that both orders come as often; the least calls of a round; and the
#: milliseconds that a round of long calls may take.
_FEWEST_ROUNDS, _FEWEST_CALLS, _ROUND_MS = 4, 3, 20.0
#: Times that differ by no more than this share are steady.
STEADY = 0.02
#: As a program calls: rounds, calls in each, and the milliseconds that a round may take where calls are long.
CALLED_ROUNDS, CALLED, _CALLED_ROUND_MS = 5, 20, 400.0
#: Rounds of settings other than the default: their medians are reported, and no verdict depends on them.
CALLED_ROUNDS_OF_OTHERS = 2
#: The host's clock around such a call may exceed the events by this share and these milliseconds.
_AROUND_SHARE, _AROUND_MS = 0.05, 0.02

Call = Callable[[], object]


def nothing() -> None:
    """Does nothing between calls, for calls that take the same values each time."""


class Clock(Protocol):
    """Times calls on a device. A series does not count its first calls, and each call starts with a cold L2 cache.

    When a series ends, the device has finished all work. `between` runs before each call that counts and is not timed.
    """

    def warm_up(self, call: Call) -> None:
        """Run the call until the device is at its working clock."""

    def device_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        """Milliseconds between two events around each call. Queued work hides the host's time."""

    def synchronised_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        """Milliseconds of wall time of each call. The host waits for the whole device before and after."""

    def host_us(self, call: Call, count: int, between: Call = nothing) -> float:
        """Microseconds that a call takes on the host."""

    def warm_called(self, call: Call, between: Call = nothing) -> float:
        """Make the first call, then others until the device is warm. Returns the median milliseconds of the others,
        with the wait for the device."""

    def called_ms(self, call: Call, count: int, between: Call = nothing) -> tuple[list[float], list[float]]:
        """Milliseconds of each call on an idle device: between two events, and by the host's clock."""


@dataclass(frozen=True)
class Measured:
    """One side's times: device milliseconds of each call, their synchronised median, host microseconds a call."""

    device_ms: tuple[float, ...]
    synchronised_ms: float
    host_us: float

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Measured:
        """The inverse of dataclasses.asdict, also after JSON.

        Raises:
            ValueError: these are no times. They come from a process that runs a candidate.
        """
        try:
            times, *others = tuple(fields["device_ms"]), fields["synchronised_ms"], fields["host_us"]
        except (KeyError, TypeError):
            times, others = (), [0, 0]
        return cls(as_times(times), *as_times(others))

    @property
    def series(self) -> Series:
        """Median and spread of the device times."""
        return series(self.device_ms)


@dataclass(frozen=True)
class Called:
    """Milliseconds of calls as a program makes them: between two events, and by the host's clock around both."""

    events_ms: tuple[float, ...]
    wall_ms: tuple[float, ...]

    @classmethod
    def joined(cls, rounds: Sequence[Called]) -> Called:
        """The times of all rounds."""
        return cls(
            tuple(time for found in rounds for time in found.events_ms),
            tuple(time for found in rounds for time in found.wall_ms),
        )


def interleave(
    clock: Clock,
    calls: Mapping[str, Call],
    *,
    rounds: int = 10,
    each: int = 10,
    between: Mapping[str, Call] = MappingProxyType({}),
    steady: float = 0.0,
) -> dict[str, Measured]:
    """Time several calls by turns, so that clocks and temperature change for all of them alike.

    The arguments are as in `by_turns`. The host's time is measured after the device's.
    """
    times = by_turns(clock, calls, rounds=rounds, each=each, between=between, steady=steady)
    measured = {}
    for name, call in calls.items():
        before = between.get(name, nothing)
        count = _enough(quantile(times[name], 0.5), each) if steady else each
        synchronised = quantile(clock.synchronised_ms(call, count, before), 0.5)
        measured[name] = Measured(tuple(times[name]), synchronised, clock.host_us(call, count, before))
    return measured


def by_turns(
    clock: Clock,
    calls: Mapping[str, Call],
    *,
    rounds: int,
    each: int,
    between: Mapping[str, Call] = MappingProxyType({}),
    steady: float = 0.0,
) -> dict[str, list[float]]:
    """Device milliseconds of several calls.

    A round times each call `each` times; every other round takes the calls in reverse order. `between` has a function
    for the name of a call, to run before it.

    Args:
        steady: if the middle three fifths of each call's times lie within this share of its median, four rounds are
            enough, and long calls get fewer times a round. 0 for all rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    count = dict.fromkeys(calls, each)
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
            times[name] += clock.device_ms(calls[name], count[name], between.get(name, nothing))
        if steady and all(_spread(found) <= steady for found in times.values()):
            if number + 1 >= _FEWEST_ROUNDS:
                break
            count = {name: _enough(quantile(found, 0.5), each) for name, found in times.items()}
    return times


def as_times(found: Sequence[Any]) -> tuple[float, ...]:
    """Times that a candidate's process reported.

    Raises:
        ValueError: they are no times.
    """
    numbers = all(isinstance(time, (int, float)) and 0 < time < math.inf for time in found)
    if not found or not numbers:
        raise ValueError("got no times; allowed are positive numbers")
    return tuple(found)


def series(times: Sequence[float]) -> Series:
    """Median and spread of some times."""
    return Series(quantile(times, 0.5), quantile(times, 0.2), quantile(times, 0.8))


def _spread(times: Sequence[float]) -> float:
    return (quantile(times, 0.8) - quantile(times, 0.2)) / quantile(times, 0.5)


def _enough(milliseconds: float, each: int) -> int:
    return min(each, max(_FEWEST_CALLS, int(_ROUND_MS / milliseconds)))


def settle(beside: Measured, alone: Measured) -> tuple[Series, str]:
    """The reference's time that counts, and a sentence that names it.

    Args:
        beside: measured by turns with the candidate, in the candidate's process.
        alone: measured in a process that never loaded the candidate.
    """
    ours, theirs = beside.series, alone.series
    apart = abs(ours.median - theirs.median) / theirs.median
    figures = f"{ours.median:.4g} ms beside the candidate, {theirs.median:.4g} ms in a process of its own"
    if apart <= AGREEMENT:
        return ours, f"by turns with the candidate; the reference agrees with its own process ({figures})"
    # The shorter time counts: a candidate gains nothing by it, and may have caused the longer one.
    shorter = "a process of its own" if theirs.median < ours.median else "by turns with the candidate"
    words = f"{shorter}, the shorter of two that differ by {apart:.0%} ({figures})"
    return (theirs if theirs.median < ours.median else ours), words


def cross_check(name: str, measured: Measured) -> Check:
    """The device-wide wait must not take much longer than the events say: work would be on another stream or thread."""
    events = measured.series.median
    allowed = _CROSS_CHECK_FACTOR * events + measured.host_us / 1e3 + _CROSS_CHECK_MS
    passed = measured.synchronised_ms <= allowed
    reason = f"events {events:.4g} ms, device-wide {measured.synchronised_ms:.4g} ms, allowed {allowed:.4g} ms"
    if not passed:
        reason += "; is there work that the current stream does not see?"
    return Check(f"{name}: events and device-wide time agree", passed, measured.synchronised_ms, allowed, reason)


def calls_a_round(milliseconds: float) -> int:
    """Calls of each side in a round as a program makes them, if the longest call takes `milliseconds`."""
    return min(CALLED, max(1, int(_CALLED_ROUND_MS / milliseconds)))


def settle_called(
    pair: Mapping[str, Called], others: Mapping[str, Called]
) -> tuple[dict[str, Series], tuple[Check, ...]]:
    """The times that count, by side, and a check for each of the pair whether the two clocks agree.

    The events' times count. If the events miss work on a side of the pair, the host's times count for all sides.
    """
    checks = tuple(_clocks_agree(name, side) for name, side in pair.items())
    by_events = all(check.passed for check in checks)
    sides = {**pair, **others}
    return {name: series(each.events_ms if by_events else each.wall_ms) for name, each in sides.items()}, checks


def _clocks_agree(name: str, called: Called) -> Check:
    """The host's clock, with its wait for the whole device, must not exceed the current stream's events by much."""
    events, wall = quantile(called.events_ms, 0.5), quantile(called.wall_ms, 0.5)
    allowed = (1 + _AROUND_SHARE) * events + _AROUND_MS
    reason = f"events {events:.4g} ms, the host's clock {wall:.4g} ms, allowed {allowed:.4g} ms"
    if wall > allowed:
        reason += "; is there work that the current stream does not see? The host's clock counts, on all sides"
    return Check(f"{name} as called: events and the host's clock agree", wall <= allowed, wall, allowed, reason)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which this part of the values lies, interpolated."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
