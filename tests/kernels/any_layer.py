"""Kernels for any layer, which have no tile of their own: run in the emulator, as they are or changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from kernel_runs import Tensors, random_tensors, worst

from tconv.emulator import EmulatorError, Mode, Order, run
from tconv.kernels.source import inlined, launching, unit
from tconv.planner import Kernel
from tconv.problem import Layer, Precision, Problem
from tconv.sandbox.cut import Cut, told
from tconv.sandbox.emulated import ask, launches

NAME = "tconv_kernel"
#: A change of the kernel: what it replaces, by what, for which layer it shows, and in which mode of the emulator.
Mistake = tuple[str, str, str, Mode]
_SIZES = {1: ((1, 1, 1), (1, 1, 70)), 2: ((1, 5, 6), (1, 9, 33)), 3: ((2, 3, 4), (1, 4, 9))}


def problems(layers: Mapping[str, Layer], name: str, precision: Precision) -> list[Problem]:
    layer = replace(layers[name], precision=precision)
    last = [min(1, max(axis.stride, axis.dilation) - 1) for axis in layer.axes]
    small, large = _SIZES[layer.spatial_dims]
    if name == "padding beyond the kernel":
        small = (1, 6, 7)
    return [Problem(layer, 3, small), Problem(layer, 2, large, (last[0], last[1], last[2]))]


def emulated(
    family: str,
    problem: Problem,
    tensors: Tensors,
    mode: Mode = "plain",
    order: Order = "ascending",
    wide: bool = False,
    text: str | None = None,
) -> torch.Tensor:
    """The output by the kernel, or by another `text` in its place; elements never written stay NaN."""
    source = text or unit(Kernel(family, problem.layer, None, wide), NAME) + launching(family, NAME)
    y = torch.full(problem.output_shape, float("nan"), dtype=tensors.x.dtype)
    how = told(Cut(source, source, NAME), problem, 1, ask)
    run(source, launches(NAME, how, problem, *tensors[:3], y, tensors.operands), mode=mode, order=order, copies="late")
    return y


def shows(family: str, problem: Problem, mistake: Mistake) -> bool:
    """Whether the kernel is right, and with one text in place of another is reported, or gives a wrong result."""
    old, new, _, mode = mistake
    kernel = Kernel[Any](family, problem.layer, None)
    text = inlined([(kernel, NAME)]) + launching(family, NAME)
    assert text.count(old) == 1, "the kernel has changed: the mistake must be adapted"
    tensors = random_tensors(problem)
    assert worst(problem, tensors, emulated(family, problem, tensors, mode, text=text)) <= 1
    try:
        y = emulated(family, problem, tensors, mode, text=text.replace(old, new))
    except EmulatorError as error:
        assert error.kind in ("address", "undefined", "race")
        return True
    return worst(problem, tensors, y) > 1
