"""Epilogues: arithmetic on a transposed convolution's result, as a Python function, run in the layer's kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tconv import ops, routes
from tconv.dispatch import passing_mode
from tconv.errors import InvalidProgram
from tconv.pointwise.derivative import BY_RESULT, Computed, Gradient
from tconv.pointwise.graph import Reader
from tconv.precision import allows_tf32

_log = logging.getLogger("tconv")
_MOST_TRACED = 256
#: Of what is summed for a gradient, so many bytes are there at once.
_SUMMED_BYTES = 128 * 2**20
#: In evaluation, a scale and a shift of each channel.
_DECOMPOSED = (
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._native_batch_norm_legit,
    torch.ops.aten._native_batch_norm_legit_no_training,
    torch.ops.aten.cudnn_batch_norm,
)


@dataclass(frozen=True)
class Traced:
    """What a function computes of tensors of certain shapes.

    Args:
        program: the text of its program; each operation is rounded as the sums are, and the result once.
        operands: gives, of the function's further arguments, what the program reads.
        function: of the layer's result and of these, as it was traced: whatever it reads may change, and
            this does not.
        gradient: of the program; None where PyTorch differentiates `function`.
        promoted_from: the layer's type of 16 bits where the result is float32, as under autocast with float32
            parameters; None where both have one type.
    """

    program: str
    operands: Callable[..., Sequence[Tensor]]
    function: Callable[..., Tensor]
    gradient: Gradient | None
    promoted_from: torch.dtype | None = None


class Epilogue:
    """A function of a layer's result, elementwise, and of further tensors.

    ::

        epilogue = tconv.Epilogue(lambda y, skip: torch.relu(y) + skip)
        y = tconv.conv_transpose2d(x, weight, bias, stride=2, epilogue=epilogue, epilogue_inputs=(skip,))

    equals ``torch.relu(torch.nn.functional.conv_transpose2d(x, weight, bias, stride=2)) + skip``, in one kernel. The
    function is traced with PyTorch's `make_fx`, as FlexAttention traces its ``score_mod``, at its first call with
    tensors of such shapes: it must compute the same of the same, and must not look at numbers.

    Args:
        function: takes the result of the layer, with its bias, and the further tensors, each of which must broadcast
            to the result. What it computes without the result runs by itself.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function
        self._traced: dict[Any, Traced] = {}

    def __call__(self, y: Tensor, *inputs: Tensor) -> Tensor:
        """The function itself."""
        return self._function(y, *inputs)

    def traced(
        self, dims: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device, inputs: Sequence[Tensor]
    ) -> Traced:
        """What it computes of a result like this, with so many spatial axes, and of such further tensors.

        Raises:
            InvalidProgram: the language has no program for it; the message names the operation.
        """
        casts = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")  # of the function's own steps
        metadata = ((t.shape, t.stride(), t.dtype, t.device) for t in inputs)
        key = (dims, tuple(shape), dtype, device, casts, *metadata)
        found = self._traced.get(key)
        if found is None:
            if len(self._traced) >= _MOST_TRACED:
                self._traced.clear()
            found = self._traced[key] = _trace(self._function, dims, tuple(shape), dtype, device, inputs)
        return found


