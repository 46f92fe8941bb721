"""The judgement of a candidate file as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tconv.evaluation.verdict import Level, Timing, Verdict


@dataclass(frozen=True)
class Variation:
    """The verdict with changed constructor arguments or, if `changes` is empty, with inputs of another size."""

    changes: dict[str, Any]
    verdict: Verdict

    @property
    def tested(self) -> bool:
        """False if the result is equal but PyTorch's operator gave it: that does not test the candidate's kernels."""
        return not (self.verdict.equal and self.verdict.operators)

    @property
    def name(self) -> str:
        """The changed arguments as in a call: ``stride=2, bias=True``."""
        return ", ".join(f"{name}={value}" for name, value in self.changes.items()) or "inputs of another size"


@dataclass(frozen=True)
class Report:
    """The judgement of one candidate file.

    Args:
        device: the device that it ran on, "cuda" or "cpu".
        precision: the arithmetic asked for: "match", "tf32" or "fp32".
        verdict: the verdict with the model file's own arguments.
        variations: the verdicts with other arguments, where they were asked for.
        not_checked: one line for each thing that this machine could not check.
        timing: None where it was not asked for, or the candidate is not equal.
        level: the level of the checks.
    """

    model: str
    candidate: str
    device: str
    precision: str
    verdict: Verdict
    variations: tuple[Variation, ...] = ()
    not_checked: tuple[str, ...] = ()
    timing: Timing | None = None
    level: Level = "default"

    @property
    def equal(self) -> bool:
        """True if the candidate is equal with the model file's arguments and with all others that were tried."""
        return self.verdict.equal and all(variation.verdict.equal for variation in self.variations)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One line for every failed check. Checks with other arguments name the arguments."""
        others = (f"with {v.name}: {reason}" for v in self.variations for reason in v.verdict.reasons)
        return (*self.verdict.reasons, *others)

    def to_dict(self) -> dict[str, Any]:
        """All fields, `equal` and `reasons`, JSON-able."""
        return {
            "model": self.model,
            "candidate": self.candidate,
            "device": self.device,
            "precision": self.precision,
            "level": self.level,
            "equal": self.equal,
            "reasons": list(self.reasons),
            "verdict": self.verdict.to_dict(),
            "variations": [
                {"changes": v.changes, "tested": v.tested, "verdict": v.verdict.to_dict()} for v in self.variations
            ],
            "not_checked": list(self.not_checked),
            "timing": None if self.timing is None else self.timing.to_dict(),
        }
