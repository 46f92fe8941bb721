"""What the program behind a layer costs: in the layer's kernel, and in a pass of its own behind another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from tconv.planner.gpu import Gpu
from tconv.pointwise.program import SUM, Operand, parse
from tconv.problem import Problem

#: Instructions of an operation, where it is not one; signs are part of others. Those of the special function unit, as
#: the exponential and the inverse, take as long as some.
_INSTRUCTIONS: Mapping[str, float] = MappingProxyType(
    {
        **{"neg": 0, "abs": 0, "div": 5, "pow": 20},
        **{"exp": 3.5, "expm1": 10, "log": 5, "log1p": 12, "sqrt": 5, "rsqrt": 3.5, "reciprocal": 3.5},
        **{"sin": 16, "cos": 16, "erf": 17, "tanh": 10, "sigmoid": 8},
    }
)
#: What a multiprocessor computes: instructions of so many outputs at once, each in so many cycles of so many a second.
#: They add to a kernel's time, since nothing else is computed while outputs are stored. What is read for each output
#: takes so many times as long as in a copy. Fitted to three programs behind nine layers on one NVIDIA H200: with the
#: time of the layer alone, they say the kernel's within 14 %, but for one of the 27.
_LANES, _CYCLES, _CLOCK = 128, 0.75, 1.7e9
_READING = 1.6
#: Seconds of a pass beside its bytes.
_PASS = 2.5e-6


def fused_seconds(problem: Problem, gpu: Gpu, covered: float = 1.0) -> float:
    """What the program of a layer adds to its kernel; 0 without one.

    Args:
        covered: how many outputs, or their places, it computes for each that there is. May be of many tiles at once.
    """
    if not problem.layer.epilogue:
        return 0.0
    rate = gpu.multiprocessors * _LANES * _CLOCK / _CYCLES
    computed = math.prod(problem.output_shape) * _instructions(problem.layer.epilogue) / rate
    return covered * computed + _READING * _read(problem) / gpu.copy_bandwidth


def pass_seconds(problem: Problem, gpu: Gpu) -> float:
    """What the program takes by itself, all of it in one pass over the result; 0 without one."""
    if not problem.layer.epilogue:
        return 0.0
    result = math.prod(problem.output_shape) * problem.layer.item_bytes
    return _PASS + (2 * result + _read(problem)) / gpu.copy_bandwidth


def _read(problem: Problem) -> int:
    """Bytes of the tensors of the result's shape that it reads."""
    whole = sum(operand.kind == "output" for operand in parse(problem.layer.epilogue).operands)
    return whole * math.prod(problem.output_shape) * problem.layer.item_bytes


@lru_cache(maxsize=256)
def _instructions(text: str) -> float:
    """Instructions for each output; what depends on the channel alone is computed once for a channel."""
    found, of_output = 0.0, list[bool]()
    for node in parse(text).nodes:
        own = node.what == SUM or (isinstance(node.what, Operand) and node.what.kind in ("output", "sample"))
        own = own or any(of_output[argument] for argument in node.arguments)
        of_output.append(own)
        if own and node.operation is not None:
            found += _INSTRUCTIONS.get(node.operation.name, 1)
    return found
