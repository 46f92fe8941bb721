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
from tconv.pointwise.graph import Reader

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
        shape = result_shape(dims, batched, weight, arguments)
        if shape is None:
            return ops.conv_transpose(dims, input, weight, bias, *arguments)  # raises PyTorch's error
        shape = shape if input.dim() == dims + 2 else shape[1:]
        traced = tail.traced(dims, shape, cast[0].dtype, cast[0].device, tail_inputs)
        operands = traced.operands(*tail_inputs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
            reason = "a gradient is asked for, of a tensor that the function holds"
        else:
            result = ops.fused(dims, batched, *cast[1:], arguments, traced.program, operands)
            if result is not None:
                return result if input.dim() == dims + 2 else result.squeeze(0)
            reason = "PyTorch's operator runs the layer"
    if not torch.compiler.is_compiling():
        _log.debug("the tail runs by itself: %s", reason)
    return tail(ops.conv_transpose(dims, input, weight, bias, *arguments), *tail_inputs)


def result_shape(dims: int, input: Tensor, weight: Tensor, arguments: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Of a batched call; None for arguments that PyTorch refuses."""
    stride, padding, output_padding, groups, dilation = arguments
    lists = [ops.as_list(values, dims) for values in (stride, padding, output_padding, dilation)]
    try:
        shape = ops.result_shape(input, weight, *lists[:3], groups, lists[3])
    except (TypeError, ValueError):
        return None
    return shape if len(shape) == dims + 2 and min(shape) >= 0 else None


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
        raise InvalidProgram("the function gives no tensor; a tail gives one")
    _check_result(result, shape, dtype)
    reader, wanted = Reader(start, dims), _ancestors(result)
    if start not in wanted:
        raise InvalidProgram("the function's result does not depend on the layer's")
    for node in module.graph.nodes:
        if node in wanted and reader.is_next(node):
            reader.read(node)
    return Traced(reader.program(result).text, _before(module, further, reader.operands))


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
