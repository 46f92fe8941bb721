"""What a written file runs for a layer that it has no kernel for: `plain`, or on tensor cores `gemm`, on cases.json.

    PYTHONPATH=src python3 benchmarks/plain.py [LAYER ...]

Each result is compared with PyTorch's operator in exact arithmetic, and timed beside PyTorch's default, in float32 and
in float16. Writes benchmarks/results/plain.json, unless layers are named.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from layers import floor_ms, problem_of
from results import Results, cases, environment, geometric_mean, save
from runs import milliseconds

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import conv_transpose
from tconv.evaluation.stopwatch import CudaClock
from tconv.jit.compile import Compiled, compile_source
from tconv.jit.loader import gpu_of
from tconv.kernels.source import ANY_DENSE_LAYER, ANY_LAYER, header_directory, is_dense, launching, unit
from tconv.planner import Gpu, Kernel
from tconv.problem import Precision, Problem
from tconv.rewriter.check import launch_on_gpu
from tconv.sandbox.cut import Cut
from tconv.tuning.compilers import compilers
from tconv.tuning.trials import WRONG, Distance

_NAME = "tconv_kernel"
#: Of each type, the kernels and the precision that each has there.
_PRECISIONS: dict[str, dict[str, Precision]] = {
    "float32": {ANY_LAYER: "fp32", ANY_DENSE_LAYER: "tf32"},
    "float16": {ANY_LAYER: "fp16", ANY_DENSE_LAYER: "fp16"},
}


def texts(problem: Problem, family: str) -> list[str]:
    """What is compiled for it, with offsets of 32 and of 64 bits."""
    return [unit(Kernel(family, problem.layer, None, wide), _NAME) + launching(family, _NAME) for wide in (False, True)]


def compiled(source: str, arch: str) -> Compiled:
    return compile_source(source, arch, name=_NAME, headers=header_directory())


def measured(problem: Problem, dtype: str) -> dict[str, Problem]:
    """The problem as each kernel has it in that type."""
    families = (ANY_LAYER, ANY_DENSE_LAYER) if is_dense(problem.layer) else (ANY_LAYER,)
    precisions = _PRECISIONS[dtype]
    return {family: replace(problem, layer=replace(problem.layer, precision=precisions[family])) for family in families}


def measure(
    problems: Mapping[str, Problem], made: Callable[[str, str, str], Compiled], gpu: Gpu, clock: CudaClock
) -> Results:
    """Medians of milliseconds, and whether the results are right."""
    problem = problems[ANY_LAYER]
    operands = draw(problem, torch.device("cuda"), seed=0)
    pytorch = partial(conv_transpose, *operands, problem)
    found: Results = {"pytorch_ms": milliseconds(pytorch, clock), "floor_ms": floor_ms(problem)}
    torch.backends.cudnn.allow_tf32 = False
    exact = pytorch()
    torch.backends.cudnn.allow_tf32 = True
    for family, of_family in problems.items():
        call = partial(launch_on_gpu(Cut(*texts(of_family, family), _NAME), of_family, made, gpu), *operands)
        equal = Distance.between(call(), exact).pooled <= WRONG[of_family.layer.precision]
        found[family] = {"equal": equal, "ms": milliseconds(call, clock)}
    return found


def main(named: Sequence[str]) -> int:
    if not torch.cuda.is_available():
        print("plain.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    gpu, clock = gpu_of(torch.cuda.current_device()), CudaClock()
    problems = {name: problem_of(case) for name, case in cases().items() if not named or name in named}
    layers: Results = {}
    with compilers() as pool:
        begun = {
            texts(of_family, family)[0]: None
            for problem in problems.values()
            for dtype in _PRECISIONS
            for family, of_family in measured(problem, dtype).items()
        }
        begun = {text: pool.submit(compiled, text, gpu.arch) for text in begun}

        def made(source: str, name: str, arch: str) -> Compiled:
            return begun[source].result() if source in begun else compiled(source, arch)

        for name, problem in problems.items():
            for dtype in _PRECISIONS:
                started = time.perf_counter()
                found = measure(measured(problem, dtype), made, gpu, clock)
                layers.setdefault(name, {})[dtype] = found
                words = " ".join(f"{family} {found[family]['ms']:.4f}" for family in measured(problem, dtype))
                wrong = "" if all(found[family]["equal"] for family in measured(problem, dtype)) else " NOT EQUAL"
                seconds = f"{time.perf_counter() - started:.1f} s"
                print(f"{name[:40]:40} {dtype} {found['pytorch_ms']:.4f} {words}{wrong} ({seconds})", flush=True)
    if not named:
        save("plain", {"environment": environment(), "layers": layers})
    for dtype in _PRECISIONS:
        for family in (ANY_LAYER, ANY_DENSE_LAYER):
            of_dtype = [layer[dtype] for layer in layers.values() if family in layer[dtype]]
            ratios = [found["pytorch_ms"] / found[family]["ms"] for found in of_dtype] or [1.0]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{dtype} {family}: {geometric_mean(ratios):.2f} times PyTorch, {spread}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
