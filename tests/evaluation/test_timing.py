"""The logic of timing under a clock that tells what it is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import pytest

from tconv.evaluation.timing import Call, Measured, cross_check, interleave, nothing, quantile, settle
from tconv.evaluation.verdict import Series, Timing


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
    timing = Timing(Series(0.5, 0.4, 0.6), Series(2.0, 1.9, 2.1), "by turns", 0.25, alternatives={"channels_last": 1.0})
    told = json.loads(json.dumps(timing.to_dict()))
    assert told["speedup"] == 4.0 and told["best_alternative"] == "channels_last"
    assert told["candidate"] == {"median": 0.5, "low": 0.4, "high": 0.6}
