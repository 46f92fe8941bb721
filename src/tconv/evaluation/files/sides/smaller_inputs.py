"""Smaller inputs, where a model's own sizes would take hours without a GPU, or too long in many calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tconv.evaluation.files.sides.file_process import Shapes

#: No spatial axis is cut below this, no batch below two.
_SMALLEST_AXIS = 5
_SMALLEST_BATCH = 2


def cut_down(shapes: Shapes, work: Callable[[Shapes], int | None], limit: int) -> Shapes:
    """Shrink the shapes step by step until the work is within the limit, or until the model takes none smaller.

    Args:
        shapes: (N, C, *spatial) of the inputs; None for an input that is no tensor.
        work: multiply-adds of a forward pass at given shapes; None if the model rejects them. A U-Net may want
            multiples, a classifier one size.
    """
    found, needed = shapes, work(shapes)
    while needed is not None and needed > limit:
        for smaller in _smaller(found):
            needed = work(smaller) if smaller != found else None
            if needed is not None:
                found = smaller
                break
    return found


def cut(value: Any, shape: tuple[int, ...] | None) -> Any:
    """The first elements of a tensor on each axis, without gaps; anything else as it is."""
    return value[tuple(map(slice, shape))].contiguous() if isinstance(value, Tensor) and shape is not None else value


def fewer_samples(shapes: Shapes, limit_bytes: int, times: int) -> Shapes:
    """The shapes with a batch that fits into `limit_bytes` of float32; unchanged if that is not `times` less.

    The batch is the first axis of the first tensor, and of all tensors whose first axis is as long.
    """
    tensors = [shape for shape in shapes if shape]
    needed = 4 * sum(map(math.prod, tensors))
    batch = tensors[0][0] if tensors else 0
    samples = max(_SMALLEST_BATCH, batch * limit_bytes // max(1, needed))
    if samples * times > batch:
        return shapes
    return [(samples, *shape[1:]) if shape and shape[0] == batch else shape for shape in shapes]


def _smaller(shapes: Shapes) -> tuple[Shapes, ...]:
    """The next smaller shapes, the preferred one first: half the batch of maps, of rows as well, half of every map."""
    return _each(shapes, _half_batch, 3), _each(shapes, _half_batch, 2), _each(shapes, _half_spatial, 3)


def _each(shapes: Shapes, change: Callable[[tuple[int, ...]], tuple[int, ...]], axes: int) -> Shapes:
    """Change tensors of at least `axes` axes: a map has three, a batch of rows (latents, labels) two."""
    return [shape if shape is None or len(shape) < axes else change(shape) for shape in shapes]


def _half_batch(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (max(min(shape[0], _SMALLEST_BATCH), shape[0] // 2), *shape[1:])


def _half_spatial(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], *(max(min(length, _SMALLEST_AXIS), length // 2) for length in shape[2:]))
