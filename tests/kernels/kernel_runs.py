"""Runs instances in the emulator and says what the result should be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from tconv.emulator import Copies, Mode, Order, run
from tconv.evaluation.reference import conv_transpose, rounded_tf32
from tconv.kernels import source
from tconv.kernels.instances import AXES, Instance, instances, programmed, sliced
from tconv.planner import FAMILIES, Gpu
from tconv.planner.plan import Plan
from tconv.pointwise.evaluate import shape_of
from tconv.pointwise.interval import Interval, bounds
from tconv.pointwise.program import parse
from tconv.problem import PRECISIONS, TF32, Problem
from tconv.sandbox.emulated import launches

INSTANCES = {instance.name: instance for family in AXES for instance in instances(family)}
SLICED = {instance.name: instance for family in AXES for instance in sliced(family)}
PROGRAMMED = {instance.name: instance for family in AXES for instance in programmed(family)}

#: With so few multiprocessors, blocks whose weights are resident go through several block tiles.
GPU = replace(Gpu.h200(), multiprocessors=1)
#: Half an ulp, relative, of what is stored; and the unit of the sums.
_STORED = dict.fromkeys(PRECISIONS, 2.0**-24) | {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp64": 2.0**-53}
_SUMMED = dict.fromkeys(PRECISIONS, 2.0**-24) | {"fp64": 2.0**-53}


class Tensors(NamedTuple):
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    operands: tuple[torch.Tensor, ...] = ()


@cache
def random_tensors(problem: Problem) -> Tensors:
    layer, generator = problem.layer, torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator)
        if layer.precision in TF32:  # every other one half way between two numbers of TF32
            ties = ((values.view(torch.int32) & ~0x1FFF) | 0x1000).view(torch.float32)
            values = torch.where(torch.rand(shape, generator=generator) < 0.5, ties, values)
        return values.to(getattr(torch, layer.dtype))

    return Tensors(
        draw(*problem.input_shape),
        draw(*layer.weight_shape),
        draw(layer.out_channels) if layer.bias else None,
        tuple(draw(*shape) for shape in operand_shapes(problem)),
    )


def operand_shapes(problem: Problem) -> list[tuple[int, ...]]:
    """Of what the layer's program reads."""
    operands = parse(problem.layer.epilogue).operands if problem.layer.epilogue else ()
    return [shape_of(operand.kind, problem.output_shape) for operand in operands]


def integer_tensors(problem: Problem, seed: int = 3) -> Tensors:
    """Small integers, whose sums of products every precision holds exactly, TF32's rounding included."""
    layer, generator = problem.layer, torch.Generator().manual_seed(seed)
    # bf16 holds integers up to 256, fp16 up to 2048: few non-zero weights keep the outputs below.
    sparse = {"bf16": 0.02, "fp16": 0.2}.get(layer.precision, 1.0)

    def draw(*shape: int, density: float = 1.0) -> torch.Tensor:
        values = torch.randint(-3, 4, shape, generator=generator)
        kept = torch.rand(shape, generator=generator) < density
        return (values * kept).to(getattr(torch, layer.dtype))

    return Tensors(
        draw(*problem.input_shape),
        draw(*layer.weight_shape, density=sparse),
        draw(layer.out_channels) if layer.bias else None,
        tuple(draw(*shape) for shape in operand_shapes(problem)),
    )


def reference(problem: Problem, tensors: Tensors, units: float = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 result, and how far each element of a right one may lie from it: so many units of rounding."""
    layer = problem.layer
    rounds = layer.precision in TF32
    x, weight = ((rounded_tf32(t, layer.precision) if rounds else t).double() for t in tensors[:2])
    bias = None if tensors.bias is None else tensors.bias.double()
    exact = conv_transpose(x, weight, bias, problem)
    magnitude = conv_transpose(x.abs(), weight.abs(), None if bias is None else bias.abs(), problem)
    allowed = units * _SUMMED[layer.precision] * magnitude
    if layer.epilogue:
        sums = Interval(exact - allowed, exact + allowed)
        low, high = bounds(parse(layer.epilogue), sums, tensors.operands, 2 * _SUMMED[layer.precision])
        exact, allowed = (low + high) / 2, (high - low) / 2
    smallest = torch.finfo(getattr(torch, layer.dtype)).smallest_normal
    return exact, allowed + _STORED[layer.precision] * (exact.abs() + allowed + smallest)


def plan_of(instance: Instance, gpu: Gpu) -> Plan:
    """The launch of `instance` on `gpu`."""
    return FAMILIES[instance.kernel.family].plan_with(instance.problem, instance.kernel, gpu)


def stored(tensor: torch.Tensor, instance: Instance) -> torch.Tensor:
    """An input, or a result to be filled, as the kernel of `instance` reads or writes it."""
    return tensor.movedim(1, -1).contiguous() if _channels_last(instance) else tensor


def stored_weight(weight: torch.Tensor, problem: Problem) -> torch.Tensor:
    """A layer's weights, one behind the other as its kernel reads them."""
    return weight.movedim(1, -1).contiguous() if problem.layer.weights_last else weight


def seen(result: torch.Tensor, instance: Instance) -> torch.Tensor:
    """A result that was written as `stored` says, in the order of its axes."""
    return result.movedim(-1, 1).contiguous() if _channels_last(instance) else result


def _channels_last(instance: Instance) -> bool:
    return bool(getattr(instance.kernel.tile, "channels_last", False))


def emulate(
    instance: Instance,
    tensors: Tensors,
    mode: Mode = "plain",
    order: Order = "ascending",
    text: str | None = None,
    copies: Copies = "late",
    name: str = "tconv_kernel",
) -> torch.Tensor:
    """The output of `instance`, or of the kernel `name` of `text` in its place; elements never written stay NaN."""
    problem = instance.problem
    plan = plan_of(instance, GPU)
    x, weight, bias, operands = tensors
    x, y = (stored(t, instance) for t in (x, torch.full(problem.output_shape, float("nan"), dtype=x.dtype)))
    operands = [stored(operand, instance) for operand in operands]
    of_plan = launches(name, plan, problem, x, stored_weight(weight, problem), bias, y, operands)
    run(text or source.unit(instance.kernel), of_plan, mode=mode, order=order, copies=copies)
    return seen(y, instance)


def worst(problem: Problem, tensors: Tensors, y: torch.Tensor, units: float = 8) -> float:
    """The largest error in units of what is allowed; NaN counts as infinite."""
    exact, allowed = reference(problem, tensors, units)
    error = (y.double() - exact).abs()
    return float(torch.where(error == 0, 0.0, error / allowed).nan_to_num(nan=float("inf")).max())
