"""What was measured of a written file, as comments in its head."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tconv.evaluation.verdict import Sides, one_line
from tconv.rewriter.check import LayerCheck
from tconv.rewriter.outcome import Outcome


def with_findings(text: str, outcome: Outcome) -> str:
    """A generated file that says how fast and how equal it was found, and where; as it was if nothing was timed.

    Comments alone are added, so that what was judged is what is written.
    """
    rows = list(_rows(outcome))
    if not rows:
        return text
    width = max(len(name) for name, _ in rows)
    shared = ", which other programs used," if outcome.shared_gpu else ""
    where = f"one {outcome.gpu.name}{shared}"
    lines = [f"# Found on {where} by PyTorch {torch.__version__}, in milliseconds of a call:", "#"]
    lines += [f"#   {name:{width}}  {words}" for name, words in rows]
    head, blank, rest = text.partition("\n\n")
    return "\n".join([head, "#", *lines]) + blank + rest


def _rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    for check in outcome.replaced:
        if check.time is not None:
            # Names are the model's own: none of them begins a line of the file.
            yield one_line(check.layer.name), _times(check.time.ours, check.time.pytorch, check.time.floor)
            yield from _errors(check)
    if (timing := outcome.timing) is not None:
        yield "the whole file", _times_of(timing, timing.floor_ms)
        if timing.as_called is not None:
            yield "as called", _times_of(timing.as_called)


def _times_of(sides: Sides, floor: float | None = None) -> str:
    best = min((each.median for each in sides.alternatives.values()), default=None)
    return _times(sides.candidate.median, sides.reference.median, floor, best)


def _times(ours: float, pytorch: float, floor: float | None, best_other: float | None = None) -> str:
    others = {"best other": best_other, "floor": floor}
    words = "".join(f", {name} {value:.3g}" for name, value in others.items() if value is not None)
    return f"{ours:.3g}, PyTorch {pytorch:.3g}{words}: {pytorch / ours:.2f}x"


def _errors(check: LayerCheck) -> Iterator[tuple[str, str]]:
    if check.verdict is not None:
        pooled = check.verdict.check("pooled error")
        yield "", f"error {pooled.got:.2g}, PyTorch's {check.pytorch_error:.2g}, allowed {pooled.allowed:.2g}"
