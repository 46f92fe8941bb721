"""How long the steps of a job took."""

from __future__ import annotations

import time
from collections.abc import Callable

from tconv.sandbox.gpu_memory import release


class Steps:
    """Called with the words of each step that begins. It passes them on, and keeps the seconds until the next step.

    A step with the same words as an earlier one adds to its seconds. `step` is the current one.

    Args:
        began: the clock's time at which a step "starting" began; None for no such step.
    """

    def __init__(
        self,
        say: Callable[[str], None] = lambda step: None,
        clock: Callable[[], float] = time.perf_counter,
        began: float | None = None,
    ) -> None:
        self._say, self._clock = say, clock
        self._taken: dict[str, float] = {}
        self.step, self._since = ("", 0.0) if began is None else ("starting", began)

    def __call__(self, step: str) -> None:
        self._end()
        release()  # the next step's processes need memory, too
        self.step, self._since = step, self._clock()
        self._say(step)

    def seconds(self) -> dict[str, float]:
        """The seconds of each step, in the order in which they began. The current one ends now."""
        self._end()
        self.step = ""
        return dict(self._taken)

    def _end(self) -> None:
        if self.step:
            self._taken[self.step] = self._taken.get(self.step, 0.0) + self._clock() - self._since