def conv_transpose(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *arguments: Any,
    epilogue: Epilogue,
    epilogue_inputs: Sequence[Tensor] = (),
) -> Tensor:
    """``epilogue(conv_transposeNd(…), *epilogue_inputs)``, in the layer's kernel where tconv runs the layer.

    Where PyTorch traces, and where PyTorch's operator runs the layer, it is computed as that says.

    Raises:
        InvalidProgram: the language has no program for the epilogue; the message names the operation.
    """
    reason = why_apart(input)
    if reason is None:
        cast = ops.autocast(input, weight, bias)
        batched = cast[0] if input.dim() == dims + 2 else cast[0].unsqueeze(0)
        shape = result_shape(dims, batched, weight, arguments)
        if shape is None:
            return ops.conv_transpose(dims, input, weight, bias, *arguments)  # raises PyTorch's error
        shape = shape if input.dim() == dims + 2 else shape[1:]
        traced = epilogue.traced(dims, shape, cast[0].dtype, cast[0].device, epilogue_inputs)
        reason = why_not_promoted(traced)
        if reason is None:
            operands, tensors = traced.operands(*epilogue_inputs), (batched, *cast[1:])
            if traced.promoted_from:
                # TF32 holds 16-bit operands, so the kernel for float32 has exact products.
                x, w, b = tensors
                tensors = x.float(), w.float(), None if b is None else b.float()
                operands = [t.float() for t in operands]
            route = routes.find_route(dims, *tensors, arguments, traced.program)
            if route is not None:
                result = _run(route, traced, shape, *tensors, operands)
                return result if input.dim() == dims + 2 else result.squeeze(0)
            reason = "PyTorch's operator runs the layer"
    if not torch.compiler.is_compiling():
        _log.debug("the epilogue runs by itself: %s", reason)
    return epilogue(ops.conv_transpose(dims, input, weight, bias, *arguments), *epilogue_inputs)


def _run(
    route: routes.Route,
    traced: Traced,
    shape: tuple[int, ...],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    operands: Sequence[Tensor],
) -> Tensor:
    """The batched result, with a gradient if one is asked for."""
    tensors = (input, weight, bias, *operands)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        result: Tensor = _Fused.apply(route, traced, shape, input, weight, bias, *operands)  # type: ignore[no-untyped-call]
        return result
    return routes.run_with_epilogue(route, input, weight, bias, operands)


class _Fused(torch.autograd.Function):
    """A layer and its epilogue in one kernel, and so their gradients where they are known (`Gradient`).

    Else the layer is computed again, and PyTorch differentiates the epilogue as it was traced. Everything is by the
    same tile, so that what is computed again is equal, also at kinks.
    """

    @staticmethod
    def forward(ctx: Any, route: routes.Route, traced: Traced, shape: tuple[int, ...], *tensors: Any) -> Tensor:
        input, weight, bias, *operands = tensors
        result = routes.run_with_epilogue(route, input, weight, bias, operands)
        by_result = traced.gradient is not None and traced.gradient.function
        ctx.save_for_backward(*tensors, result if by_result else None)
        ctx.route, ctx.traced, ctx.shape = route, traced, shape
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *saved, result = ctx.saved_tensors
        again, needed = torch.is_grad_enabled(), ctx.needs_input_grad[3:]  # again: of these gradients, too
        if ctx.traced.gradient is not None and not again:
            return (None, None, None, *_known(ctx, gradient, needed, saved, result))
        with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
            # Views, as one tensor may be several of these.
            given: list[Any] = [t if t is None else t.view_as(t) if again else t.detach() for t in saved]
            wanted = [t for t, need in zip(given, needed, strict=True) if need]
            for t in () if again else wanted:
                t.requires_grad_()
            y = routes.run(ctx.route.with_epilogue(""), *given[:3])
            result = ctx.traced.function(y.reshape(ctx.shape), *given[3:])
        of_shape = gradient.reshape(ctx.shape)
        found = iter(torch.autograd.grad(result, wanted, of_shape, create_graph=again, allow_unused=True))
        return (None, None, None, *(next(found) if need else None for need in needed))


