"""Results that hang on rounding: which of two almost equal numbers is the larger, on which side of a step one lies.

An index of a maximum, a mask, a number of points: `Model` itself gives another one as soon as its operands move by what
rounding moves them. Where a candidate's result is one that `Model` gives so, it is right.
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

#: Operands are moved by so many times what they are rounded by: of what a candidate's own rounding may tip over, hardly
#: anything stays as it is in all of so many draws.
SCALE, _DRAWS = 4.0, 12
#: Where more than this share of an output is apart, it is looked at in so many draws alone.
_FEW, _FIRST_DRAWS = 0.05, 3
#: Larger results are not run again and again.
_MOST_BYTES = 128 * 2**20
_HANGS = "not checked: it hangs on rounding, Model's own changes as its operands move by that"

#: The outputs of `Model` with operands that are moved as the draw of that number does; None where it cannot run so.
Moved = Callable[[int], Any]


class NearTies:
    """Of one call of `Model`.

    Args:
        moved: runs it once more; asked only where something is apart.
    """

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._runs: list[Any] = []
        self._too_large = False

    def of(self, part: str) -> NearTies:
        """The same of a part of the results."""

        def moved(number: int) -> Any:
            found = self._run(number)
            return None if found is None else found[part]

        return NearTies(moved)

    def settled(
        self, path: str, got: Tensor, expected: Tensor, others: Sequence[Tensor], allowed: Tensor, first: int
    ) -> Tensor:
        """Some rows of an output, with the expected number in the place of each that is a tie.

        Args:
            path: of the output.
            got, expected, others: the candidate's rows, the true ones, and further ones of `Model`, in float64.
            allowed: how far from the true ones they may be anyway; 0 for what are no floating-point numbers.
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
        """What each of the draws gives for some elements of these rows, as far as it gives them."""
        for number in range(draws):
            run = self._run(number)
            found = None if run is None else dict(tensors(run)).get(path)
            if found is not None:
                found = torch.view_as_real(found) if found.is_complex() else found
                rows = found[first : first + len(got)] if found.dim() else found
                if rows.shape == got.shape:
                    yield rows.to(got.device, torch.float64)[apart]

    def form(self, form: Check, expected: Any) -> Check:
        """A check of the form of what was returned; not made where `Model`'s own form hangs on rounding."""
        if form.passed:
            return form
        for number in range(_DRAWS):
            run = self._run(number)
            if run is None:
                break
            if not same_outputs(run, expected, dtypes=False).passed:
                return replace(form, passed=None, reason=f"{_HANGS}; {form.reason}")
        return form

    def _run(self, number: int) -> Any:
        if number == len(self._runs):
            self._runs.append(None if self._too_large else self._moved(number))
            if tensor_bytes(self._runs[-1]) > _MOST_BYTES:
                self._runs[-1], self._too_large = None, True
        return self._runs[number]


def hangs_on_rounding(check: Check) -> bool:
    """Whether a check was not made for that."""
    return check.passed is None and check.reason.startswith(_HANGS)
