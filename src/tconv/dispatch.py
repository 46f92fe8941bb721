"""Which kernel runs a call, or why PyTorch's operator does: one set of predicates for calling, explaining, insisting.

`decide` answers from what a call's key holds: shapes, strides, dtypes, devices, arguments. `passing_mode` answers what
can change from one call to the next with the same key. Both give their reason in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import _C, Tensor
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad

from tconv.errors import Unsupported
from tconv.memory import CHANNELS_LAST_FORMATS, lies_last
from tconv.metadata import has_memory
from tconv.planner import FAMILIES, Gpu, Plan, Unplannable, choose
from tconv.planner.choice import reads_channels_last, was_slower, why_pytorch
from tconv.planner.tuned import Answers
from tconv.precision import allows_tf32, question_of
from tconv.problem import DTYPE_OF, InvalidProblem, Layer, Precision, Problem, Triple
from tconv.settings import settings

#: On CUDA cores, fp32 tensors keep full fp32 products whatever PyTorch's TF32 flags allow; on tensor cores they are
#: rounded where the flags allow it.
PRECISION_OF: dict[torch.dtype, Precision] = {
    getattr(torch, DTYPE_OF[precision]): precision for precision in ("fp32", "fp16", "bf16", "fp64")
}
_OLDEST_ARCH = 75


@dataclass(frozen=True)
class Decision:
    """What runs a call.

    Args:
        plan: how tconv runs it, or None when PyTorch's own operator does.
        reason: why, in words.
        problem: what is computed, where the call got that far.
        gpu: that was decided for, where the call got that far.
        memory_format: of the result, as PyTorch's operator would give it on a GPU.
        conversions: copies around the kernel, in words.
    """

    plan: Plan | None
    reason: str
    problem: Problem | None = None
    gpu: Gpu | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    conversions: tuple[str, ...] = ()


class _Refused(Exception):
    """Says why tconv leaves a call to PyTorch."""


def decide(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    spatial_dims: int | None = None,
    gpu: Gpu | None = None,
    family: str | None = None,
    epilogue: str = "",
    into: int = 0,
) -> Decision:
    """Decides what runs ``conv_transposeNd(input, weight, …)``.

    Args:
        spatial_dims: N; by default what the weight says.
        gpu: decides as if the tensors lay on that GPU; they may then be of any device, "meta" too.
        family: insists on this kernel family; else PyTorch's operator runs what it was measured or is predicted to
            run faster, unless TCONV_INSIST is set.
        epilogue: the text of a program that the kernel applies to its results (`tconv.pointwise`).
        into: how many channels the tensor has of which the result is a slice; 0 where it is all of it.

    Raises:
        Unsupported: `family` cannot run the call.
    """
    tensors = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    decision = Decision(None, "")
    try:
        _check_kinds(tensors, anywhere=gpu is not None)
        dims = weight.dim() - 2 if spatial_dims is None else spatial_dims
        problem = _problem(dims, input, weight, bias, (stride, padding, output_padding, groups, dilation))
        if epilogue or into:
            problem = replace(problem, layer=replace(problem.layer, epilogue=epilogue), into=into)
        gpu = gpu or _gpu_under(input)
        decision = replace(decision, problem=problem, gpu=gpu, memory_format=result_format(input, weight))
        plan = _plan(problem, gpu, family, channels_last=_is_channels_last(input, decision.memory_format, dims))
    except (_Refused, InvalidProblem, Unplannable) as refusal:
        if family is not None:
            raise Unsupported(f"the {family} family cannot run this call: {refusal}") from refusal
        return replace(decision, reason=str(refusal))
    return replace(
        decision,
        plan=plan,
        reason=f"the {plan.kernel.family} family runs {problem.layer.describe()}",
        conversions=_conversions(tensors, decision.memory_format, reads_channels_last(plan)),
    )


def passing_mode() -> str | None:
    """Why, at this moment, PyTorch's own operator must see the call; None when nothing asks for that."""
    if _C._are_functorch_transforms_active():
        return "a functorch transform (vmap, grad, jvp) is active"
    if forward_ad._current_level >= 0:
        return "forward-mode automatic differentiation is active"
    if _C._get_tracing_state() is not None:
        return "torch.jit is tracing"
    return None


def result_format(input: Tensor, weight: Tensor) -> torch.memory_format:
    """The memory format of the result, by PyTorch's rule for cuDNN: channels_last if input or weight suggest it."""
    if weight.dim() not in CHANNELS_LAST_FORMATS or input.dtype == torch.float64:
        return torch.contiguous_format
    batched = input if input.dim() == weight.dim() else input.unsqueeze(0)
    chosen = CHANNELS_LAST_FORMATS[weight.dim()]
    suggested = suggest_memory_format(batched), suggest_memory_format(weight)
    return chosen if chosen in suggested else torch.contiguous_format


