"""How a call on a GPU runs: its route, which is planned once for each metadata, its launch, and its gradients.

In plain eager mode a warm call is one look-up, one allocation and the launch, and one more of each where a kernel has
its weights prepared that are not frozen.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import _C, Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from tconv.dispatch import Decision, decide
from tconv.errors import InvalidProgram
from tconv.jit.allocation import empty
from tconv.memory import VECTOR_BYTES, aligned
from tconv.metadata import alike, has_memory
from tconv.planner import FAMILIES
from tconv.planner.choice import reads_channels_last
from tconv.pointwise.evaluate import shape_of
from tconv.pointwise.program import parse
from tconv.precision import allows_tf32
from tconv.weights import layout_of

if TYPE_CHECKING:
    from tconv.jit.loader import Launcher
    from tconv.planner import Plan
    from tconv.problem import Problem

_log = logging.getLogger("tconv")
_MOST_ROUTES = 4096
#: Of one layer, so many calls are recognised without a look at what their tensors are.
_MOST_SEEN = 4


@dataclass(frozen=True)
class Route:
    """A call's plan, ready to run.

    Args:
        plan: what is launched.
        device: the index of the tensors' device.
        launcher: of the plan, there.
        launch: runs a batched call on the kernel, `_launch_of`.
        output_shape: of the batched result.
        memory_format: of the result.
        arguments: stride, padding, output_padding, groups, dilation, one integer an axis.
        copies: some tensor does not lie as the kernel reads it.
        directly: the kernel reads and writes channels_last; else contiguous tensors.
        operand_shapes: of what the layer's program reads.
        layout: of the weights that the kernel takes; empty where it takes them as they are.
        others: by programs and batch sizes, what runs these behind the layer instead, on the same tile.
    """

    plan: Plan
    device: int
    launcher: Launcher
    launch: Callable[..., Tensor]
    output_shape: tuple[int, ...]
    memory_format: torch.memory_format
    arguments: tuple[Any, ...]
    copies: bool
    directly: bool = False
    operand_shapes: tuple[tuple[int, ...], ...] = ()
    layout: str = ""
    others: dict[tuple[str, int], Route] = field(default_factory=dict, compare=False, repr=False)

    def with_epilogue(self, epilogue: str, batch: int | None = None) -> Route:
        """The route of the same call with another program behind the layer, of all samples or so many of them."""
        problem, kernel = self.plan.problem, self.plan.kernel
        key = (epilogue, batch or problem.batch)
        if key not in self.others:
            plan = replace(
                self.plan,
                problem=replace(problem, batch=key[1], layer=replace(problem.layer, epilogue=epilogue)),
                kernel=replace(kernel, layer=replace(kernel.layer, epilogue=epilogue)),
            )
            self.others[key] = _route_of(plan, self.device, self.memory_format, self.copies)
        return self.others[key]


class Noted(NamedTuple):
    """What a call would launch, and on which device."""

    plan: Plan
    device: int


class _Seen(NamedTuple):
    """A call of a layer's parameters, and the route that it took.

    Args:
        arguments: as of `conv_transpose`, immutable: the same objects are the same arguments.
        rounds: whether PyTorch might round float32 products to TF32; None where there are none.
        alike: of its tensors, as `tconv.metadata.alike` gives it.
        plain: nothing but its route was between the call and its launch, as `plain_route` says.
    """

    arguments: tuple[Any, ...]
    rounds: bool | None
    alike: Callable[..., bool]
    route: Route | None
    plain: bool


#: By metadata of the call, its route: None where PyTorch's operator runs. By the identities of a layer's parameters,
#: which say nothing but where to look, the calls that were last seen.
_routes: dict[Any, Any] = {}
_noted: ContextVar[list[Noted] | None] = ContextVar("noted", default=None)
_UNSEEN: Any = object()
_INTEGERS = frozenset({int})
_PLAIN = frozenset({Tensor, Parameter})


def find_route(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    arguments: tuple[Any, ...],
    epilogue: str = "",
    into: int = 0,
    plain: bool = False,
) -> Route | None:
    """The route of a call, from the cache if a call of the same metadata was seen; None if PyTorch's operator runs.

    Args:
        epilogue: the text of the program that the kernel applies to its results.
        into: how many channels the tensor has of which the result is a slice; 0 where it is all of it.
        plain: `run` is all that is left of the call, and `plain_route` may find it next time: no mode is on, nothing
            was cast, and there is a batch.
    """
    of_parameters = (dims, id(weight), id(bias), epilogue, into) if type(weight) is Parameter else None
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if (seen := _recognised(of_parameters, tensors, arguments, plain)) is not None:
        return seen.route
    try:
        of_bias = None if bias is None else _metadata(bias)
        rounds = input.dtype is torch.float32 and allows_tf32()
        key = (dims, rounds, epilogue, into, _metadata(input), _metadata(weight), of_bias, *map(_plain, arguments))
    except (AttributeError, RuntimeError, TypeError):  # a tensor without strides, an argument of an odd type
        _log.debug("PyTorch runs: %s", decide(input, weight, bias, *arguments, spatial_dims=dims).reason)
        return None
    route: Route | None = _routes.get(key, _UNSEEN)
    if route is _UNSEEN:
        if (noted := _noted.get()) is not None:
            _note(
                noted, decide(input, weight, bias, *arguments, spatial_dims=dims, epilogue=epilogue, into=into), input
            )
            return None
        route = _new_route(dims, input, weight, bias, arguments, epilogue, into)
        _keep(key, route)
    mutable = any(isinstance(argument, list) for argument in arguments)
    if of_parameters is not None and not mutable and _PLAIN.issuperset(map(type, tensors)):
        rounds_at_all = rounds if input.dtype is torch.float32 else None
        seen = _Seen(arguments, rounds_at_all, alike(*tensors), route, plain and route is not None)
        _keep(of_parameters, (seen, *_routes.get(of_parameters, ())[: _MOST_SEEN - 1]))
    return route


def plain_route(
    dims: int, input: Tensor, weight: Tensor, bias: Tensor | None, arguments: tuple[Any, ...]
) -> Route | None:
    """The route of a warm call of which `run` is all that is left: one look decides. None says nothing.

    Its tensors and PyTorch's modes are as they were in a call that `find_route` was told to be plain: the guards of
    `alike` compare what autocast, functorch and tracing set, too. Some dispatch modes and forward-mode differentiation
    do not show there.
    """
    if forward_ad._current_level >= 0 or _C._len_torch_dispatch_stack():
        return None
    tensors = (input, weight) if bias is None else (input, weight, bias)
    seen = _recognised((dims, id(weight), id(bias), "", 0), tensors, arguments, True)
    return None if seen is None else seen.route


def _recognised(
    of_parameters: Any, tensors: tuple[Tensor, ...], arguments: tuple[Any, ...], plain: bool
) -> _Seen | None:
    """The call like this one that was seen last, of the plain ones alone or of all; None if there is none."""
    # Written out, in every warm call: all() of a map takes a quarter of a microsecond more.
    stride, padding, output_padding, groups, dilation = arguments
    seen: _Seen
    for seen in _routes.get(of_parameters, ()):
        given, rounds, are_alike, _, was_plain = seen
        if (
            (was_plain or not plain)
            and stride is given[0]
            and padding is given[1]
            and output_padding is given[2]
            and groups is given[3]
            and dilation is given[4]
            and are_alike(*tensors)
            and (rounds is None or rounds == allows_tf32())
        ):
            return seen
    return None


def _keep(key: Any, value: Any) -> None:
    if len(_routes) >= _MOST_ROUTES:  # lengths that never repeat, and layers that are gone, must not fill the memory
        _routes.clear()
    _routes[key] = value


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """While it is entered, PyTorch's operator runs the calls of this thread that were not seen before, and what they
    would launch is noted: nothing is compiled or loaded."""
    noted: list[Noted] = []
    before = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(before)


def _note(noted: list[Noted], decision: Decision, input: Tensor) -> None:
    if decision.plan is None:
        return
    problem = decision.plan.problem
    # A call with an epilogue that PyTorch runs calls the layer alone next: that is no call of its own.
    if problem.layer.epilogue or not noted or _sizes_of(noted[-1].plan.problem) != _sizes_of(problem):
        noted.append(Noted(decision.plan, input.get_device()))


def _sizes_of(problem: Problem) -> Problem:
    """The problem without what an epilogue changes: its program, its place, and the type that it promotes to."""
    layer = replace(problem.layer, epilogue="", precision="fp32")
    return replace(problem, layer=layer, into=0)


def _metadata(tensor: Tensor) -> tuple[Any, ...]:
    kind = type(tensor), tensor.is_neg(), has_memory(tensor)
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), *kind


def _plain(argument: Any) -> int | tuple[int, ...]:
    """An argument as part of a key. True, 1.0 and 1 are equal keys and not equal arguments: only integers pass."""
    if type(argument) is int:
        return argument
    if isinstance(argument, (tuple, list)) and _INTEGERS.issuperset(map(type, argument)):
        return tuple(argument)
    raise TypeError(argument)


def _new_route(
    dims: int, input: Tensor, weight: Tensor, bias: Tensor | None, arguments: tuple[Any, ...], epilogue: str, into: int
) -> Route | None:
    started = time.perf_counter()
    decision = decide(input, weight, bias, *arguments, spatial_dims=dims, epilogue=epilogue, into=into)
    _log.debug("%s: %s", "PyTorch runs" if decision.plan is None else "tconv runs", decision.reason)
    if decision.plan is None:
        return None
    plan = decision.plan
    copies = not (
        (reads_channels_last(plan) or input.is_contiguous())
        and (plan.kernel.layer.weights_last or weight.is_contiguous())
        and (bias is None or bias.is_contiguous())
    )
    planned = time.perf_counter() - started
    return _route_of(plan, input.get_device(), decision.memory_format, copies, planned)


def _route_of(
    plan: Plan, device: int, memory_format: torch.memory_format, copies: bool, planned_seconds: float = 0.0
) -> Route:
    from tconv.jit.loader import launcher

    started = time.perf_counter()
    layer, epilogue, used = (
        plan.problem.layer,
        plan.problem.layer.epilogue,
        slice(3 - plan.problem.layer.spatial_dims, 3),
    )
    found, directly = launcher(plan, device), reads_channels_last(plan)
    _log.info(
        "first call of %s on %s: planned in %.3f s, kernel compiled or found and loaded in %.2f s",
        *(layer.describe(), "x".join(map(str, plan.problem.input_shape))),
        *(planned_seconds, time.perf_counter() - started),
    )
    return Route(
        plan=plan,
        device=device,
        launcher=found,
        launch=_launch_of(plan, device, found, memory_format, copies),
        output_shape=plan.problem.output_shape,
        memory_format=memory_format,
        arguments=(
            layer.stride[used],
            layer.padding[used],
            plan.problem.output_padding[used],
            layer.groups,
            layer.dilation[used],
        ),
        copies=copies,
        directly=directly,
        operand_shapes=tuple(shape_of(read.kind, plan.problem.output_shape) for read in parse(epilogue).operands)
        if epilogue
        else (),
        layout=layout_of(plan),
    )


def _launch_of(
    plan: Plan, device: int, launcher: Launcher, memory_format: torch.memory_format, copies: bool
) -> Callable[..., Tensor]:
    """A function that runs a batched call of a plan; no gradient follows it.

    Its arguments are input, weight, bias, and
        prepared: as of `run`,
        operands: what the program reads, as the kernel takes it,
        output: where the result goes; a tensor of its own if None.
    """
    shape, directly, last = plan.problem.output_shape, reads_channels_last(plan), plan.kernel.layer.weights_last
    enqueue, enqueue_prepared = launcher.enqueue, launcher.enqueue_prepared
    current_device, current_stream = _C._cuda_getDevice, _C._cuda_getCurrentRawStream
    strides = torch.empty(
        shape, device="meta", memory_format=memory_format if directly else torch.contiguous_format
    ).stride()
    as_written = directly or memory_format is torch.contiguous_format
    loaded_together = VECTOR_BYTES if FAMILIES[plan.kernel.family].alignment > 1 else 1

    def launch(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        prepared: int = 0,
        operands: Sequence[Tensor] = (),
        output: Tensor | None = None,
    ) -> Tensor:
        if current_device() != device:
            with torch.cuda.device(device):
                return launch(input, weight, bias, prepared, operands, output)
        if copies:
            input = input if directly else input.contiguous()
            weight = weight if prepared or last else weight.contiguous()
            bias = bias if bias is None else bias.contiguous()
        x, of_weight = input.data_ptr(), prepared or weight.data_ptr()
        if (x | of_weight) % loaded_together:
            input, weight = aligned(input), weight if prepared else aligned(weight)
            x, of_weight = input.data_ptr(), prepared or weight.data_ptr()
        y = empty(shape, strides, input.dtype) if output is None else output
        of_kernel = enqueue_prepared if prepared else enqueue
        of_bias = 0 if bias is None else bias.data_ptr()
        if operands:  # else without a star, which costs the host 0.15 us
            read = [operand.data_ptr() for operand in operands]
            of_kernel(current_stream(device), x, of_weight, of_bias, y.data_ptr(), *read)
        else:
            of_kernel(current_stream(device), x, of_weight, of_bias, y.data_ptr())
        return y if as_written or output is not None else y.contiguous(memory_format=memory_format)

    return launch


def run(route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, prepared: int = 0) -> Tensor:
    """Runs a batched call on its kernel, with a gradient if one is asked for.

    Args:
        prepared: the address of the weights as the kernel takes them; 0 where they are prepared for this call.
    """
    if torch.is_grad_enabled() and (
        input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        result: Tensor = _apply(route, prepared, input, weight, bias)
        return result
    return route.launch(input, weight, bias, prepared)


# Gradients. Forward is ours, backward PyTorch's own, which is differentiable in turn.


def layer_gradients(
    gradient: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    arguments: Sequence[Any],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Of input, weight and bias of a batched call, those that are wanted, by the gradient of what the layer gives."""
    stride, padding, output_padding, groups, dilation = arguments
    found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        gradient, input, weight, bias_sizes, stride, padding, dilation, True, output_padding, groups, list(wanted)
    )
    return found


