"""The comparisons of all outputs of a model."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tconv.evaluation.files.results.near_ties import NearTies
from tconv.evaluation.files.results.output_rules import OutputComparison, Results
from tconv.evaluation.files.sides.inputs import Case, coarser
from tconv.evaluation.verdict import Check
from tconv.sandbox.exchange import tensors

#: Around the name of a buffer that is returned beside outputs.
_BUFFER, _END = "['buffers']['", "']"


class Comparisons:
    """One comparison for each output of a model, by its path.

    Args:
        device: where pieces are compared.
        case: the case, on which the allowed errors depend.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self._case, self._device = case, device
        self._outputs: dict[str, OutputComparison] = {}
        self._in_float64 = True

    def add(self, got: Any, pytorch: Any, exact: Any, rounded: Any, ties: NearTies | None = None) -> None:
        """Add one draw: the candidate's outputs, `Model`'s, and `Model`'s in float64 and on rounded operands, or None.

        Outputs whose shapes differ are left out: a number of points, for example, may depend on rounding.

        Args:
            ties: the near ties of this draw.
        """
        exact, rounded = (value if shapes(value) == shapes(pytorch) else None for value in (exact, rounded))
        self._in_float64 = self._in_float64 and exact is not None
        others = [dict(tensors(value)) for value in (pytorch, exact, rounded)]
        for path, tensor in tensors(got):
            # Counts and masks follow from floats: they may differ by as much as coarser arithmetic makes them differ.
            real = tensor.real if tensor.is_complex() else tensor
            dtype = real.dtype if real.is_floating_point() else torch.float32
            if exact is None:
                dtype = coarser(dtype, self._case.coarsest)
            comparison = self._outputs.setdefault(path, OutputComparison(dtype, self._device))
            settled = None if ties is None else partial(ties.settled, path)
            comparison.add(Results(tensor, others[0][path], others[1].get(path), others[2].get(path)), settled)

    def checks(self, mode: str = "") -> list[Check]:
        """The rules for whole models on every output; with a `mode`, on every buffer, too."""
        checks = []
        for path, comparison in self._outputs.items():
            output = path.removeprefix("['output']") if mode else path
            where = f" of output{output}" if output else ""
            if mode and path.startswith(_BUFFER):
                where = f" of {path.removeprefix(_BUFFER).removesuffix(_END)}"
            where += f", {mode}" if mode else ""
            checks += comparison.checks(where, self._case.traced.products, self._in_float64)
        return checks


def shapes(outputs: Any) -> dict[str, torch.Size]:
    """The shape of each tensor among a model's outputs, by its path."""
    return {path: tensor.shape for path, tensor in tensors(outputs)}
