"""Layers whose floor is below 20 microseconds: as called, in a CUDA graph, and on channels_last tensors.

    PYTHONPATH=src python3 benchmarks/small.py

For those of benchmarks/cases.json and the small ones of benchmarks/kinds.py. In a graph, too, weights are prepared anew
in each replay. Writes benchmarks/results/small.json. A run goes on where an earlier one stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kinds import kinds
from layers import compile_ahead, functions, laid_out, permitted_floor_ms, problem_of
from results import Results, cases
from runs import measure_missing, parser
from torch import Tensor

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import Call, interleave

_FLOOR_MS = 0.02
_ROUNDS, _EACH = 8, 8
#: Largest error beside the largest result: of factors rounded to 11 bits, and of results rounded to 8.
_ALLOWED = 1e-2
_LAST = "channels_last"


def listed() -> dict[str, Results]:
    """The layers by name."""
    named = {f"small: {name}": case for name, case in kinds()["small"].items()}
    return named | {name: case for name, case in cases().items() if case["floor_ms"] < _FLOOR_MS}


def in_a_graph(call: Call) -> Call:
    """What replays the call."""
    call()  # whatever is compiled or allocated once
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    return lambda: (graph.replay(), kept)


def measure(case: Results) -> Results:
    """Medians of milliseconds, by turns."""
    problem = problem_of(case)
    ours, theirs = functions(problem)
    found: Results = {}
    operands = draw(problem, torch.device("cuda"), seed=0)
    exact = conv_transpose(*(None if t is None else t.double() for t in operands), problem)
    found["contiguous"] = of_format(ours, theirs, operands, exact, in_a_graph)
    if problem.layer.spatial_dims > 1:
        found[_LAST] = of_format(ours, theirs, laid_out(operands, _LAST), exact)
    wrong = [f"{name}: {each['error']:.2g} off" for name, each in found.items() if not each["error"] <= _ALLOWED]
    return {"equal": not wrong, "reasons": wrong, "floor_ms": permitted_floor_ms(problem), **found}


def of_format(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    operands: Operands,
    exact: Tensor,
    captured: Callable[[Call], Call] | None = None,
) -> Results:
    """Of both sides in one memory format."""
    call = partial(ours, *operands)
    error = float((call().double() - exact).abs().max() / exact.abs().max())
    calls: dict[str, Any] = {"tconv": call, "pytorch": partial(theirs, *operands)}
    if captured is not None:
        calls["graph"] = captured(call)
    measured = interleave(CudaClock(), calls, rounds=_ROUNDS, each=_EACH)
    times = {f"{name}_ms": round(side.series.median, 6) for name, side in measured.items()}
    return {"error": error, **times}


def main() -> int:
    options = parser(__doc__).parse_args()
    layers = {name: case for name, case in listed().items() if options.only in name}
    if torch.cuda.is_available():
        compile_ahead(layers.values(), None)
        compile_ahead([case for case in layers.values() if len(case["kernel"]) > 1], _LAST)
    return measure_missing("small", {name: partial(measure, case) for name, case in layers.items()}, options)


if __name__ == "__main__":
    sys.exit(main())