def _check_kinds(tensors: dict[str, Tensor], *, anywhere: bool) -> None:
    """Ordinary dense tensors of one dtype on one CUDA device; with `anywhere`, they stand for their metadata only."""
    if settings().disabled:
        raise _Refused("TCONV_DISABLE is set")
    input = tensors["input"]
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise _Refused(f"{name} is a {type(tensor).__name__}, not a tensor")
        if not anywhere and type(tensor) not in (Tensor, torch.nn.Parameter):
            raise _Refused(f"{name} is a {type(tensor).__name__}: subclasses of Tensor are PyTorch's")
        if tensor.layout != torch.strided or tensor.is_nested:
            raise _Refused(f"{name} is not a dense tensor ({'nested' if tensor.is_nested else tensor.layout})")
        if tensor.dtype not in PRECISION_OF:
            raise _Refused(f"{name} is {_name(tensor.dtype)}; the kernels take {', '.join(map(_name, PRECISION_OF))}")
        if tensor.dtype != input.dtype:
            raise _Refused(f"{name} is {_name(tensor.dtype)} and input {_name(input.dtype)}")
        if tensor.is_neg():
            raise _Refused(f"{name} is a lazily negated view")
        if not has_memory(tensor):
            raise _Refused(f"{name} is a wrapper that escaped from a transform of torch.func")
        if anywhere:
            continue
        if not tensor.is_cuda:
            raise _Refused(f"{name} is on {tensor.device}; the kernels are for CUDA GPUs")
        if tensor.device != input.device:
            raise _Refused(f"{name} is on {tensor.device} and input on {input.device}")


def _problem(dims: int, input: Tensor, weight: Tensor, bias: Tensor | None, arguments: tuple[Any, ...]) -> Problem:
    stride, padding, output_padding, groups, dilation = arguments
    if dims not in (1, 2, 3) or weight.dim() != dims + 2 or input.dim() not in (dims + 1, dims + 2):
        raise _Refused(f"input has {input.dim()} and weight {weight.dim()} axes, which no {dims}-D layer takes")
    shape = input.shape if input.dim() == dims + 2 else (1, *input.shape)
    if shape[1] != weight.shape[0]:
        raise _Refused(f"input has {shape[1]} channels and weight {weight.shape[0]}")
    if type(groups) is not int:
        raise _Refused(f"groups={groups!r} is not an integer")
    out_channels = weight.shape[1] * groups
    if bias is not None and bias.shape != (out_channels,):
        raise _Refused(f"bias has shape {tuple(bias.shape)}, not ({out_channels},)")
    layer = Layer(
        spatial_dims=dims,
        in_channels=shape[1],
        out_channels=out_channels,
        kernel=_triple(weight.shape[2:], 1),
        stride=_triple(_per_axis("stride", stride, dims), 1),
        padding=_triple(_per_axis("padding", padding, dims), 0),
        dilation=_triple(_per_axis("dilation", dilation, dims), 1),
        groups=groups,
        bias=bias is not None,
        precision=PRECISION_OF[input.dtype],
        weights_last=lies_last(weight),
    )
    extra = _triple(_per_axis("output_padding", output_padding, dims), 0)
    return Problem(layer, shape[0], _triple(shape[2:], 1), extra)


def _per_axis(name: str, value: Any, dims: int) -> tuple[int, ...]:
    """An argument as one integer an axis, by the rules of PyTorch's operator."""
    values = (value,) if type(value) is int else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not all(type(v) is int for v in values) or len(values) not in (1, dims):
        raise _Refused(f"{name}={value!r} is neither an integer nor a list of {dims} integers")
    return values * dims if len(values) == 1 else values


def _triple(values: Sequence[int], filler: int) -> Triple:
    """(depth, height, width), the unused leading axes filled."""
    depth, height, width = (filler,) * (3 - len(values)) + tuple(values)
    return depth, height, width


def _is_channels_last(input: Tensor, memory_format: torch.memory_format, dims: int) -> bool:
    """Whether both input and result are channels_last, so that a kernel could read the one and write the other."""
    batched = input if input.dim() == dims + 2 else input.unsqueeze(0)
    return memory_format != torch.contiguous_format and batched.is_contiguous(memory_format=memory_format)


def _plan(problem: Problem, gpu: Gpu, family: str | None, channels_last: bool) -> Plan:
    if gpu.capability < _OLDEST_ARCH:
        raise _Refused(f"{gpu.name} is {gpu.arch}; the kernels need sm_{_OLDEST_ARCH} or newer")
    if problem.batch == 0:
        raise _Refused("the batch is empty")
    if family is not None and family not in FAMILIES:
        raise _Refused(f"there is no such family; allowed are {', '.join(FAMILIES)}")
    question = question_of(problem, gpu, allows_tf32(), channels_last)
    tuned = _answers(gpu)
    insists = family is not None or settings().insists
    if not insists and (reason := was_slower(question, tuned, gpu)):
        raise _Refused(reason)
    families = (family,) if family else tuple(FAMILIES)
    plan = choose(question, gpu, families, tuned)
    if not insists and (reason := why_pytorch(question, plan, gpu)):
        raise _Refused(reason)
    return plan


def _answers(gpu: Gpu) -> Answers:
    """What `tconv tune` measured on such a GPU."""
    from tconv.jit.tuned import answers

    return answers(gpu.name)


def _gpu_under(tensor: Tensor) -> Gpu:
    if torch.version.cuda is None:
        raise _Refused("this PyTorch is not built for CUDA")
    from tconv.jit.loader import gpu_of

    return gpu_of(tensor.get_device())


def _conversions(tensors: dict[str, Tensor], memory_format: torch.memory_format, directly: bool) -> tuple[str, ...]:
    copied = tuple(
        f"{name} is copied to contiguous"
        for name, tensor in tensors.items()
        if not tensor.is_contiguous()
        and not (directly and name == "input")
        and not (name == "weight" and lies_last(tensor))
    )
    if memory_format == torch.contiguous_format or directly:
        return copied
    return (*copied, f"the result is copied to {_name(memory_format)}, the format of PyTorch's result")


def _name(value: torch.dtype | torch.memory_format) -> str:
    return str(value).removeprefix("torch.")
