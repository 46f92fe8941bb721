"""Results that are written where they belong: into a tensor of the caller's, or into some channels of one.

A U-Net concatenates what a layer gives with a skip connection. With ``out=`` the layer's kernel writes into the
concatenated tensor itself, and the copy of the larger part is saved.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tconv import epilogues, ops, routes
from tconv.epilogues import Epilogue
from tconv.pointwise.program import parse

_log = logging.getLogger("tconv")


class Slice(NamedTuple):
    """Of how many channels a tensor is a slice, and whether they are the fastest axis."""

    channels: int
    last: bool


def slice_of(out: Tensor) -> Slice | None:
    """What a tensor (N, C, ...) is a slice of, its own channels where it is all of that; None where of nothing.

    It is one of a contiguous tensor, or of a channels_last one, along the channels.
    """
    batch, channels, *sizes = out.shape
    strides = out.stride()

    def lies(axis: int, stride: int) -> bool:
        return out.shape[axis] == 1 or strides[axis] == stride

    plane = math.prod(sizes)
    inner = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    if all(lies(axis + 2, step) for axis, step in enumerate(inner)) and lies(1, plane):
        whole = channels if batch == 1 else strides[0] // plane
        return Slice(whole, False) if whole >= channels and lies(0, whole * plane) else None
    pixel = next((strides[axis + 2] // step for axis, step in enumerate(inner) if sizes[axis] > 1), channels)
    places = all(lies(axis + 2, step * pixel) for axis, step in enumerate(inner))
    return Slice(pixel, True) if lies(1, 1) and places and pixel >= channels and lies(0, plane * pixel) else None


def conv_transpose(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *arguments: Any,
    out: Tensor,
    epilogue: Epilogue | None = None,
    epilogue_inputs: Sequence[Tensor] = (),
) -> Tensor:
    """``out.copy_(conv_transposeNd(…))``, without the copy where `out` is a slice of channels that a kernel can write.

    Raises:
        RuntimeError: a gradient is asked for.
        ValueError: `out` has another shape, dtype or device than the result.
    """
    tensors = [t for t in (input, weight, bias, out, *epilogue_inputs) if isinstance(t, Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError(
            f"conv_transpose{dims}d: out= takes no part in gradients, and one of the tensors requires grad; "
            "call it under torch.no_grad(), or without out="
        )
    if not _written(dims, input, weight, bias, arguments, out, epilogue, epilogue_inputs):
        if epilogue is None:
            result = ops.conv_transpose(dims, input, weight, bias, *arguments)
        else:
            result = epilogues.conv_transpose(
                dims, input, weight, bias, *arguments, epilogue=epilogue, epilogue_inputs=epilogue_inputs
            )
        _check(dims, out, result.shape, result.dtype, result.device)
        out.copy_(result)
    return out


def _check(dims: int, out: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    for name, got, expected in (
        ("shape", tuple(out.shape), tuple(shape)),
        ("dtype", out.dtype, dtype),
        ("device", out.device, device),
    ):
        if got != expected:
            raise ValueError(f"conv_transpose{dims}d: out= has the {name} {got}; the result has {expected}")


def _written(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    arguments: tuple[Any, ...],
    out: Tensor,
    epilogue: Epilogue | None,
    epilogue_inputs: Sequence[Tensor],
) -> bool:
    """Whether a kernel wrote the result to its place."""
    reason = epilogues.why_apart(input)
    if reason is None:
        cast = ops.autocast(input, weight, bias)
        batched = input.dim() == dims + 2
        x, y = (cast[0], out) if batched else (cast[0].unsqueeze(0), out.unsqueeze(0))
        shape = epilogues.result_shape(dims, x, weight, arguments)
        if shape is None:
            return False  # PyTorch says what is wrong
        shape = shape if batched else shape[1:]
        program, operands = "", list[Tensor]()
        if epilogue is not None:
            traced = epilogue.traced(dims, shape, x.dtype, x.device, epilogue_inputs)
            program, operands = traced.program, list(traced.operands(*epilogue_inputs))
            if traced.promoted_from is not None:
                return False  # the result is of another type than `x`
        _check(dims, out, shape, x.dtype, x.device)
        place = slice_of(y)
        reason = _why_copied(y, place, program)
        if (
            place is not None
            and reason is None
            and not routes.write(dims, x, *cast[1:], arguments, y, place, program, operands)
        ):
            reason = "PyTorch's operator runs the layer, or its kernel writes another memory format"
    if reason is not None and not torch.compiler.is_compiling():
        _log.debug("the result is copied to out=: %s", reason)
    return reason is None


def _why_copied(out: Tensor, found: Slice | None, program: str) -> str | None:
    """Why no kernel can write to `out`, which is such a slice; None where one may."""
    if found is None:
        return "it is no slice of the channels of a contiguous tensor, nor of a channels_last one"
    # What is stored together lies at multiples of its size: 16 bytes, or of contiguous rows what divides them.
    item = out.element_size()
    together = 16 if found.last else math.gcd(out.shape[-1] * item, 16)
    if out.data_ptr() % together or (found.last and found.channels * item % together):
        return f"it does not lie at multiples of {together} bytes"
    whole = found.channels == out.shape[1]
    if program and not whole and any(read.kind in ("output", "sample") for read in parse(program).operands):
        return "the epilogue reads tensors that lie as the result would without out="
    return None