def _known(
    ctx: Any, gradient: Tensor, needed: Sequence[bool], saved: Sequence[Any], result: Tensor | None
) -> Iterator[Tensor | None]:
    """The gradients of input, weight, bias and operands, by kernels or from the result: those that are needed."""
    input, weight, bias, *operands = saved
    route, known = ctx.route, ctx.traced.gradient
    sources = [source if need else None for source, need in zip(known.sources, needed[3:], strict=True)]
    of_layer = gradient
    if any(needed[:3]) or any(source and source[0] == "layer" for source in sources):
        of_layer = _of_layer(route, known, saved, gradient, result)
    sums: dict[Any, Tensor] = {}

    def summed(of_what: str, shape: tuple[int, ...]) -> Tensor:
        """The bias and what is added for each channel have the same sum, each its own copy."""
        known_sum = sums.get((of_what, shape))
        if known_sum is not None:
            return known_sum.clone()
        return sums.setdefault((of_what, shape), (of_layer if of_what == "layer" else gradient).sum_to_size(shape))

    channels = (1, route.output_shape[1], *(1 for _ in route.output_shape[2:]))
    shares = needed[2] and any(
        source is not None and source[0] == "layer" and shape == channels != route.output_shape
        for source, shape in zip(sources, route.operand_shapes, strict=True)
    )
    wanted = (*needed[:2], needed[2] and not shares)
    of_inputs: Sequence[Tensor | None] = (None, None, None)
    if any(wanted):
        bias_sizes = None if bias is None else list(bias.shape)
        # In the layer's type, as PyTorch computes them.
        of_type = ctx.traced.promoted_from or input.dtype
        own = of_layer.to(of_type), input.to(of_type), weight.to(of_type)
        of_inputs = routes.layer_gradients(*own, bias_sizes, route.arguments, wanted)
    yield from of_inputs[:2]
    yield summed("layer", channels).reshape(bias.shape) if shares else of_inputs[2]
    for operand, shape, source in zip(operands, route.operand_shapes, sources, strict=True):
        if source is None:
            yield None
            continue
        if isinstance(source, Computed):
            part = _summed(route, source, saved, gradient, shape)
        else:
            of_what, factor = source
            whole = of_layer if of_what == "layer" else gradient
            part = whole if shape == route.output_shape else summed(of_what, shape)
            part = part if factor == 1 else part * factor
        # A number on the CPU goes with tensors of any device.
        yield part.reshape(operand.shape).to(operand.device, operand.dtype)


def _of_layer(
    route: routes.Route, known: Gradient, saved: Sequence[Any], gradient: Tensor, result: Tensor | None
) -> Tensor:
    """The gradient of the layer's result."""
    if known.function is None:
        return _computed(route, known.of_sum, saved, gradient)
    if known.function:
        operator, numbers = BY_RESULT[known.function]
        gradient = getattr(torch.ops.aten, operator)(gradient, result, *numbers)
    return gradient if known.factor == 1 else gradient * known.factor


def _computed(route: routes.Route, part: Computed, saved: Sequence[Any], gradient: Tensor) -> Tensor:
    """A gradient that a program gives, for each of the layer's outputs."""
    input, weight, bias, *operands = saved
    fused = route.with_epilogue(part.program.text, input.shape[0])
    return routes.run_with_epilogue(fused, input, weight, bias, [*(operands[place] for place in part.reads), gradient])


