"""What the search of `tconv optimize` gains: the fastest of the leading kernels beside the first, on cases.json.

    PYTHONPATH=src python3 benchmarks/search.py [LAYER ...]

Writes benchmarks/results/search.json, unless layers are named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from layers import problem_of
from results import Results, cases, environment, geometric_mean, save

from tconv.evaluation.precision import Wanted
from tconv.evaluation.stopwatch import CudaClock
from tconv.jit.loader import gpu_of
from tconv.precision import of_kind
from tconv.problem import Precision, Problem
from tconv.rewriter.search import FIRST
from tconv.sandbox.trace import Trace, TracedLayer
from tconv.tuning.compilers import compilers
from tconv.tuning.jobs import jobs
from tconv.tuning.measure import Answer, Tuner


def as_kinds(problem: Problem, wanted: Wanted) -> Precision:
    """The precision that PyTorch runs on layers of that kind."""
    return of_kind(problem) if problem.layer.dtype == "float32" else problem.layer.precision


def main(named: Sequence[str]) -> int:
    if not torch.cuda.is_available():
        print("search.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    chosen = {name: problem_of(case) for name, case in cases().items() if not named or name in named}
    layers: Results = {}
    with compilers() as pool:
        gpu = gpu_of(torch.cuda.current_device())
        trace = Trace(tuple(TracedLayer(name, problem) for name, problem in chosen.items()))
        # Of what the library and a file ask, what the file asks.
        found = jobs(trace, gpu, "match", as_kinds, FIRST)
        asked = {(job.name, job.questions[-1]) for job in found}
        for answer in Tuner(gpu, CudaClock(), pool, lambda winners: None).run(found):
            if not isinstance(answer, Answer):
                print(f"{answer.job.name}: {answer.kernel.family}: {answer.reason}", flush=True)
            elif (answer.job.name, answer.question) in asked and answer.tuned is not None:
                first, best = answer.first_ms or answer.tuned.milliseconds, answer.tuned.milliseconds
                layers[answer.job.name] = {"first_ms": first, "best_ms": best, "tried": answer.tuned.tried}
                print(f"{answer.job.name[:48]:48} {first:9.4f} {best:9.4f} {first / best:6.2f}", flush=True)
    if not named:
        save("search", {"environment": environment(), "layers": layers})
    gains = [layer["first_ms"] / layer["best_ms"] for layer in layers.values()]
    print(
        f"{len(gains)} layers: {geometric_mean(gains):.3f} times as fast by the search, at most {max(gains):.2f} times"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
