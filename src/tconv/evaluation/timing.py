"""The logic of timing, apart from the clock: interleaved series, and which run of the reference counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from tconv.evaluation.verdict import Check, Series

#: The reference may differ by this much between the candidate's process and one of its own.
AGREEMENT = 0.05
#: Device-wide time may exceed event time by this factor, the host's share and the constant (ms) aside.
_CROSS_CHECK_FACTOR = 1.25
_CROSS_CHECK_MS = 0.05
#: Of steady calls: rounds, so that both orders come as often, and calls in a round, which need not take longer.
_FEWEST_ROUNDS, _FEWEST_CALLS, _ROUND_MS = 4, 3, 20.0
#: Times that differ by no more than this share are taken for steady.
STEADY = 0.02
#: As a program calls: rounds, calls in each, and the milliseconds that a round may take where calls are long.
CALLED_ROUNDS, CALLED, _CALLED_ROUND_MS = 5, 20, 400.0
#: Of settings other than the default, of which medians are told and nothing is judged by, fewer rounds.
CALLED_ROUNDS_OF_OTHERS = 2
#: By so much the host's clock around such a call may exceed the events: a share, and milliseconds.
_AROUND_SHARE, _AROUND_MS = 0.05, 0.02

Call = Callable[[], object]


def nothing() -> None:
    """Done between calls that take the same values each time."""


class Clock(Protocol):
    """Times calls on a device. Every series leaves the first calls out and starts each call with a cold L2 cache.

    When a series ends, all work of the device is done. `between` is run before each call that counts, and is not timed.
    """

    def warm_up(self, call: Call) -> None:
        """Run the call until the device is at its working clock."""

    def device_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        """Milliseconds between two events around each call, with enough queued work that the host is hidden."""

    def synchronised_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        """Milliseconds of wall time of each call with the whole device waited for before and after."""

    def host_us(self, call: Call, count: int, between: Call = nothing) -> float:
        """Microseconds that a call takes on the host."""

    def warm_called(self, call: Call, between: Call = nothing) -> float:
        """Make the first call, then others for a time; milliseconds of one of these, the device waited for."""

    def called_ms(self, call: Call, count: int, between: Call = nothing) -> tuple[list[float], list[float]]:
        """Milliseconds of each call while the device does nothing else: between two events, and by the host's clock."""


@dataclass(frozen=True)
class Measured:
    """One side's times: device milliseconds of each call, their synchronised median, host microseconds a call."""

    device_ms: tuple[float, ...]
    synchronised_ms: float
    host_us: float

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Measured:
        """The inverse of dataclasses.asdict, also after a passage through JSON.

        Raises:
            ValueError: these are no times. They come from a process in which somebody's program runs.
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
    """Milliseconds of calls as a program makes them: between two events, and by the host's clock around these."""

    events_ms: tuple[float, ...]
    wall_ms: tuple[float, ...]

    @classmethod
    def joined(cls, rounds: Sequence[Called]) -> Called:
        """Those of all rounds."""
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

    The arguments are those of `by_turns`. What the host takes is measured behind it.
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
    """Milliseconds on the device of several calls.

    Every round times each call `each` times; every other round goes through them backwards. `between` has what is to
    be run before each call, by the name of the call.

    Args:
        steady: where the middle three fifths of all calls' times lie within this share of their medians, four rounds
            are enough, and fewer calls a round of long ones. 0 for all of them.
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
    """What somebody's process says are times.

    Raises:
        ValueError: they are none.
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
    # What shortens PyTorch's time is no help to a candidate: the longer one may be the candidate's doing, or chance.
    shorter = "a process of its own" if theirs.median < ours.median else "by turns with the candidate"
    words = f"{shorter}, the shorter of two that differ by {apart:.0%} ({figures})"
    return (theirs if theirs.median < ours.median else ours), words


def cross_check(name: str, measured: Measured) -> Check:
    """Device-wide waiting must not show much more work than the events saw: it would be on another stream or thread."""
    events = measured.series.median
    allowed = _CROSS_CHECK_FACTOR * events + measured.host_us / 1e3 + _CROSS_CHECK_MS
    passed = measured.synchronised_ms <= allowed
    reason = f"events {events:.4g} ms, device-wide {measured.synchronised_ms:.4g} ms, allowed {allowed:.4g} ms"
    if not passed:
        reason += "; is there work that the current stream does not see?"
    return Check(f"{name}: events and device-wide time agree", passed, measured.synchronised_ms, allowed, reason)


def calls_a_round(milliseconds: float) -> int:
    """Calls of each side in a round of those as a program makes them, of which the longest takes so long."""
    return min(CALLED, max(1, int(_CALLED_ROUND_MS / milliseconds)))


def settle_called(
    pair: Mapping[str, Called], others: Mapping[str, Called]
) -> tuple[dict[str, Series], tuple[Check, ...]]:
    """The times that count, by side, and whether the two clocks agree on each of the pair.

    It is the events', or where they miss work on one of these sides, the host's on all.
    """
    checks = tuple(_clocks_agree(name, side) for name, side in pair.items())
    by_events = all(check.passed for check in checks)
    sides = {**pair, **others}
    return {name: series(each.events_ms if by_events else each.wall_ms) for name, each in sides.items()}, checks


def _clocks_agree(name: str, called: Called) -> Check:
    """The host, which waits for the whole device, must not see much more than the events on the current stream."""
    events, wall = quantile(called.events_ms, 0.5), quantile(called.wall_ms, 0.5)
    allowed = (1 + _AROUND_SHARE) * events + _AROUND_MS
    reason = f"events {events:.4g} ms, the host's clock {wall:.4g} ms, allowed {allowed:.4g} ms"
    if wall > allowed:
        reason += "; is there work that the current stream does not see? The host's clock counts, on all sides"
    return Check(f"{name} as called: events and the host's clock agree", wall <= allowed, wall, allowed, reason)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which that part of the values lies, interpolated."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
