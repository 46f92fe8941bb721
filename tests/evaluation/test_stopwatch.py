"""The clock of a GPU, on a device that is made up: what it queues, in which order, and what it reads off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tconv.evaluation import stopwatch
from tconv.evaluation.files.timing import in_process
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import Called, settle_called


class Device:
    """A host that takes a millisecond for a call, and a device that takes five; it keeps what was done, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.slept: list[int] = []
        self.host = self.device = self._waited_for = 0.0
        cuda = SimpleNamespace(
            get_device_properties=lambda index: SimpleNamespace(L2_cache_size=50 * 2**20),
            current_device=lambda: 0,
            Event=self._events(),
            synchronize=self._wait,
            _sleep=lambda cycles: (self.slept.append(cycles), self.done.append("sleep")),
        )
        monkeypatch.setattr(torch, "cuda", cuda)
        self.memory: list[int] = []
        monkeypatch.setattr(stopwatch.torch, "empty", self._empty)
        monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: self.host)

    def _empty(self, size: int, dtype: torch.dtype, device: str) -> Any:
        self.memory.append(size)
        assert (dtype, device) == (torch.uint8, "cuda")
        return SimpleNamespace(zero_=lambda: self.done.append("cool"))

    def _events(self) -> type:
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.time = device.device
                device.done.append("record")

            def elapsed_time(self, end: Event) -> float:
                return end.time - self.time

        return Event

    def _wait(self) -> None:
        self.host += (self.device - self._waited_for) / 1e3
        self._waited_for = self.device
        self.done.append("wait")

    def call(self) -> None:
        self.host += 0.001
        self.device += 5.0
        self.done.append("call")

    def between(self) -> None:
        self.done.append("between")


WARM = ["between", *["call"] * 3, "wait"]


def test_events_see_a_cold_call_alone_while_the_device_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    assert CudaClock().device_ms(device.call, 2, device.between) == [5.0, 5.0]
    assert device.memory == [101 * 2**20], "twice the L2 cache and more"
    tried = ["between", "cool", "call", "wait"]
    assert device.done == [*WARM, *tried, "sleep", *["between", "cool", "record", "call", "record"] * 2, "wait"]
    # Twice what the host takes for two calls of a millisecond, at 2 GHz.
    assert device.slept == pytest.approx([2 * 2 * 0.001 * 2e9])


def test_a_host_that_is_slow_does_not_let_the_device_sleep_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    CudaClock().device_ms(device.call, 1000)
    assert device.slept == [int(0.2 * 2e9)]


def test_wall_time_is_waited_for_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    assert CudaClock().synchronised_ms(device.call, 2, device.between) == pytest.approx([6.0, 6.0])
    assert device.done == [*WARM, *["between", "cool", "wait", "call", "wait"] * 2]


def test_the_hosts_time_is_without_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    assert CudaClock().host_us(device.call, 3, device.between) == pytest.approx(1000.0)
    assert device.done == [*WARM, *["between", "wait", "call", "wait"] * 3]


def test_it_is_warmed_up_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    CudaClock().warm_up(device.call)
    assert device.done == ["call", "wait"] * 50, "0.3 s of 6 ms each"


def test_a_call_as_programs_make_it_meets_a_device_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    events, wall = CudaClock().called_ms(device.call, 2, device.between)
    assert events == [5.0, 5.0]
    assert wall == pytest.approx([6.0, 6.0]), "a millisecond on the host, and the wait"
    one = ["between", "cool", "wait", "record", "call", "record", "wait"]
    nothing = ["cool", "wait", "record", "record", "wait"]
    assert device.done == [*one, *nothing * 5, *one * 2], "the first does not count"


def test_what_taking_times_costs_the_host_is_not_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    clock = CudaClock()

    def wait() -> None:
        device.host += 0.040
        device._wait()

    clock._wait = wait
    _, wall = clock.called_ms(device.call, 3)
    assert wall == pytest.approx([6.0] * 3)


def test_work_of_another_stream_shows_on_the_hosts_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    clock = CudaClock()
    hidden = [0.0]

    def call(elsewhere: float) -> None:
        device.device += 5.0 - 1e3 * elsewhere
        hidden[0] = elsewhere

    def wait() -> None:  # the current stream's share of five milliseconds, and the other's
        device._wait()
        device.host += hidden.pop()
        hidden.append(0.0)

    clock._wait = wait
    sides = {
        side: Called(*map(tuple, clock.called_ms(lambda elsewhere=elsewhere: call(elsewhere), 5)))
        for side, elsewhere in {"candidate": 0.004, "reference": 0.0}.items()
    }
    assert sides["candidate"].events_ms == (1.0,) * 5
    series, checks = settle_called(sides, {})
    assert [check.passed for check in checks] == [False, True]
    assert series["candidate"].median == pytest.approx(5.0), "nobody is faster for that"


@pytest.mark.parametrize(
    ("seconds", "calls"), [(0.001, 50), (0.1, 1 + 10), (1.0, 1 + 2)], ids=["short", "long", "very long"]
)
def test_calls_are_warm_after_a_time_and_a_number(seconds: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)

    def call() -> None:
        device.call()
        device.host += seconds - 0.001

    milliseconds = CudaClock().warm_called(call, device.between)
    assert milliseconds == pytest.approx(1e3 * seconds + 5)
    done = device.done.count("call")
    assert done == calls if seconds > 0.01 else abs(done - calls) <= 2, "0.3 s of 6 ms each"
    assert device.done == ["between", "call", "wait"] * done


def test_a_device_that_was_warm_is_so_after_a_shorter_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device, clock = Device(monkeypatch), CudaClock()
    done = []
    for _ in range(3):
        clock.warm_called(device.call)
        done.append(device.done.count("call"))
        device.done.clear()
    assert done[1] == done[2] < done[0] / 2


@pytest.mark.parametrize(
    ("inputs", "module", "expected"),
    [
        ([torch.rand(1, 2, 3, 4)], torch.nn.ConvTranspose2d(2, 2, 2), torch.channels_last),
        ([torch.rand(1, 2, 3, 4, 5), 7], torch.nn.ConvTranspose3d(2, 2, 2), torch.channels_last_3d),
        ([torch.rand(1, 2, 3)], torch.nn.ConvTranspose1d(2, 2, 2), None),
        ([torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4, 5)], torch.nn.ConvTranspose2d(2, 2, 2), None),
        ([torch.rand(1, 2, 3, 4)], torch.nn.ConvTranspose3d(2, 2, 2), None),
    ],
)
def test_which_format_a_model_is_also_timed_in(
    inputs: list[Any], module: torch.nn.Module, expected: torch.memory_format | None
) -> None:
    assert in_process._channels_last(module, inputs) == expected


def test_tensors_of_that_format_are_laid_out_and_others_stay() -> None:
    x, line = torch.rand(1, 2, 3, 4), torch.rand(3)
    laid_out = in_process._in_channels_last(x)
    assert torch.equal(laid_out, x) and laid_out.is_contiguous(memory_format=torch.channels_last)
    assert in_process._in_channels_last(line) is line
    assert in_process._in_channels_last("text") == "text"


def test_settings_say_what_the_reference_ran_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(in_process, "allows_tf32", lambda: False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    found = in_process.settings(evaluation=True)
    assert found["float32 convolutions"] == "TF32 not allowed" and found["cudnn.deterministic"] == "True"
    assert found["torch"] == torch.__version__ and found["inference"] == "eval(), no_grad()"
    assert found["allocator"] == "expandable_segments:True"