def _summed(
    route: routes.Route, part: Computed, saved: Sequence[Any], gradient: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """The same, summed to that shape: in slices of the batch, so that what is summed takes little memory."""
    if shape == route.output_shape:
        return _computed(route, part, saved, gradient)
    input, weight, bias, *operands = saved
    # A number on the CPU, or one of an axis less, has no samples.
    operands = [t.reshape(like) for t, like in zip(operands, route.operand_shapes, strict=True)]
    samples = max(1, _SUMMED_BYTES // (gradient[:1].numel() * gradient.element_size()))
    sums = []
    for first in range(0, input.shape[0], samples):
        own = slice(first, first + samples)
        of_slice = [t[own] if t.shape[0] > 1 else t for t in operands]
        found = _computed(route, part, (input[own], weight, bias, *of_slice), gradient[own])
        wide = torch.promote_types(found.dtype, torch.float32)
        sums.append(found.sum(tuple(range(2, found.dim())), keepdim=True, dtype=wide))
    return torch.cat(sums).sum_to_size(shape)


def result_shape(dims: int, input: Tensor, weight: Tensor, arguments: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Of a batched call; None for arguments that PyTorch refuses."""
    stride, padding, output_padding, groups, dilation = arguments
    lists = [routes.as_list(values, dims) for values in (stride, padding, output_padding, dilation)]
    try:
        shape = routes.result_shape(input, weight, *lists[:3], groups, lists[3])
    except (TypeError, ValueError):
        return None
    return shape if len(shape) == dims + 2 and min(shape) >= 0 else None


def why_apart(input: Tensor, anywhere: bool = False) -> str | None:
    """Why a layer and its epilogue cannot be one kernel, whatever they compute; None where they can.

    Args:
        anywhere: the tensors stand for others on a GPU.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return "PyTorch traces the call"
    if not anywhere and not (isinstance(input, Tensor) and input.is_cuda):
        return "the input is on no CUDA GPU"
    return passing_mode()


def why_not_promoted(traced: Traced) -> str | None:
    """Why no kernel computes a result that is promoted to float32; None where one may, and where none is promoted."""
    if traced.promoted_from and not allows_tf32():
        return "its result is float32, and flags forbid TF32, in which the kernel for that computes"
    return None


def _trace(
    function: Callable[..., Tensor],
    dims: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    inputs: Sequence[Tensor],
) -> Traced:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(t.detach()) for t in inputs]
        y = torch.empty(shape, dtype=dtype, device=device)
        decompositions: Any = get_decompositions(_DECOMPOSED)
        # Of what takes any number of arguments; those with defaults it would ask for.
        module = make_fx(lambda *tensors: function(*tensors), decompositions, _allow_non_fake_inputs=True)(y, *fakes)
    for node in module.graph.nodes:  # of tensors that the function holds; PyTorch 2.6 does not say what they are
        if node.op == "get_attr" and "val" not in node.meta:
            node.meta["val"] = getattr(module, node.target)
    start, *further = (node for node in module.graph.nodes if node.op == "placeholder")
    result = module.graph.output_node().args[0]
    if not isinstance(result, Node):
        raise InvalidProgram("the function gives no tensor; an epilogue gives one")
    _check_result(result, shape, dtype)
    promoted = result.meta["val"].dtype != dtype
    reader, wanted = Reader(start, dims, promoted), _ancestors(result)
    if start not in wanted:
        raise InvalidProgram("the function's result does not depend on the layer's")
    for node in module.graph.nodes:
        if node in wanted and reader.is_next(node):
            reader.read(node)
    function = _function(module, start, reader.operands, result)
    return Traced(
        reader.program(result).text,
        _before(module, further, reader.operands),
        function,
        reader.gradient(result),
        dtype if promoted else None,
    )


def _check_result(result: Node, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    value = result.meta["val"]
    if value.shape != shape:
        raise InvalidProgram(f"the function's result has the shape {tuple(value.shape)}, and the layer's {shape}")
    if value.dtype != dtype and not (value.dtype == torch.float32 and dtype.itemsize == 2):
        raise InvalidProgram(f"the function's result is {value.dtype}, and the layer's {dtype}; cast it")


def _ancestors(node: Node) -> set[Node]:
    """A node and all that it is computed of."""
    found: set[Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending += current.all_input_nodes
    return found


def _before(module: GraphModule, further: list[Node], outside: list[Node]) -> Callable[..., Sequence[Tensor]]:
    """What computes the tensors that a program reads of the function's further arguments."""
    if all(node in further for node in outside):
        places = [further.index(node) for node in outside]
        return lambda *inputs: [inputs[place] for place in places]
    wanted = set[Node]().union(*map(_ancestors, outside))
    graph, copies = Graph(), dict[Node, Node]()
    for node in module.graph.nodes:
        if node in further or node in wanted:
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    graph.output([copies[node] for node in outside])
    return GraphModule(module, graph)


def _function(module: GraphModule, start: Node, outside: list[Node], result: Node) -> Callable[..., Tensor]:
    """The function of the layer's result and of what its program reads, which stand for themselves here."""
    graph, copies = Graph(), dict[Node, Node]()
    for node in (start, *outside):
        copies[node] = graph.placeholder(node.name)
    pending, wanted = [result], set[Node]()
    while pending:
        node = pending.pop()
        if node not in wanted and node not in copies:
            wanted.add(node)
            pending += node.all_input_nodes
    for node in module.graph.nodes:
        if node in wanted:
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    graph.output(copies[result])
    return GraphModule(module, graph)
