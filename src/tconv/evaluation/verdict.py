"""The findings of an evaluation as plain data: checks, the verdict that they add up to, and times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

#: How much of a candidate is checked; see `files.levels`. Nothing in a candidate's text chooses its level.
Level = Literal["default", "strict"]
#: The name of the check of gradients, and its `got` for a candidate that lacks some.
GRADIENTS, INFERENCE_ONLY = "gradients", "inference only"
#: The `got` of the check of streams for a candidate that launches on CUDA's default stream.
DEFAULT_STREAM_ONLY = "default stream only"


@dataclass(frozen=True)
class Check:
    """One rule and how it ended.

    Args:
        passed: None where the rule was not checked; `reason` then says why not.
        got: the measured value, in the unit that the rule's name implies.
        allowed: the largest value, or the only one, that the rule allows.
        reason: words beside the numbers; for a failed check, what is wrong and where.
        about: names this try, where the rule is tried several times.
    """

    name: str
    passed: bool | None
    got: float | str | None = None
    allowed: float | str | None = None
    reason: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        # Some words come from the candidate: they must not begin a line or control a terminal.
        object.__setattr__(self, "reason", one_line(self.reason))

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-able."""
        return dataclasses.asdict(self)


def one_line(text: str) -> str:
    """The text with a question mark for every character that is not printable, such as line ends."""
    return "".join(character if character.isprintable() else "?" for character in text)


@dataclass(frozen=True)
class Verdict:
    """The checks of one candidate on one problem or model.

    Args:
        operators: names of PyTorch's transposed convolutions that the candidate called. To call them is no fault.
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
        """True for a candidate that lacks gradients of the model. It is a fault only where training was asked for."""
        return any(check.got == INFERENCE_ONLY for check in self.checks)

    @property
    def default_stream_only(self) -> bool:
        """True for a candidate that launches on the default stream alone. It is a fault at the strict level only."""
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


#: Ratios this close to one are the noise of a measurement.
NOISE = 0.02
#: A time as called is clearly longer by more than this share and this many milliseconds: it includes the host's work.
_CLEAR_SHARE, _CLEAR_MS = 0.05, 0.005


def clearly_longer(time: float, other: float) -> bool:
    """Whether a time in milliseconds is longer than another one by more than 5 % and by more than 5 µs."""
    return time - other > max(_CLEAR_SHARE * other, _CLEAR_MS)


@dataclass(frozen=True)
class Sides:
    """Times of a candidate and of PyTorch (the reference), called alike on the same inputs.

    Args:
        reference: PyTorch with its default settings.
        alternatives: PyTorch in other ways, by name, such as "torch.compile".
        compiled: the candidate under `torch.compile`; None where that was not asked for, or does not work.
    """

    candidate: Series
    reference: Series
    alternatives: Mapping[str, Series] = field(default_factory=dict, kw_only=True)
    compiled: Series | None = field(default=None, kw_only=True)

    @property
    def speedup(self) -> float:
        """How many times faster than PyTorch's default the candidate is."""
        return self.reference.median / self.candidate.median

    @property
    def best_alternative(self) -> str:
        """The name of PyTorch's fastest way; its default is one of them."""
        times = {"default": self.reference, **self.alternatives}
        return min(times, key=lambda name: times[name].median)

    @property
    def over_best_other(self) -> float | None:
        """How many times faster the candidate is than the fastest of `alternatives`; None if there are none."""
        others = [series.median for series in self.alternatives.values()]
        return min(others) / self.candidate.median if others else None

    @property
    def slower(self) -> bool:
        """Whether PyTorch's default is faster, beyond noise."""
        return self.speedup < 1 - NOISE

    @property
    def best_compiled(self) -> bool:
        """Whether the compiled candidate is clearly faster than the plain candidate and than every way of PyTorch."""
        others = [self.candidate, self.reference, *self.alternatives.values()]
        compiled = self.compiled
        return compiled is not None and all(clearly_longer(each.median, compiled.median) for each in others)

    def to_dict(self) -> dict[str, Any]:
        """All fields and the properties above, JSON-able."""
        names = ("speedup", "best_alternative", "over_best_other", "slower", "best_compiled")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class AsCalled(Sides):
    """Times of a call as a program makes it: as constructed, with gradients enabled, the host's work included.

    Args:
        calls: the number of timed calls of each side.
    """

    calls: int = field(kw_only=True)

    @property
    def slower(self) -> bool:
        """Whether PyTorch's default is clearly faster; hosts are less steady than devices."""
        return clearly_longer(self.candidate.median, self.reference.median)


@dataclass(frozen=True)
class Timing(Sides):
    """Device times of inference with a cold L2 cache, and other findings of the timing.

    Args:
        reference_source: the run that `reference` comes from, and why.
        floor_ms: roofline bound in milliseconds; None where it is not known.
        host_us: host microseconds of one call, by side.
        settings: flags, versions and device of both sides.
        checks: cross-checks of the measurement itself.
        as_called: the times as called; None where they could not be taken, and `notes` says why.
        notes: one clause for each time that was not taken, or not as usual.
    """

    reference_source: str
    floor_ms: float | None = None
    host_us: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    as_called: AsCalled | None = field(default=None, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def without_compiled(self, reason: str) -> Timing:
        """The same times without `compiled`, for a candidate that is wrong under `torch.compile`."""
        as_called = None if self.as_called is None else replace(self.as_called, compiled=None)
        note = f"ModelNew under torch.compile was not timed: {reason}"
        return replace(self, compiled=None, as_called=as_called, notes=(*self.notes, note))

    def to_dict(self) -> dict[str, Any]:
        """See `Sides.to_dict`."""
        return {**super().to_dict(), "as_called": None if self.as_called is None else self.as_called.to_dict()}
