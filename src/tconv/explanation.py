"""Says what runs a call and why, without running it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from tconv.dispatch import Decision, decide, passing_mode
from tconv.errors import Unsupported
from tconv.modules import Layer, call_arguments
from tconv.ops import autocast
from tconv.planner import Gpu, Plan, floor_seconds
from tconv.planner.plan import tile_fields
from tconv.problem import Problem
from tconv.weights import is_kept


@dataclass(frozen=True)
class Explanation:
    """What runs a call; ``str()`` of it is for people.

    Args:
        runs: "tconv", or "pytorch" for PyTorch's own operator.
        reason: why.
        problem: what is computed; None where the arguments describe no transposed convolution.
        plan: kernel, tile, grid and shared memory, if tconv runs.
        gpu: the one asked about, or the one under the tensors.
        conversions: copies around the kernel.
        floor_seconds: roofline bound on `gpu`, or None where nobody measured that.
        frozen: the layer's weights are prepared once, for all calls that ask for no gradient of them.
    """

    runs: Literal["tconv", "pytorch"]
    reason: str
    problem: Problem | None = None
    plan: Plan | None = None
    gpu: Gpu | None = None
    conversions: tuple[str, ...] = ()
    floor_seconds: float | None = None
    frozen: bool = False

    def __str__(self) -> str:
        if self.plan is None or self.gpu is None:
            lines = [f"PyTorch's own operator runs: {self.reason}"]
            return "\n".join(lines + ([f"  problem  {_sizes(self.problem)}"] if self.problem else []))
        kernel = self.plan.kernel
        tile = ", ".join(f"{name} {value}" for name, value in tile_fields(kernel.tile))
        grid = (
            f"{self.plan.grid} blocks of {kernel.threads} threads, {self.plan.shared_bytes} bytes of shared memory each"
        )
        rows = [
            ("problem", _sizes(self.plan.problem)),
            ("family", f"{kernel.family}, on {self.gpu.name}"),
            ("tile", tile),
            ("grid", grid),
            *(("because", reason) for reason in self.plan.reasons),
            *(("copy", conversion) for conversion in self.conversions),
        ]
        if self.frozen:
            rows.append(("weights", "frozen: prepared once, for all calls that ask for no gradient of them"))
        if self.floor_seconds is not None:
            rows.append(("floor", f"{self.floor_seconds * 1e6:.1f} µs"))
        return "\n".join([f"tconv runs: {self.reason}", *(f"  {name:<8} {text}" for name, text in rows)])


def explain(
    target: Tensor | torch.nn.Module, *args: Any, gpu: Gpu | None = None, family: str | None = None, **kwargs: Any
) -> Explanation:
    """Explains the call ``module(input, output_size=None)`` or ``conv_transposeNd(input, weight, …)``.

    ::

        print(tconv.explain(layer, x))
        print(tconv.explain(x, weight, stride=2, gpu=tconv.Gpu.h200()))

    Args:
        target: a transposed convolution module, followed by what it is called with, or the input, followed by the other
            arguments of `tconv.conv_transpose2d`; how many spatial axes there are is read from the weight.
        gpu: asks what would run on this GPU. The tensors then only say shapes, strides and dtypes; "meta" will do.
        family: insists on a kernel family.

    Raises:
        TypeError: `target` is another kind of module.
        Unsupported: `family` cannot run this call; the message says why.
    """
    if isinstance(target, torch.nn.Module):
        if not isinstance(target, torch.nn.modules.conv._ConvTransposeNd):
            raise TypeError(
                f"got a {type(target).__name__}; allowed are ConvTranspose1d, …2d and …3d, torch's or tconv's"
            )
        return _explain_module(target, *args, gpu=gpu, family=family, **kwargs)
    return _explain_call(target, *args, gpu=gpu, family=family, **kwargs)


def _explain_module(
    module: torch.nn.modules.conv._ConvTransposeNd,
    input: Tensor,
    output_size: list[int] | None = None,
    *,
    gpu: Gpu | None,
    family: str | None,
) -> Explanation:
    arguments = call_arguments(module, input, output_size)
    dims = len(module.kernel_size)
    explanation = _explain_call(input, module.weight, spatial_dims=dims, gpu=gpu, family=family, **arguments)
    prepares = explanation.plan is not None and explanation.plan.preparation is not None
    keeps = isinstance(module, Layer) and module.frozen is not None and is_kept(module.weight)
    return replace(explanation, frozen=prepares and keeps)


def _explain_call(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    gpu: Gpu | None,
    family: str | None,
    **kwargs: Any,
) -> Explanation:
    mode = None if gpu else passing_mode()
    if mode and family:
        raise Unsupported(f"the {family} family cannot run this call: {mode}")
    decision = decide(*autocast(input, weight, bias), *args, gpu=gpu, family=family, **kwargs)
    if mode:
        decision = Decision(None, mode, problem=decision.problem)
    plan = decision.plan
    return Explanation(
        runs="pytorch" if plan is None else "tconv",
        reason=decision.reason,
        problem=decision.problem,
        plan=plan,
        gpu=decision.gpu,
        conversions=decision.conversions,
        floor_seconds=floor_seconds(plan.problem, decision.gpu) if plan and decision.gpu else None,
    )


def _sizes(problem: Problem) -> str:
    return f"{problem.layer.describe()}, {_times(problem.input_shape)} -> {_times(problem.output_shape)}"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
