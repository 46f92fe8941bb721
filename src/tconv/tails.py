"""Arithmetic behind a transposed convolution, written as a Python function, which runs in the layer's kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tconv import ops
from tconv.dispatch import passing_mode
from tconv.errors import InvalidProgram
from tconv.pointwise.evaluate import kind_of
from tconv.pointwise.graph import Reader
from tconv.pointwise.program import Builder

_log = logging.getLogger("tconv")
_MOST_TRACED = 256
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
    """

    program: str
    operands: Callable[..., Sequence[Tensor]]


class Tail:
    """A function of a layer's result, elementwise, and of further tensors.

    ::

        tail = tconv.Tail(lambda y, skip: torch.relu(y) + skip)
        y = tconv.conv_transpose2d(x, weight, bias, stride=2, tail=tail, tail_inputs=(skip,))

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

    def traced(self, dims: int, shape: Sequence[int], dtype: torch.dtype, inputs: Sequence[Tensor]) -> Traced:
        """What it computes of a result of this shape and dtype, with so many spatial axes, and of such further tensors.

        Raises:
            InvalidProgram: the language has no program for it; the message names the operation.
        """
        key = (dims, tuple(shape), dtype, *((t.shape, t.stride(), t.dtype, t.device) for t in inputs))
        found = self._traced.get(key)
        if found is None:
            if len(self._traced) >= _MOST_TRACED:
                self._traced.clear()
            found = self._traced[key] = _trace(self._function, dims, tuple(shape), dtype, inputs)
        return found


def conv_transpose(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *arguments: Any,
    tail: Tail,
    tail_inputs: Sequence[Tensor] = (),
) -> Tensor:
    """``tail(conv_transposeNd(…), *tail_inputs)``, in the layer's kernel where tconv runs the layer.

    Where a gradient is asked for, where PyTorch traces, and where PyTorch's operator runs the layer, it is computed as
    that says.

    Raises:
        InvalidProgram: the language has no program for the tail; the message names the operation.
    """
    reason = why_apart(input, weight, bias, tail_inputs)
    if reason is None:
        cast = ops.autocast(input, weight, bias)
        batched = cast[0] if input.dim() == dims + 2 else cast[0].unsqueeze(0)
        route = ops.find_route(dims, batched, *cast[1:], arguments)
        if route is None:
            reason = "PyTorch's operator runs the layer"
        else:
            shape = route.output_shape if input.dim() == dims + 2 else route.output_shape[1:]
            traced = tail.traced(dims, shape, cast[0].dtype, tail_inputs)
            operands = [_batched(t, shape, dims) for t in traced.operands(*tail_inputs)]
            if not (torch.is_grad_enabled() and any(t.requires_grad for t in operands)):
                result = ops.fused(dims, batched, *cast[1:], arguments, traced.program, operands)
                return result if input.dim() == dims + 2 else result.squeeze(0)
            reason = "a gradient is asked for, of a tensor that the function holds"
    _log.debug("the tail runs by itself: %s", reason)
    return tail(ops.conv_transpose(dims, input, weight, bias, *arguments), *tail_inputs)


def why_apart(
    input: Tensor, weight: Tensor, bias: Tensor | None, tail_inputs: Sequence[Tensor], anywhere: bool = False
) -> str | None:
    """Why a layer and its tail cannot be one kernel, whatever they compute; None where they can.

    Args:
        anywhere: the tensors stand for others on a GPU.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return "PyTorch traces the call"
    if not anywhere and not (isinstance(input, Tensor) and input.is_cuda):
        return "the input is on no CUDA GPU"
    tensors = [t for t in (input, weight, bias, *tail_inputs) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "a gradient is asked for"
    return passing_mode()


def _batched(operand: Tensor, shape: Sequence[int], dims: int) -> Tensor:
    """An operand of an unbatched result as one of a batch of one."""
    if len(shape) == dims + 2:
        return operand
    return operand.reshape((1,) * (dims + 2 - operand.dim()) + operand.shape)


def _trace(
    function: Callable[..., Tensor], dims: int, shape: tuple[int, ...], dtype: torch.dtype, inputs: Sequence[Tensor]
) -> Traced:
    device = inputs[0].device if inputs else torch.device("cpu")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(t.detach()) for t in inputs]
        y = torch.empty(shape, dtype=dtype, device=device)
        decompositions: Any = get_decompositions(_DECOMPOSED)
        # Of what takes any number of arguments; those with defaults it would ask for.
        module = make_fx(lambda *tensors: function(*tensors), decompositions, _allow_non_fake_inputs=True)(y, *fakes)
    nodes = list(module.graph.nodes)
    start, *further = [node for node in nodes if node.op == "placeholder"]
    (result,) = nodes[-1].all_input_nodes if len(nodes[-1].all_input_nodes) == 1 else (None,)
    if result is None or nodes[-1].args[0] is not result:
        raise InvalidProgram("the function gives no tensor; a tail gives one")
    if start not in _ancestors(result):
        raise InvalidProgram("the function's result does not depend on the layer's")
    _check_result(result, shape, dtype)
    outside: list[Node] = []

    def operand(builder: Builder, node: Node) -> int:
        found = of_operand(node, dims, shape, dtype)
        if node not in outside:
            outside.append(node)
        return builder.operand(found, outside.index(node))

    reader = Reader(start, operand)
    wanted = _ancestors(result)
    for node in nodes:
        if node is not start and node in wanted and start in _ancestors(node):
            reader.read(node)
    program = reader.program(result)
    return Traced(program.text, _before(module, further, outside))


def of_operand(node: Node, dims: int, shape: Sequence[int], dtype: torch.dtype) -> Any:
    """The kind of a tensor that goes with results of this shape and type.

    Raises:
        InvalidProgram: it has another type, or does not broadcast.
    """
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        raise InvalidProgram(f"{node} is no tensor")
    if value.dtype != dtype:
        raise InvalidProgram(f"{node} is {value.dtype}, and the layer's result {dtype}; cast one of them")
    kind = kind_of(value.shape, shape, dims)
    if kind is None:
        raise InvalidProgram(
            f"{node} has the shape {tuple(value.shape)}; allowed are the result's, {tuple(shape)}, or one value for "
            "each sample and channel, for each channel, or for all: expand it"
        )
    return kind


def _check_result(result: Node, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    value = result.meta["val"]
    if value.shape != shape:
        raise InvalidProgram(f"the function's result has the shape {tuple(value.shape)}, and the layer's {shape}")
    if value.dtype != dtype:
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
