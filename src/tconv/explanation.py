"""Says what runs a call and why, without running it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from tconv.dispatch import Decision, decide, passing_mode
from tconv.epilogues import Epilogue, why_apart, why_not_promoted
from tconv.errors import Unsupported
from tconv.former_names import takes_former_names
from tconv.modules import Layer, call_arguments
from tconv.ops import autocast
from tconv.planner import Gpu, Plan, floor_seconds
from tconv.planner.plan import tile_fields
from tconv.problem import Problem
from tconv.replace import why_left
from tconv.weights import is_kept


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain` for one call. ``str()`` of it is a text for people.

    Args:
        runs: "tconv", or "pytorch" for PyTorch's own operator.
        reason: why that one, in words.
        problem: the layer and its sizes; None if the arguments describe no transposed convolution.
        plan: the kernel, its tile, its grid and its shared memory in bytes; None if PyTorch runs.
        gpu: the GPU that was asked about, or the one that holds the tensors; None if the call did not get that far.
        conversions: the copies before and after the kernel, in words.
        floor_seconds: the seconds that no kernel on `gpu` can beat; None if nobody measured the GPU.
        frozen: whether the layer's weights are prepared once, for all calls that ask for no gradient of them.
        apart: why the epilogue runs outside the kernel; empty if it runs inside, or if there is none.
    """

    runs: Literal["tconv", "pytorch"]
    reason: str
    problem: Problem | None = None
    plan: Plan | None = None
    gpu: Gpu | None = None
    conversions: tuple[str, ...] = ()
    floor_seconds: float | None = None
    frozen: bool = False
    apart: str = ""

    @property
    def saved_bytes(self) -> int:
        """Bytes of memory traffic that the epilogue in the kernel saves: the result, written and read once more."""
        layer = None if self.problem is None else self.problem.layer
        if self.plan is None or self.problem is None or layer is None or not layer.epilogue:
            return 0
        return 2 * math.prod(self.problem.output_shape) * layer.item_bytes

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
        if self.plan.problem.layer.epilogue:
            rows.append(
                ("program", f"{self.plan.problem.layer.epilogue}, which saves {self.saved_bytes / 1e6:.3g} MB a call")
            )
        if self.apart:
            rows.append(("epilogue", f"runs by itself: {self.apart}"))
        if self.frozen:
            rows.append(("weights", "frozen: prepared once, for all calls that ask for no gradient of them"))
        if self.floor_seconds is not None:
            rows.append(("floor", f"{self.floor_seconds * 1e6:.1f} µs"))
        return "\n".join([f"tconv runs: {self.reason}", *(f"  {name:<8} {text}" for name, text in rows)])


@dataclass(frozen=True)
class ModelExplanation:
    """The answer of `explain` for a model. ``str()`` of it is a table for people.

    Args:
        calls: the name of a module and the answer for its call, in the order of the calls in a forward pass.
        not_called: the names of the transposed convolutions that a forward pass does not call.
    """

    calls: tuple[tuple[str, Explanation], ...]
    not_called: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [("layer", "problem", "runs", "because")]
        for name, found in self.calls:
            runs = "PyTorch" if found.plan is None else f"tconv: {found.plan.kernel.family}"
            rows.append((name, _sizes(found.problem) if found.problem else "", runs, found.reason))
        rows += [(name, "", "", "not called with these inputs") for name in self.not_called]
        if len(rows) == 1:
            return "the model has no transposed convolution that is a module"
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        return "\n".join(
            "  ".join([*(text.ljust(width) for text, width in zip(row[:-1], widths, strict=True)), row[-1]])
            for row in rows
        )


