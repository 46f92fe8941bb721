"""The timing worker on the CPU, under a clock by which every operator of PyTorch takes a millisecond."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tconv.evaluation.files.process import by_samples
from tconv.evaluation.files.process.answers import Subject
from tconv.evaluation.files.timing import timed_call
from tconv.evaluation.files.timing.in_process import Stopwatch
from tconv.evaluation.timing import Call, nothing, quantile


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class OperatorClock:
    """Its times are not steady, so that all rounds are taken.

    A model may say how much `later` it is done than the current stream shows.
    """

    def warm_up(self, call: Call) -> None:
        call()

    def device_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        times = []
        for number in range(count):
            between()
            with Operators() as operators:
                call()
            times.append(operators.count + 0.5 + 0.125 * (number % 2))
        return times

    def synchronised_ms(self, call: Call, count: int, between: Call = nothing) -> list[float]:
        return self.device_ms(call, count, between)

    def host_us(self, call: Call, count: int, between: Call = nothing) -> float:
        return quantile(self.device_ms(call, count, between), 0.5)

    def warm_called(self, call: Call, between: Call = nothing) -> float:
        return self.device_ms(call, 1, between)[0]

    def called_ms(self, call: Call, count: int, between: Call = nothing) -> tuple[list[float], list[float]]:
        times = self.device_ms(call, count, between)
        later = getattr(getattr(call, "_model", None), "later", 0)
        return times, [time + later for time in times]


class FakeStopwatch(Stopwatch):
    device = "cpu"

    def clock(self) -> OperatorClock:
        return OperatorClock()

    def prepare(self) -> None:
        pass


class CompilingStopwatch(FakeStopwatch):
    """Whose compiler makes one operator of a model; it refuses one that says so."""

    def compiled(self, module: nn.Module) -> Any:
        if getattr(module, "refused", False):
            raise RuntimeError("no compiler\nthat takes it")
        return Compiled(module)


class Compiled(nn.Module):
    """Gives what the module gives, and one operator counts."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        with _disable_current_modes():
            found = self.module(*inputs)
        return found * getattr(self.module, "spoils", 1)


class LargeStopwatch(FakeStopwatch):
    """To which any call is a large one."""

    def __init__(self, **arguments: Any) -> None:
        timed_call._LARGE_BYTES = 1000
        super().__init__(**arguments)


class FewAtOnce(Subject):
    """To which any inputs are large ones."""

    def __init__(self, **arguments: Any) -> None:
        by_samples._AT_ONCE_BYTES = 1000
        super().__init__(**arguments)
