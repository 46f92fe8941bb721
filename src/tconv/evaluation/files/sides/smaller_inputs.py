"""Smaller inputs: where a layer's own sizes would take hours, without a GPU, or many times the time of the first."""

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
    """The largest of a row of ever smaller shapes whose work is within the limit, or the smallest that the model takes.

    Args:
        shapes: (N, C, *spatial) of the inputs as they are; None for what is no tensor.
        work: multiply-adds of a forward pass at these shapes; None where the model does not take them, as a U-Net
            that wants multiples, or a classifier that wants one size.
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
    """The shapes with a batch within so many bytes of float32; as they are if that is not many `times` less.

    The batch is the first axis of the first tensor, and of all others whose first axis is as long.
    """
    tensors = [shape for shape in shapes if shape]
    needed = 4 * sum(map(math.prod, tensors))
    batch = tensors[0][0] if tensors else 0
    samples = max(_SMALLEST_BATCH, batch * limit_bytes // max(1, needed))
    if samples * times > batch:
        return shapes
    return [(samples, *shape[1:]) if shape and shape[0] == batch else shape for shape in shapes]


def _smaller(shapes: Shapes) -> tuple[Shapes, ...]:
    """The next steps down, the preferred one first: half the batch of maps, of rows as well, half of every map."""
    return _each(shapes, _half_batch, 3), _each(shapes, _half_batch, 2), _each(shapes, _half_spatial, 3)


def _each(shapes: Shapes, change: Callable[[tuple[int, ...]], tuple[int, ...]], axes: int) -> Shapes:
    """Only tensors of so many axes or more are changed: a map has three, a batch of rows (latents, labels) two."""
    return [shape if shape is None or len(shape) < axes else change(shape) for shape in shapes]


def _half_batch(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (max(min(shape[0], _SMALLEST_BATCH), shape[0] // 2), *shape[1:])


def _half_spatial(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], *(max(min(length, _SMALLEST_AXIS), length // 2) for length in shape[2:]))
