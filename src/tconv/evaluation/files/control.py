"""The control: a check that fails is repeated with `Model` in the candidate's place. If `Model` fails it, too, the
check does not count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tconv.evaluation.files.results.near_ties import hangs_on_rounding
from tconv.evaluation.files.sides.file_process import CannotJudge
from tconv.evaluation.verdict import Check

#: Beginnings of the names of checks that compare results of the model as it was built.
_RESULTS = ("every element", "close to PyTorch", "own inputs", "pooled error")
_FAILS = "not checked: Model beside its own class fails it"


def excused(checks: Sequence[Check], control: Iterable[Check], each: bool = True) -> list[Check]:
    """The checks. A failed check counts as not made if the control fails it, too.

    Args:
        control: the checks of `Model` in the candidate's place.
        each: compare check by check. Else one failure of the control excuses all failed checks: state that a model
            keeps between calls may show in any of them.
    """
    failed = [check for check in control if check.passed is False]

    def why(check: Check) -> str | None:
        alike = (other for other in failed if not each or (other.name, other.about) == (check.name, check.about))
        return next((other.reason for other in alike), None)

    reasons = [None if check.passed is not False else why(check) for check in checks]
    return [
        check if reason is None else replace(check, passed=None, reason=f"{_FAILS}: {reason}")
        for check, reason in zip(checks, reasons, strict=True)
    ]


def excuses(checks: Sequence[Check]) -> tuple[str, ...]:
    """One clause that names all checks that do not count, as `Model` fails them, too."""
    found = [check for check in checks if check.passed is None and check.reason.startswith(_FAILS)]
    names = dict.fromkeys(f"{check.name} ({check.about})" if check.about else check.name for check in found)
    return (f"what Model beside its own class fails: {', '.join(names)}",) if names else ()


def require_results(checks: Sequence[Check]) -> None:
    """Make sure that at least one result was compared with `Model`'s.

    Raises:
        CannotJudge: none was, since `Model` fails the checks itself.
    """
    not_made = (check for check in checks if check.passed is None)
    excuses = [each.reason for each in not_made if each.reason.startswith(_FAILS) or hangs_on_rounding(each)]
    if excuses and not any(check.passed and check.name.startswith(_RESULTS) for check in checks):
        raise CannotJudge(f"nothing can be compared with what Model gives; {excuses[0].removeprefix('not checked: ')}")
