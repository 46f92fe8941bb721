"""``torch.compile(model, backend="tconv")``: Inductor, with transposed convolutions and what stands behind them fused.

The one place that knows what is not stable in torch: Inductor's compile function, its options and its graph passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node

from tconv import ops
from tconv.dispatch import PRECISION_OF, decide
from tconv.errors import InvalidProgram
from tconv.kernels.source import header_digest
from tconv.pointwise.graph import Reader
from tconv.pointwise.program import Program
from tconv.version import __version__

_log = logging.getLogger("tconv")
_PASS = "post_grad_custom_pre_pass"
_CONVOLUTION, _LAYER, _LAYER_WITH_TAIL = torch.ops.aten.convolution.default, ops.LAYER, ops.LAYER_WITH_TAIL


def backend(
    module: GraphModule,
    inputs: Sequence[Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What `torch.compile` calls for ``backend="tconv"``.

    Transposed convolutions run on tconv's kernels, those for which PyTorch is predicted to be faster excepted, and the
    elementwise operators behind them in the same kernel. Where a gradient is asked for nothing is changed.

    Args:
        mode, options: as those of Inductor: ``mode="reduce-overhead"``, ``options={"triton.cudagraphs": True}``.

    Equivalent to: ``torch.compile(model, mode=mode, options=options)``.
    """
    patches = {**(torch._inductor.list_mode_options(mode) if mode else {}), **(options or {})}
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
        _log.warning("a gradient is asked for: nothing is fused; call the model under torch.no_grad() where none is")
    else:
        patches[_PASS] = FuseTails(patches.get(_PASS))
    return torch._inductor.compile(module, list(inputs), options=patches)


class FuseTails(CustomGraphPass):
    """Replaces transposed convolutions, each with what stands behind it, in a graph of ATen's operators.

    Args:
        before: the user's own pass, which runs first.
    """

    def __init__(self, before: Callable[[Graph], None] | None = None) -> None:
        self.before = before

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        for layer in list(graph.nodes):
            call = _call_of(layer)
            if call is not None:
                _replace(graph, layer, call)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Of what it makes of a graph: Inductor's cache keeps that by it. None if the user's pass has none."""
        theirs = None
        if self.before is not None:
            theirs = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
            if theirs is None:
                return None
        return f"tconv {__version__} {header_digest()} {theirs}"


def _call_of(node: Node) -> tuple[Any, ...] | None:
    """The arguments of `tconv::conv_transpose` that compute a node; None if it is no transposed convolution."""
    if node.op != "call_function":
        return None
    if node.target is _LAYER:
        return tuple(node.args)
    if node.target is not _CONVOLUTION or not node.args[6]:
        return None
    input, weight, bias, stride, padding, dilation, _, output_padding, groups = node.args
    ours = _is_ours(node.meta.get("val"))
    return (input, weight, bias, stride, padding, output_padding, groups, dilation) if ours else None


def _is_ours(value: Any) -> bool:
    """Whether tconv has kernels for a result like this one."""
    return isinstance(value, Tensor) and value.is_cuda and value.dtype in PRECISION_OF


def _replace(graph: Graph, layer: Node, call: tuple[Any, ...]) -> None:
    reason = why_pytorch(call)
    if reason is not None:
        _log.info("PyTorch runs %s: %s", layer, reason)
        return
    found = list(tails(layer))
    result, program, operands = found[-1] if found else (layer, None, [])
    with graph.inserting_before(result):
        if program is None:
            fused = graph.call_function(_LAYER, call)
        else:
            fused = graph.call_function(_LAYER_WITH_TAIL, (*call, program.text, operands))
            _log.info("%s runs with what stands behind it: %s", layer, program)
    fused.meta.update(result.meta)
    result.replace_all_uses_with(fused)


def why_pytorch(call: tuple[Any, ...]) -> str | None:
    """Why PyTorch's operator should run a call; None if tconv runs it, or if that is decided when sizes are known."""
    input, weight = (node.meta["val"] for node in call[:2])
    bias = None if call[2] is None else call[2].meta["val"]
    if any(isinstance(size, torch.SymInt) for size in (*input.shape, *weight.shape)):
        return None
    from tconv.jit.loader import gpu_of

    decision = decide(input, weight, bias, *call[3:], gpu=gpu_of(input.device.index or 0))
    return None if decision.plan is not None else decision.reason


def tails(layer: Node) -> Iterator[tuple[Node, Program, list[Node]]]:
    """The programs that may run behind a layer, each longer than the one before, and what each reads.

    What comes before a program's result must not be needed elsewhere.
    """
    value = layer.meta["val"]
    reader, node = Reader(layer, value.dim() - 2), layer.next
    while node.op != "output":
        if reader.is_next(node):
            try:
                reader.read(node)
                found = node.meta.get("val")
                alike = isinstance(found, Tensor) and found.shape == value.shape and found.dtype == value.dtype
                if alike and reader.is_closed(node):
                    yield node, reader.program(node), list(reader.operands)
            except InvalidProgram as reason:
                _log.info("what stands behind %s runs by itself from %s on: %s", layer, node, reason)
                return
        node = node.next