class _ConvTranspose(torch.autograd.Function):
    # A setup_context of its own would let functorch in, which does not come here, and cost 15 us a call.
    @staticmethod
    def forward(ctx: Any, route: Route, prepared: int, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.arguments, ctx.bias_sizes = route.arguments, None if bias is None else list(bias.shape)
        return route.launch(input, weight, bias, prepared)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        return (None, None, *layer_gradients(gradient, input, weight, ctx.bias_sizes, ctx.arguments, wanted))


#: Function.apply first asks for functorch and for its wrappers, which have no route: this saves 3 us.
_apply: Callable[..., Any] = super(torch.autograd.Function, _ConvTranspose).apply


def fused(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    arguments: tuple[Any, ...],
    epilogue: str,
    operands: Sequence[Tensor],
    prepared: Sequence[Tensor] = (),
    layouts: Sequence[str] = (),
) -> Tensor | None:
    """A batched transposed convolution on a GPU and a program of its results, in one kernel; None if PyTorch runs it.

    Args:
        arguments: as of `conv_transpose`.
        epilogue: the program's text.
        operands: what it reads, of the input's dtype.
        prepared: the weights as kernels take them that have one of these layouts.

    Raises:
        InvalidProgram: there are more or fewer operands than it reads, or one has another size or dtype.
    """
    route = find_route(dims, input, weight, bias, arguments, epilogue)
    if route is None:
        return None
    address = prepared[layouts.index(route.layout)].data_ptr() if route.layout in layouts else 0
    return run_with_epilogue(route, input, weight, bias, operands, address)


def run_with_epilogue(
    route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, operands: Sequence[Tensor], prepared: int = 0
) -> Tensor:
    """A batched call with the program of its route, which reads `operands`; no gradient follows it.

    Raises:
        InvalidProgram: as `fused`.
    """
    return route.launch(input, weight, bias, prepared, _as_read(operands, route, input))


def write(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    arguments: tuple[Any, ...],
    out: Tensor,
    place: tuple[int, bool],
    epilogue: str = "",
    operands: Sequence[Tensor] = (),
) -> bool:
    """Whether a kernel wrote the result of a batched call on a GPU to `out`, which has its shape, dtype and device.

    Args:
        place: of how many channels it is a slice, and whether they are the fastest axis.
        epilogue, operands: as of `fused`.

    Raises:
        InvalidProgram: as `fused`.
    """
    channels, last = place
    route = find_route(dims, input, weight, bias, arguments, epilogue, channels if channels > out.shape[1] else 0)
    if route is None or route.directly != last:
        return False
    route.launch(input, weight, bias, operands=_as_read(operands, route, input), output=out)
    return True


def _as_read(operands: Sequence[Tensor], route: Route, input: Tensor) -> list[Tensor]:
    """What a program reads, as its kernel takes it: of all outputs as they lie, of others one after the other."""
    if len(operands) != len(route.operand_shapes):
        raise InvalidProgram(f"got {len(operands)} operands; the program reads {len(route.operand_shapes)}")
    found = []
    for operand, shape in zip(operands, route.operand_shapes, strict=True):
        if operand.numel() != math.prod(shape) or operand.dtype != input.dtype:
            raise InvalidProgram(
                f"got an operand of shape {tuple(operand.shape)} and {operand.dtype}; it takes {shape}, {input.dtype}"
            )
        lies = route.memory_format if route.directly and shape == route.output_shape else torch.contiguous_format
        # A number on the CPU goes with tensors of any device.
        found.append(aligned(operand.to(input.device).reshape(shape).contiguous(memory_format=lies)))
    return found


def result_shape(input: Tensor, weight: Tensor, *arguments: Any) -> tuple[int, ...]:
    """Of a batched call with a list of integers an axis.

    Raises:
        ValueError: the input, the weight and the lists have different numbers of axes.
    """
    stride, padding, output_padding, groups, dilation = arguments
    sizes = [
        (size - 1) * step - 2 * pad + spread * (taps - 1) + extra + 1
        for size, taps, step, pad, extra, spread in zip(
            input.shape[2:], weight.shape[2:], stride, padding, output_padding, dilation, strict=True
        )
    ]
    return (input.shape[0], weight.shape[1] * groups, *sizes)


def as_list(values: Any, dims: int) -> list[int]:
    """An argument as one integer an axis."""
    if isinstance(values, (list, tuple)):
        return list(values) * (dims if len(values) == 1 else 1)
    return [values] * dims
