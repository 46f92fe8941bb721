"""The logic of timing under a clock that tells what it is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import pytest

from tconv.evaluation.timing import (
    Call,
    Called,
    Measured,
    as_times,
    calls_a_round,
    cross_check,
    interleave,
    nothing,
    quantile,
    settle,
    settle_called,
)
from tconv.evaluation.verdict import AsCalled, Series, Timing, clearly_longer


@dataclass
class FakeClock:
    """Every call takes what the script says: its times in turn, by the name that the call returns."""

    times: dict[str, list[float]]
    synchronised: dict[str, float]
    order: list[str] = field(default_factory=list)

    def warm_up(self, call: Call) -> None:
        call()

    def device_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        name = str(call())
        self.order.append(name)
        return [self.times[name].pop(0) for _ in range(count)]

    def synchronised_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        return [self.synchronised[str(call())]] * count

    def host_us(self, call: Call, count: int, between: Call = nothing) -> float:
        return {"candidate": 5.0, "reference": 11.0}[str(call())]


def measured(median: float, synchronised: float = 1.0, host_us: float = 10.0) -> Measured:
    return Measured((median,) * 5, synchronised, host_us)


def test_calls_take_turns_and_change_their_order() -> None:
    clock = FakeClock(
        {"candidate": [1.0, 2.0, 3.0, 4.0, 9.0, 9.0], "reference": [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]},
        {"candidate": 3.5, "reference": 36.0},
    )
    calls = {"candidate": lambda: "candidate", "reference": lambda: "reference"}
    found = interleave(clock, calls, rounds=3, each=2)
    assert clock.order == ["candidate", "reference", "reference", "candidate", "candidate", "reference"]
    assert found["candidate"] == Measured((1.0, 2.0, 3.0, 4.0, 9.0, 9.0), 3.5, 5.0)
    assert found["candidate"].series == Series(median=3.5, low=2.0, high=9.0)
    assert found["reference"].series.median == 35.0 and found["reference"].host_us == 11.0


@pytest.mark.parametrize(
    ("times", "rounds", "counts"),
    [
        ([1.0, 1.01], 4, [10, 10, 10, 10]),
        ([4.9, 4.95], 4, [10, 4, 4, 4]),
        ([50.0, 50.5], 4, [10, 3, 3, 3]),
        ([1.0, 1.5], 10, [10] * 10),
    ],
)
def test_steady_times_are_taken_less_often(times: list[float], rounds: int, counts: list[int]) -> None:
    asked: list[int] = []

    class Steady(FakeClock):
        def device_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
            asked.append(count)
            return (times * count)[:count]

    clock = Steady({}, {"candidate": 1.0})
    found = interleave(clock, {"candidate": lambda: "candidate"}, steady=0.02)
    assert len(asked) == rounds and asked == counts
    assert len(found["candidate"].device_ms) == sum(counts)
    asked.clear()
    interleave(clock, {"candidate": lambda: "candidate"})
    assert asked == [10] * 10


def test_quantiles_are_interpolated_and_outliers_do_not_move_the_median() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([7.0], 0.2) == 7.0
    assert quantile([1.0, 1.0, 1.0, 1.0, 1000.0], 0.5) == 1.0
    assert quantile([0.0, 10.0], 0.8) == 8.0


def test_the_reference_beside_the_candidate_counts_while_it_agrees_with_its_own_process() -> None:
    series, source = settle(beside=measured(1.04), alone=measured(1.0))
    assert series.median == 1.04
    assert "by turns" in source and "1.04 ms" in source


@pytest.mark.parametrize(("beside", "counts", "where"), [(1.06, 1.0, "a process of its own"), (0.94, 0.94, "by turns")])
def test_where_the_references_times_differ_the_shorter_counts(beside: float, counts: float, where: str) -> None:
    series, source = settle(beside=measured(beside), alone=measured(1.0))
    assert series.median == counts
    assert source.startswith(where) and "the shorter of two that differ by 6%" in source


def test_work_that_the_events_do_not_see_shows_in_the_device_wide_time() -> None:
    assert cross_check("candidate", measured(1.0, synchronised=1.2)).passed
    # Small layers: launching costs more than the work.
    assert cross_check("candidate", measured(0.002, synchronised=0.055, host_us=10)).passed
    hidden = cross_check("candidate", measured(0.1, synchronised=1.0))
    assert hidden.passed is False
    assert "work that the current stream does not see" in hidden.reason


def test_times_survive_json_and_say_who_is_faster() -> None:
    one = measured(0.5)
    assert Measured.from_dict(json.loads(json.dumps(asdict(one)))) == one
    timing = Timing(
        Series(0.5, 0.4, 0.6), Series(2.0, 1.9, 2.1), "by turns", 0.25, alternatives={"channels_last": Series(1, 1, 1)}
    )
    told = json.loads(json.dumps(timing.to_dict()))
    assert told["speedup"] == 4.0 and told["best_alternative"] == "channels_last"
    assert told["candidate"] == {"median": 0.5, "low": 0.4, "high": 0.6}


@pytest.mark.parametrize(("milliseconds", "calls"), [(0.01, 20), (20.0, 20), (21.0, 19), (100.0, 4), (9000.0, 1)])
def test_long_calls_are_made_less_often(milliseconds: float, calls: int) -> None:
    assert calls_a_round(milliseconds) == calls


def called(events: float, wall: float) -> Called:
    return Called.joined([Called((events,) * 2, (wall,) * 2), Called((3 * events,), (3 * wall,))])


@pytest.mark.parametrize(
    ("events", "wall", "agree"),
    [(1.0, 1.06, True), (1.0, 1.08, False), (0.01, 0.03, True), (0.01, 0.031, False)],  # 5 % and 20 µs
)
def test_the_hosts_clock_counts_on_all_sides_where_events_miss_work_on_one(
    events: float, wall: float, agree: bool
) -> None:
    pair = {"candidate": called(events, wall), "reference": called(2.0, 2.01)}
    series, checks = settle_called(pair, {"channels_last": called(4.0, 4.5)})
    assert [check.passed for check in checks] == [agree, True]
    assert ("work that the current stream does not see" in checks[0].reason) is not agree
    times = {name: found.median for name, found in series.items()}
    assert times == (
        {"candidate": events, "reference": 2.0, "channels_last": 4.0}
        if agree
        else {"candidate": wall, "reference": 2.01, "channels_last": 4.5}
    )
    assert series["candidate"].high == pytest.approx(quantile([1, 1, 3], 0.8) * (events if agree else wall))


def test_other_ways_say_nothing_of_the_clocks() -> None:
    pair = {"candidate": called(1.0, 1.0), "reference": called(2.0, 2.0)}
    series, checks = settle_called(pair, {"channels_last": called(1.0, 9.0)})
    assert len(checks) == 2 and series["channels_last"].median == 1.0


@pytest.mark.parametrize(
    ("time", "other", "clear"),
    [(1.06, 1.0, True), (1.049, 1.0, False), (0.014, 0.01, False), (0.0151, 0.01, True), (1.0, 1.06, False)],
)
def test_what_is_clearly_longer(time: float, other: float, clear: bool) -> None:
    assert clearly_longer(time, other) is clear


def flat(median: float) -> Series:
    return Series(median, median, median)


def test_what_follows_from_the_times_of_a_way() -> None:
    sides = AsCalled(flat(1.0), flat(4.0), alternatives={"a": flat(3.0), "b": flat(2.0)}, calls=5)
    told = json.loads(json.dumps(sides.to_dict()))
    assert (told["speedup"], told["over_best_other"], told["best_alternative"]) == (4.0, 2.0, "b")
    assert told["slower"] is told["best_compiled"] is False and told["calls"] == 5
    assert told["alternatives"]["a"] == {"median": 3.0, "low": 3.0, "high": 3.0}
    alone = AsCalled(flat(1.0), flat(4.0), calls=5)
    assert alone.over_best_other is None and alone.best_alternative == "default"


def test_slower_in_inference_beyond_noise_and_as_called_beyond_the_hosts() -> None:
    def ways(ours: float, theirs: float) -> tuple[bool, bool]:
        pair = flat(ours), flat(theirs)
        return Timing(*pair, "").slower, AsCalled(*pair, calls=100).slower

    assert ways(1.01, 1.0) == (False, False)
    assert ways(1.04, 1.0) == (True, False)
    assert ways(1.06, 1.0) == (True, True)
    assert ways(0.012, 0.01) == (True, False)


@pytest.mark.parametrize(
    ("compiled", "best"), [(0.9, True), (0.96, False), (None, False)], ids=["clearly", "hardly", "not timed"]
)
def test_torch_compile_is_the_best_where_it_beats_all_else_clearly(compiled: float | None, best: bool) -> None:
    def sides(candidate: float, other: float) -> bool:
        under = None if compiled is None else flat(compiled)
        return Timing(flat(candidate), flat(5.0), "", alternatives={"a": flat(other)}, compiled=under).best_compiled

    assert sides(1.0, 2.0) is best and sides(2.0, 1.0) is best
    assert sides(2.0, 0.8) is False and sides(0.8, 2.0) is False


@pytest.mark.parametrize("found", [[], [0.0], [1.0, "1"], [float("inf")], [True, None], {}])
def test_what_are_no_times(found: list[object]) -> None:
    with pytest.raises(ValueError, match="got no times; allowed are positive numbers"):
        as_times(found)