@overload
def explain(
    target: Tensor | torch.nn.modules.conv._ConvTransposeNd,
    *args: Any,
    gpu: Gpu | None = None,
    family: str | None = None,
    **kwargs: Any,
) -> Explanation: ...
@overload
def explain(
    target: torch.nn.Module, *args: Any, gpu: Gpu | None = None, family: str | None = None, **kwargs: Any
) -> Explanation | ModelExplanation: ...
def explain(
    target: Tensor | torch.nn.Module, *args: Any, gpu: Gpu | None = None, family: str | None = None, **kwargs: Any
) -> Explanation | ModelExplanation:
    """Says what would run a call, tconv's kernel or PyTorch's operator, and why. A layer's call is not made.

    The call is ``module(input, output_size=None)``, ``conv_transposeNd(input, weight, …)``, or a whole model's:

        print(tconv.explain(layer, x))
        print(tconv.explain(x, weight, stride=2, gpu=tconv.Gpu.h200()))
        print(tconv.explain(model, *inputs))

    Args:
        target: one of three. A transposed convolution module; its arguments follow. The input; the other arguments of
            `conv_transpose2d` follow, or of its like for one or three axes, by the axes of the weight. A model; its
            arguments follow, and it runs once, as it is, without gradients.
        gpu: the GPU to ask about; by default the one that holds the tensors. With `gpu`, tensors only give shapes,
            strides and dtypes: they may lie on any device, "meta" as well.
        family: the kernel family to ask about, of those in `tconv.planner.FAMILIES`; by default the one that would run.
        epilogue, epilogue_inputs: of a call of `tconv.conv_transpose2d` and its like, among its arguments.

    Returns:
        An `Explanation` of the layer's call; of a model a `ModelExplanation`.

    Raises:
        InvalidProgram: the epilogue is none that a kernel can compute; the message names the operation.
        Unsupported: `family` cannot run this call; the message says why.
    """
    if isinstance(target, torch.nn.modules.conv._ConvTransposeNd):
        return _explain_module(target, *args, gpu=gpu, family=family, **kwargs)
    if isinstance(target, torch.nn.Module):
        return _explain_model(target, args, kwargs, gpu, family)
    return _explain_call(target, *args, gpu=gpu, family=family, **kwargs)


def _explain_model(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], gpu: Gpu | None, family: str | None
) -> ModelExplanation:
    layers = {m: name for name, m in model.named_modules() if isinstance(m, torch.nn.modules.conv._ConvTransposeNd)}
    calls: list[tuple[str, Explanation]] = []

    def note(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        found = _explain_module(module, *given, gpu=gpu, family=family, **named)
        if not isinstance(module, Layer):
            reason = why_left(module) or "it is torch's layer; tconv.optimize(model) takes it"
            found = Explanation("pytorch", reason, found.problem)
        calls.append((layers[module], found))

    handles = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    called = {name for name, _ in calls}
    return ModelExplanation(tuple(calls), tuple(name for name in layers.values() if name not in called))


def _explain_module(
    module: torch.nn.modules.conv._ConvTransposeNd,
    input: Tensor,
    output_size: list[int] | None = None,
    *,
    gpu: Gpu | None,
    family: str | None,
) -> Explanation:
    arguments = call_arguments(module, input, output_size)
    dims, weight = len(module.kernel_size), _weight(module)
    explanation = _explain_call(input, weight, spatial_dims=dims, gpu=gpu, family=family, **arguments)
    prepares = explanation.plan is not None and explanation.plan.preparation is not None
    keeps = isinstance(module, Layer) and module.frozen is not None and is_kept(weight)
    return replace(explanation, frozen=prepares and keeps)


def _weight(module: torch.nn.modules.conv._ConvTransposeNd) -> Tensor:
    """The weights; computed ones as in evaluation: in training, spectral norm changes what it computes them from."""
    if not is_parametrized(module, "weight"):
        return module.weight
    own: Any = module.parametrizations
    modes = {part: part.training for part in own.modules()}
    own.eval()
    try:
        with torch.no_grad():
            return module.weight
    finally:
        for part, training in modes.items():
            part.training = training


@takes_former_names
def _explain_call(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    gpu: Gpu | None,
    family: str | None,
    epilogue: Epilogue | None = None,
    epilogue_inputs: Sequence[Tensor] = (),
    **kwargs: Any,
) -> Explanation:
    mode = None if gpu else passing_mode()
    if mode and family:
        raise Unsupported(f"the {family} family cannot run this call: {mode}")
    cast, apart = autocast(input, weight, bias), ""
    decision = decide(*cast, *args, gpu=gpu, family=family, **kwargs)
    if epilogue is not None and decision.plan is not None:
        apart = why_apart(input, anywhere=gpu is not None) or ""
        if not apart:
            dims, shape = weight.dim() - 2, decision.plan.problem.output_shape
            shape = shape if input.dim() == weight.dim() else shape[1:]
            traced = epilogue.traced(dims, shape, cast[0].dtype, cast[0].device, epilogue_inputs)
            apart = why_not_promoted(traced) or ""
        if not apart:
            if traced.promoted_from:  # the kernel for float32 computes it
                x, w, b = cast
                cast = _in_float32(x), _in_float32(w), None if b is None else _in_float32(b)
            decision = decide(*cast, *args, gpu=gpu, family=family, epilogue=traced.program, **kwargs)
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
        apart=apart,
    )


def _in_float32(like: Tensor) -> Tensor:
    """A tensor that lies as `like` does; its values do not matter."""
    return torch.empty_like(like, dtype=torch.float32)


def _sizes(problem: Problem) -> str:
    return f"{problem.layer.describe()}, {_times(problem.input_shape)} -> {_times(problem.output_shape)}"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
