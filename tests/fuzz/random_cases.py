"""Random problems over the whole space of parameters, each with a way to store its tensors and to plan it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from tconv.problem import PRECISIONS, Axis, InvalidProblem, Layer, Problem, Triple

#: How tensors lie in memory. A kernel takes contiguous tensors alone, the library all of them.
Storage = Literal["contiguous", "offset", "strided", "channels_last"]
STORAGES: tuple[Storage, ...] = get_args(Storage)

#: What blocks, warps and stages hold: sizes just below, at and just above are where tiles are partial or whole.
_CHANNEL_BORDERS = (16, 32, 64, 128)
_POSITION_BORDERS = (32, 64, 128, 256, 512, 2048, 8192)
_TRIES = 50

#: How many layers have weights in channels_last, where that is an order of its own.
_WEIGHTS_LAST = 0.3
#: What `large_problem` draws from: channels of all groups, and sizes by the number of axes.
_LARGE_CHANNELS = (16, 24, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
_LARGE_SIZES = {1: (256, 1024, 5000, 65536), 2: (14, 28, 64, 127, 256, 512, 1024), 3: (8, 16, 31, 64, 96, 128)}
_MOST_LARGE_ELEMENTS = 2**34


@dataclass(frozen=True)
class Case:
    """One problem, and what else a run of it depends on.

    Args:
        seed: of the tensors.
        multiprocessors: of the GPU that is planned for: few make blocks wide and let them walk, however small the
            problem. None plans for the GPU at hand, and there goes through the library's front.
        wide_index: insists on 64-bit positions, which else only huge problems get.
        tensor_cores: insists on a family on tensor cores, where one runs the problem; the seed says which is first.
    """

    problem: Problem
    seed: int = 0
    storage: Storage = "contiguous"
    multiprocessors: int | None = None
    wide_index: bool = False
    tensor_cores: bool = False


@dataclass(frozen=True)
class Budget:
    """The most that one problem may ask for, so that many can be run."""

    multiply_adds: int = 2_000_000
    elements: int = 150_000


def random_unit(seed: int, number: int, layers: int = 8, sizes: int = 6, budget: Budget = Budget()) -> list[Case]:
    """Cases of `layers` layers at `sizes` sizes each: compiling is what costs, and sizes need no new kernel.

    The same seed and number give the same cases.
    """
    dice = Random(f"{seed}/{number}")
    return [case for _ in range(layers) for case in _cases_of(dice, _layer(dice, budget), sizes, budget)]


def large_problem(dice: Random) -> Problem:
    """A problem of the sizes that models have, beyond any budget: to be planned, not to be run."""
    while True:
        dims = dice.choice((1, 2, 2, 3))
        axes = [Axis(1, 1, 0, 1)] * (3 - dims) + [_axis(dice, dims) for _ in range(dims)]
        kernel, stride, padding, dilation = (
            _triple(getattr(axis, name) for axis in axes) for name in ("kernel", "stride", "padding", "dilation")
        )
        inputs, outputs = dice.choice(_LARGE_CHANNELS), dice.choice((1, 3, *_LARGE_CHANNELS))
        common = math.gcd(inputs, outputs)
        groups = dice.choice((1, 1, 1, 1, common, 2 - common % 2, math.gcd(common, 32)))
        layer = Layer(
            *(dims, inputs, outputs, kernel, stride, padding, dilation, groups),
            bias=dice.random() < 0.5,
            precision=dice.choice(PRECISIONS),
        )
        drawn = [dice.choice(_LARGE_SIZES[dims]) - dice.choice((0, 0, 1)) for _ in range(dims)]
        sizes = _triple([1] * (3 - dims) + drawn)
        extra = _triple(dice.choice((0, max(axis.stride, axis.dilation) - 1)) for axis in axes)
        try:
            problem = Problem(layer, dice.choice((1, 2, 8, 16, 64)), sizes, extra)
        except InvalidProblem:
            continue
        if max(math.prod(problem.input_shape), math.prod(problem.output_shape)) < _MOST_LARGE_ELEMENTS:
            return problem


def _layer(dice: Random, budget: Budget) -> Layer:
    while True:
        dims = dice.choice((1, 1, 2, 2, 3))
        unused = [Axis(1, 1, 0, 1)] * (3 - dims)
        axes = unused + [_axis(dice, dims) for _ in range(dims)]
        groups = dice.choice((1, 1, 1, 1, dice.randint(2, 5), dice.randint(2, 9), dice.choice((31, 32, 33))))
        inputs, outputs = _channels(dice), _channels(dice)
        if groups > 1 and dice.random() < 0.5:  # depthwise, with a multiplier or without
            inputs, outputs = 1, dice.choice((1, 1, 2, 3))
        kernel, stride, padding, dilation = (
            _triple(getattr(axis, name) for axis in axes) for name in ("kernel", "stride", "padding", "dilation")
        )
        weights = groups * inputs * outputs * math.prod(kernel)
        if weights > budget.elements or groups * outputs * math.prod(stride) > budget.elements:
            continue
        layer = Layer(
            *(dims, groups * inputs, groups * outputs, kernel, stride, padding, dilation, groups),
            bias=dice.random() < 0.5,
            precision=dice.choice(PRECISIONS),
        )
        return layer.in_channels_last() if dice.random() < _WEIGHTS_LAST else layer


def _axis(dice: Random, dims: int) -> Axis:
    kind = dice.choice(("common", "common", "multiple", "any", "any", "long" if dims == 1 else "trivial"))
    if kind == "trivial":
        return Axis(1, 1, 0, 1)
    if kind == "multiple":  # the kernel a multiple of the stride, as upsampling layers have it
        stride = dice.randint(1, 16 if dims == 1 else 4)
        kernel, dilation = stride * dice.randint(1, 3), 1
    elif kind == "common":
        kernel, stride, dilation = dice.randint(1, 5), dice.randint(1, 3), 1
    else:
        most = 80 if kind == "long" else 9 if dims < 3 else 4
        kernel, stride, dilation = dice.randint(1, most), dice.randint(1, most), dice.randint(1, 6)
    # Up to the whole span and a little beyond: whole positions then lie outside of the output.
    padding = dice.choice((0, kernel // 2, dice.randint(0, dilation * (kernel - 1) + stride)))
    return Axis(kernel, stride, padding, dilation)


def _channels(dice: Random) -> int:
    if dice.random() < 0.65:
        return dice.randint(1, 9)
    return dice.choice(_CHANNEL_BORDERS) + dice.randint(-1, 1)


def _cases_of(dice: Random, layer: Layer, sizes: int, budget: Budget) -> Iterator[Case]:
    tensor_cores = dice.random() < 0.4
    for _ in range(sizes):
        yield Case(
            _problem(dice, layer, budget),
            seed=dice.randrange(1000),
            storage=dice.choice((*STORAGES, "contiguous")),
            multiprocessors=dice.choice((None, None, 1, 8)),
            wide_index=dice.random() < 0.04,
            tensor_cores=tensor_cores,
        )


def _problem(dice: Random, layer: Layer, budget: Budget) -> Problem:
    """The layer at random sizes; where none of them fits the budget, at the smallest sizes."""
    unused = 3 - layer.spatial_dims
    for attempt in range(_TRIES):
        extra = _triple(
            0 if dice.random() < 0.5 else dice.randint(0, max(axis.stride, axis.dilation) - 1) for axis in layer.axes
        )
        batch = 0 if dice.random() < 0.01 else dice.choice((1, 1, 1, 2, 3, 5, dice.randint(31, 33)))
        most = 1 + (_TRIES - attempt) // 2
        positions = [1] * unused + [dice.randint(1, most) for _ in range(layer.spatial_dims)]
        if dice.random() < 0.6:
            border = dice.choice(_POSITION_BORDERS) + dice.randint(-1, 1)
            others = max(1, batch) * positions[0] * positions[1]
            positions[2] = max(1, border // others)
        sizes = _sizes(layer, positions, extra)
        if dice.random() < 0.1:  # the stride of such an axis does not matter
            sizes = _triple(size if dice.random() < 0.4 else 1 for size in sizes)
        try:
            problem = Problem(layer, batch, sizes, extra)
        except InvalidProblem:
            continue
        most_elements = max(math.prod(problem.input_shape), math.prod(problem.output_shape))
        if problem.multiply_adds <= budget.multiply_adds and most_elements <= budget.elements:
            return problem
    size = _triple(1 if axis.is_trivial else 1 + -(-2 * axis.padding // axis.stride) for axis in layer.axes)
    return Problem(layer, 1, size)


def _sizes(layer: Layer, positions: list[int], extra: Triple) -> Triple:
    """Input sizes whose outputs have so many positions, or as near as an input of one element comes."""
    unused = 3 - layer.spatial_dims

    def size(axis: Axis, count: int, more: int) -> int:
        far = count + axis.padding + 1  # one more input is one more position
        return max(1, far + count - axis.positions(axis.output_size(far, more)))

    found = [size(*values) for values in zip(layer.axes, positions, extra, strict=True)]
    return _triple([1] * unused + found[unused:])


def _triple(values: Iterable[int]) -> Triple:
    depth, height, width = values
    return depth, height, width
