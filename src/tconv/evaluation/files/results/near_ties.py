"""Results that depend on rounding: the larger of two almost equal numbers, or the side of a step.

Examples are the index of a maximum, a mask, or a number of points. `Model` itself gives another one if operands move by
about a rounding. A candidate's result is right if one of these runs of `Model` gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tconv.evaluation.files.results.output_rules import same_outputs
from tconv.evaluation.verdict import Check
from tconv.sandbox.exchange import tensor_bytes, tensors

#: Operands are moved by this many times their rounding, in this many draws. Hardly any result that a candidate's
#: rounding can change stays the same in all of these draws.
SCALE, _DRAWS = 4.0, 12
#: If more than this share of an output differs, only this many draws are made.
_FEW, _FIRST_DRAWS = 0.05, 3
#: Models with larger results do not run again.
_MOST_BYTES = 128 * 2**20
_ROUNDING = "not checked: rounding decides it: Model's own result changes when its operands move by a rounding"

#: Gives `Model`'s outputs with operands moved by the draw of this number; None if it cannot run like that.
Moved = Callable[[int], Any]


class NearTies:
    """The near ties of one call of `Model`.

    Args:
        moved: runs `Model` once more. It is called only if some result differs.
    """

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._runs: list[Any] = []
        self._too_large = False

    def of(self, part: str) -> NearTies:
        """The near ties of a part of the results."""

        def moved(number: int) -> Any:
            found = self._run(number)
            return None if found is None else found[part]

        return NearTies(moved)

    def settled(
        self, path: str, got: Tensor, expected: Tensor, others: Sequence[Tensor], allowed: Tensor, first: int
    ) -> Tensor:
        """The candidate's rows of an output, with the expected number at each near tie.

        Args:
            path: the path of the output.
            got, expected, others: rows of the candidate, true rows, and further rows of `Model`, in float64.
            allowed: the distance from the true rows that is no tie; 0 for types without fractions.
            first: the number of the first row.
        """
        apart = (got - expected).abs() > allowed
        count = int(apart.sum())
        if not count:
            return got
        ours, theirs = got[apart], expected[apart]
        room = torch.broadcast_to(allowed, got.shape)[apart] / 2
        low, high, tied = theirs.clone(), theirs.clone(), torch.zeros_like(ours, dtype=torch.bool)
        draws = _DRAWS if count <= max(1.0, _FEW * got.numel()) else _FIRST_DRAWS
        for seen in chain((other[apart] for other in others), self._seen(path, got, apart, first, draws)):
            low, high = torch.minimum(low, seen), torch.maximum(high, seen)
            tied |= torch.where(room > 0, (ours >= low - room) & (ours <= high + room), ours == seen)
            if bool(tied.all()):
                break
        settled = got.clone()
        settled[apart] = torch.where(tied, theirs, ours)
        return settled

    def _seen(self, path: str, got: Tensor, apart: Tensor, first: int, draws: int) -> Iterator[Tensor]:
        """The values of some elements of these rows in each draw that has them."""
        for number in range(draws):
            run = self._run(number)
            found = None if run is None else dict(tensors(run)).get(path)
            if found is not None:
                found = torch.view_as_real(found) if found.is_complex() else found
                rows = found[first : first + len(got)] if found.dim() else found
                if rows.shape == got.shape:
                    yield rows.to(got.device, torch.float64)[apart]

    def form(self, form: Check, expected: Any) -> Check:
        """The check of the form of outputs. It counts as not made if `Model`'s own form depends on rounding."""
        if form.passed:
            return form
        for number in range(_DRAWS):
            run = self._run(number)
            if run is None:
                break
            if not same_outputs(run, expected, dtypes=False).passed:
                return replace(form, passed=None, reason=f"{_ROUNDING}; {form.reason}")
        return form

    def _run(self, number: int) -> Any:
        if number == len(self._runs):
            self._runs.append(None if self._too_large else self._moved(number))
            if tensor_bytes(self._runs[-1]) > _MOST_BYTES:
                self._runs[-1], self._too_large = None, True
        return self._runs[number]


def hangs_on_rounding(check: Check) -> bool:
    """Whether a check was not made because the result depends on rounding."""
    return check.passed is None and check.reason.startswith(_ROUNDING)
