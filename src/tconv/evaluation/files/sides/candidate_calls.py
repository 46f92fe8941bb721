"""The calls of a candidate, and the side effects of each call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tconv.evaluation.bits import Fingerprint, fingerprint, same_bytes
from tconv.evaluation.files.sides.file_process import Outcome, Side
from tconv.evaluation.verdict import Check, Verdict
from tconv.sandbox.exchange import Unchanged, tensors

_Prints = dict[str, Fingerprint]
#: About this many elements of a tensor identify it.
_SOME = 2**12
#: In the names of `watch.traces`.
_RANDOM = "random state"


class Calls:
    """Runs a candidate and records all that was wrong in any call."""

    def __init__(self, candidate: Side) -> None:
        self._candidate = candidate
        self._changed: set[str] = set()
        self._late: set[str] = set()
        self._rebound: set[str] = set()
        self._overwritten: set[str] = set()
        self._marked: set[str] = set()
        self._traces: set[str] = set()
        self._shared: set[str] = set()
        self._models_own: set[str] = set()
        self._models_last: set[str] = set()
        self._not_drawn: set[str] = set()
        self._last: tuple[_Prints, _Prints] | None = None
        self._repeats = False
        self._state: tuple[Unchanged, _Prints] = Unchanged(None), {}

    def forward(
        self,
        inputs: list[Any],
        state: dict[str, Tensor],
        *,
        seed: int,
        output_bytes: int,
        on: torch.device | None = None,
        training: bool | None = None,
        aside: bool = False,
    ) -> Any:
        """The outputs. See `Side.forward`."""
        options = {"seed": seed, "output_bytes": output_bytes, "training": training, "aside": aside}
        return self.run(inputs, state, on=on, **options).outputs

    def run(self, inputs: list[Any], state: dict[str, Tensor] | None, **options: Any) -> Outcome:
        """The outcome, with any options of `Side.forward`."""
        outcome = self._candidate.forward(inputs, state, **options)
        self._changed.update(outcome.changed)
        self._late.update(outcome.late)
        self._rebound.update(outcome.rebound)
        self._overwritten.update(outcome.overwritten)
        self._marked.update(outcome.marked)
        self._traces.update(outcome.traces)
        self._shared.update(outcome.shared)
        self._not_drawn |= {name for name in self._models_last - set(outcome.traces) if _RANDOM in name}
        self._models_last = set()
        given = Unchanged(state)
        if given != self._state[0]:
            self._state = given, _prints(state)
        prints = {**_prints(inputs), **self._state[1]}, _prints(outcome.outputs)
        if self._last is not None:
            self._repeats |= self._last[1] == prints[1] and self._last[0] != prints[0]
        self._last = prints
        return outcome

    def has(self, state: dict[str, Tensor]) -> bool:
        """Whether the last call gave the candidate that state."""
        return Unchanged(state) == self._state[0]

    def beside(self, model: Outcome) -> None:
        """Add a call of `Model`. The candidate may change, leave, overwrite or share what this call does.

        If the candidate's next call has the same inputs, mode and seed, it must draw random numbers as this call did.
        """
        self._models_last = set(model.traces)
        self._models_own.update(model.changed, model.overwritten, model.marked, model.traces, model.shared)

    def checks(self) -> list[Check]:
        """The checks of side effects, which hold for every call, whatever it computes."""
        return [
            _none("inputs unchanged", self._changed - self._models_own, "the call changed"),
            _none("done when it returns", self._late, "changed after the call had returned, by another thread?"),
            _none(
                "keeps its results",
                self._overwritten - self._models_own,
                "a call writes over what an earlier one returned: return memory of its own each time; changed",
            ),
            _none(
                "plain results",
                self._marked - self._models_own,
                "without gradients, Model's are plain: return what no_grad() computes;",
            ),
            _none(
                "memory of its own",
                self._shared - self._models_own,
                "who writes to one changes the other, and with Model's does not: return a copy;",
            ),
            _none(
                "flags and random state",
                self._traces - self._models_own,
                "a call leaves changed what Model's does not: set it back, and draw no random numbers; changed",
            ),
            _none("draws random numbers", self._not_drawn, "so that the next call has others, Model changes"),
            _none("patches nothing", self._rebound, "ModelNew's file puts something else in place of"),
        ]

    def added_to(self, checks: list[Check]) -> list[Check]:
        """The checks with those of side effects. Side effects that explain a wrong result come first."""
        checks = [*checks, *self.checks()]
        return checks if Verdict(tuple(checks)).equal else [*self._repetitions(), *checks]

    def _repetitions(self) -> list[Check]:
        """For a candidate that failed: whether two calls on different values gave the same bits."""
        if not self._repeats:
            return []
        reason = "calls on other inputs or weights gave the same bits: is that an earlier call's output?"
        return [Check("follows its inputs", False, "the same", "others", reason)]


def _prints(value: Any) -> _Prints:
    """Fingerprints of some elements of each tensor of a tree. They explain a failure, and never cause one."""
    return {path: fingerprint(tensor.flatten()[:: tensor.numel() // _SOME + 1]) for path, tensor in tensors(value)}


def same_values_of(one: Any, other: Any) -> bool:
    """Whether all tensors of two trees have the same bits."""
    ours, theirs = dict(tensors(one)), dict(tensors(other))
    return ours.keys() == theirs.keys() and all(same_bytes(ours[path], theirs[path]) for path in ours)


def _none(name: str, found: set[str], words: str) -> Check:
    if not found:
        return Check(name, True)
    return Check(name, False, "changed", "unchanged", f"{words} {', '.join(sorted(found))}")
