"""What an evaluation says, as plain data: checks, the verdict they add up to, and times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: How closely a candidate is looked at; see `files.levels`. Nothing in its text chooses that.
Level = Literal["default", "strict"]
#: The check of gradients, and what it has got of a candidate that lacks some.
GRADIENTS, INFERENCE_ONLY = "gradients", "inference only"
#: What the check of streams has got of a candidate that launches on CUDA's default one.
DEFAULT_STREAM_ONLY = "default stream only"


@dataclass(frozen=True)
class Check:
    """One rule and how it ended.

    Args:
        passed: None where the rule was not checked; `reason` then says why not.
        got: what was measured, in the unit that the rule's name implies.
        allowed: the most (or the value) that the rule allows.
        reason: what a reader needs beside the numbers; for a failed check, what is wrong and where.
        about: which of several tries of the rule it tells of.
    """

    name: str
    passed: bool | None
    got: float | str | None = None
    allowed: float | str | None = None
    reason: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        # Some of the words are a candidate's own: they begin no line of their own and steer no terminal.
        object.__setattr__(self, "reason", one_line(self.reason))

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-able."""
        return dataclasses.asdict(self)


def one_line(text: str) -> str:
    """The text with a question mark for every character that prints nothing of its own, as ends of lines."""
    return "".join(character if character.isprintable() else "?" for character in text)


@dataclass(frozen=True)
class Verdict:
    """The checks of one candidate on one problem or model.

    Args:
        operators: PyTorch's own transposed convolutions that the candidate was seen to call, by name. No fault.
    """

    checks: tuple[Check, ...]
    operators: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True when no check failed and at least one was made."""
        outcomes = [check.passed for check in self.checks]
        return True in outcomes and False not in outcomes

    @property
    def reasons(self) -> tuple[str, ...]:
        """One line for every check that failed, the first failure first."""
        return tuple(f"{check.name}: {check.reason}" for check in self.checks if check.passed is False)

    @property
    def first_failure(self) -> Check | None:
        """The first check that failed."""
        return next((check for check in self.checks if check.passed is False), None)

    @property
    def inference_only(self) -> bool:
        """True for a candidate that lacks gradients which the model has. No fault, unless they were asked for."""
        return any(check.got == INFERENCE_ONLY for check in self.checks)

    @property
    def default_stream_only(self) -> bool:
        """True for a candidate that does not wait for its inputs on another stream. A fault at the strict level."""
        return any(check.got == DEFAULT_STREAM_ONLY for check in self.checks)

    def check(self, name: str) -> Check:
        """The check of that name.

        Raises:
            KeyError: when there is none; the message lists the names.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; there are {', '.join(repr(check.name) for check in self.checks)}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: `equal`, `reasons`, every check, `operators`, `inference_only` and `default_stream_only`."""
        checks = [check.to_dict() for check in self.checks]
        found = {"equal": self.equal, "reasons": list(self.reasons), "checks": checks}
        about = {"inference_only": self.inference_only, "default_stream_only": self.default_stream_only}
        return {**found, "operators": list(self.operators), **about}


@dataclass(frozen=True)
class Series:
    """Repeated times of one call in milliseconds: the median and the 20th and 80th percentile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Times of a candidate and of PyTorch (the reference) on the same inputs.

    Args:
        candidate: device time of one call with a cold L2 cache.
        reference: the same of PyTorch with its default settings.
        reference_source: which run `reference` is from, and why.
        floor_ms: roofline bound in milliseconds, None where it is not known.
        host_us: host microseconds of one call, by side.
        alternatives: medians in milliseconds of PyTorch under other settings, by setting.
        settings: what was in force on both sides (flags, versions, device).
        checks: cross-checks of the measurement itself.
    """

    candidate: Series
    reference: Series
    reference_source: str
    floor_ms: float | None = None
    host_us: Mapping[str, float] = field(default_factory=dict)
    alternatives: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times faster than PyTorch's default the candidate is."""
        return self.reference.median / self.candidate.median

    @property
    def best_alternative(self) -> str:
        """The setting under which PyTorch was fastest, its default among them."""
        times = {"default": self.reference.median, **self.alternatives}
        return min(times, key=times.__getitem__)

    def to_dict(self) -> dict[str, Any]:
        """All fields, the speed-up and the best setting of PyTorch, JSON-able."""
        return {**dataclasses.asdict(self), "speedup": self.speedup, "best_alternative": self.best_alternative}
