"""What a written file runs for a layer that it has no kernel for: the plain kernel, on every layer of cases.json.

    PYTHONPATH=src python3 benchmarks/plain.py

Each result is compared with PyTorch's operator in exact arithmetic, and timed beside PyTorch's default. Writes
benchmarks/results/plain.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from layers import floor_ms, problem_of
from results import Results, cases, environment, geometric_mean, save
from torch import Tensor

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import quantile
from tconv.jit.compile import compile_source
from tconv.jit.loader import Launcher, gpu_of, load
from tconv.kernels.source import ANY_LAYER, LAUNCHING, header_directory, unit
from tconv.planner import Kernel, Plan
from tconv.problem import Problem
from tconv.tuning.trials import WRONG, Distance, compilers

_NAME = "tconv_kernel"
_CALLS = 7


@dataclass(frozen=True)
class _Tile:
    """As much of a tile as a launch asks for."""

    threads: int


def compiled(problem: Problem, arch: str) -> bytes:
    """The cubin of the kernel for any layer, compiled for this one."""
    source = unit(Kernel(ANY_LAYER, problem.layer, None), _NAME)
    return compile_source(source, arch, name=_NAME, headers=header_directory()).cubin


def caller(problem: Problem, cubin: bytes, operands: Operands) -> Callable[[], Tensor]:
    """The call of that kernel, its launch computed by its own text."""
    from cuda.core import Device, LaunchConfig, launch
    from numpy import int32

    device = torch.cuda.current_device()
    numbers = torch.zeros(3, dtype=torch.int64, device="cuda")
    tell = load(cubin, LAUNCHING.format(_NAME), 0, device)
    torch.cuda.synchronize()
    sizes = map(int32, (problem.batch, *problem.output_size))
    launch(Device(device).default_stream, LaunchConfig(grid=1, block=1), tell, numbers.data_ptr(), *sizes)
    torch.cuda.synchronize()
    grid, threads, shared_bytes = numbers.tolist()
    plan: Any = Plan(problem, Kernel(ANY_LAYER, problem.layer, _Tile(threads)), grid, shared_bytes)
    launcher = Launcher(load(cubin, _NAME, shared_bytes, device), plan, device)
    x, weight, bias = operands

    def call() -> Tensor:
        y = torch.empty(problem.output_shape, dtype=x.dtype, device=x.device)
        launcher(x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
        return y

    return call


def measure(problem: Problem, cubin: bytes, clock: CudaClock) -> Results:
    """Medians of milliseconds, and whether the result is right."""

    def milliseconds(call: Callable[[], Any]) -> float:
        return round(quantile(clock.device_ms(call, _CALLS), 0.5), 5)

    operands = draw(problem, torch.device("cuda"), seed=0)
    call, theirs = caller(problem, cubin, operands), partial(conv_transpose, *operands, problem)
    torch.backends.cudnn.allow_tf32 = False
    apart = Distance.between(call(), theirs()).pooled
    torch.backends.cudnn.allow_tf32 = True
    return {
        "equal": apart <= WRONG[problem.layer.precision],
        "plain_ms": milliseconds(call),
        "pytorch_ms": milliseconds(theirs),
        "floor_ms": floor_ms(problem),
    }


def main() -> int:
    if not torch.cuda.is_available():
        print("plain.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    arch, clock = gpu_of(torch.cuda.current_device()).arch, CudaClock()
    layers: Results = {}
    with compilers() as pool:
        problems = {name: problem_of(case) for name, case in cases().items()}
        cubins = {name: pool.submit(compiled, problem, arch) for name, problem in problems.items()}
        for name, problem in problems.items():
            found = layers[name] = measure(problem, cubins[name].result(), clock)
            times = f"{found['plain_ms']:9.4f} {found['pytorch_ms']:9.4f}"
            print(f"{name[:48]:48} {times} {'' if found['equal'] else 'NOT EQUAL'}", flush=True)
            torch.cuda.empty_cache()
    save("plain", {"environment": environment(), "layers": layers})
    ratios = [layer["pytorch_ms"] / layer["plain_ms"] for layer in layers.values()]
    print(f"{geometric_mean(ratios):.2f} times PyTorch's default, from {min(ratios):.2f} to {max(ratios):.2f} times")
    return 0 if all(layer["equal"] for layer in layers.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
