"""A program on tensors, operation by operation as PyTorch computes them, in the type in which kernels compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tconv.errors import InvalidProgram
from tconv.pointwise.program import SUM, Kind, Operand, Program


def evaluate(program: Program, y: Tensor, operands: Sequence[Tensor], *, flushes: bool = False) -> Tensor:
    """What the program gives of a sum, in its dtype.

    Of 16 bits as each of PyTorch's functions computes inside, and as kernels do: in float32, rounded at the end. A
    function may be written in steps whose values 16 bits do not hold.

    Args:
        y, operands, flushes: as `values` takes them.

    Raises:
        InvalidProgram: as `values`.
    """
    wide = y.float() if y.dtype in (torch.float16, torch.bfloat16) else y
    result = values(program, wide, operands, flushes=flushes)[-1].to(y.dtype)
    return result if result.shape == y.shape else result.expand(y.shape).contiguous()


def values(program: Program, y: Tensor, operands: Sequence[Tensor], *, flushes: bool = False) -> list[Tensor]:
    """Every value on the way to that, the result last; comparisons are left out. They broadcast to y's shape.

    Args:
        y: (N, C, ...).
        operands: in the shapes that `shape_of` gives; they are cast to y's dtype.
        flushes: subnormal results of operations become 0, as of PTX's instructions with `.ftz`.

    Raises:
        InvalidProgram: there are more or fewer operands than the program reads.
    """
    if len(operands) != len(program.operands):
        raise InvalidProgram(f"got {len(operands)} operands; {program} reads {len(program.operands)}")
    found: list[Tensor] = []
    for node in program.nodes:
        arguments = [found[argument] for argument in node.arguments]
        if isinstance(node.what, float):
            found.append(torch.tensor(node.what, dtype=y.dtype, device=y.device))
        elif isinstance(node.what, Operand):
            found.append(operands[node.what.number].to(y.dtype))
        elif node.what == SUM:
            found.append(y)
        else:
            operation = node.operation
            assert operation is not None
            function = getattr(torch, operation.torch)
            casts = isinstance(function, torch.dtype)
            value = arguments[0].to(function).to(y.dtype) if casts else function(*arguments)
            found.append(_flushed(value) if flushes and value.is_floating_point() else value)
    return [value for value in found if value.dtype == y.dtype]


def _flushed(value: Tensor) -> Tensor:
    return torch.where(value.abs() < torch.finfo(value.dtype).tiny, 0.0, value)


def shape_of(kind: Kind, output_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of an operand that goes with an output (N, C, ...): it broadcasts to that."""
    batch, channels, *sizes = output_shape
    ones = (1,) * len(sizes)
    return {
        "output": tuple(output_shape),
        "sample": (batch, channels, *ones),
        "channel": (1, channels, *ones),
        "scalar": (1, 1, *ones),
    }[kind]


def kind_of(shape: Sequence[int], output_shape: Sequence[int], spatial_dims: int) -> Kind | None:
    """The kind of a tensor that broadcasts to an output (N, C, ...), or (C, ...) without a batch; None if it is none.

    Sizes may be symbols: they are as they are known to be.
    """
    missing = len(output_shape) - len(shape)
    if missing < 0:
        return None
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # a second's worth of imports

    sizes: list[int] = [1] * missing + list(shape)
    equal = [statically_known_true(a == b) for a, b in zip(sizes, output_shape, strict=True)]
    if all(equal):
        return "output"
    one = [statically_known_true(size == 1) for size in sizes]
    if all(one):
        return "scalar"
    channel = len(sizes) - spatial_dims - 1
    if not (equal[channel] and all(one[channel + 1 :])):
        return None
    return "channel" if all(one[:channel]) else "sample" if all(equal[:channel]) else None
