"""``torch.compile(model, backend="tconv")``: Inductor, with transposed convolutions and their epilogues fused.

The one place that knows what is not stable in torch: Inductor's compile function, its options and its graph passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from tconv import ops
from tconv.dispatch import PRECISION_OF, Decision, decide
from tconv.errors import InvalidProgram
from tconv.kernels.source import header_digest
from tconv.planner import Plan
from tconv.pointwise.graph import Reader
from tconv.pointwise.program import Program
from tconv.version import __version__
from tconv.weights import layout_of, prepare

_log = logging.getLogger("tconv")
_PASS, _PASS_BEFORE_FREEZING = "post_grad_custom_pre_pass", "joint_custom_pre_pass"
_CONVOLUTION = torch.ops.aten.convolution.default
_LAYER, _LAYER_WITH_EPILOGUE = ops.LAYER, ops.LAYER_WITH_EPILOGUE


def backend(
    module: GraphModule,
    inputs: Sequence[Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What `torch.compile` calls for ``backend="tconv"``.

    Transposed convolutions run on tconv's kernels, those for which PyTorch is predicted to be faster excepted, and the
    elementwise operators behind them in the same kernel. Where a gradient is asked for, backward is Inductor's, and
    what it keeps of a layer's result ends the chain. With ``torch._inductor.config.freezing`` weights are put into
    a kernel's order once, while the model is compiled.

    Args:
        mode, options: as those of Inductor: ``mode="reduce-overhead"``, ``options={"triton.cudagraphs": True}``.

    Equivalent to: ``torch.compile(model, mode=mode, options=options)``.
    """
    patches = {**(torch._inductor.list_mode_options(mode) if mode else {}), **(options or {})}
    if patches.get("freezing") and not torch._inductor.config.freezing:
        _log.warning("freezing among the options comes too late, weights are inputs already: set it in the config")
    patches[_PASS] = FuseEpilogues(patches.get(_PASS))
    if torch._inductor.config.freezing and not torch.is_grad_enabled():  # else it freezes nothing
        patches[_PASS_BEFORE_FREEZING] = TakeLayers(patches.get(_PASS_BEFORE_FREEZING))
    return torch._inductor.compile(module, list(inputs), options=patches)


class _LayerPass(CustomGraphPass):
    """Replaces transposed convolutions in a graph of ATen's operators.

    Args:
        before: the user's own pass, which runs first.
    """

    replace: Callable[[Graph, Node, tuple[Any, ...]], None]

    def __init__(self, before: Callable[[Graph], None] | None = None) -> None:
        self.before = before

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        for layer in list(graph.nodes):
            call = _call_of(layer)
            if call is not None:
                self.replace(graph, layer, call)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Of what it makes of a graph: Inductor's cache keeps that by it. None if the user's pass has none.

        None also where weights are frozen: Inductor keys their graphs without their values, and what is prepared of one
        model's would come to another's.
        """
        if torch._inductor.config.freezing:
            return None
        theirs = None
        if self.before is not None:
            theirs = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
            if theirs is None:
                return None
        return f"tconv {__version__} {header_digest()} {theirs}"


class TakeLayers(_LayerPass):
    """Replaces them by tconv's operator, before weights are frozen.

    What convolutions are left Inductor puts into channels_last order, as cuDNN likes them, and folds scalings behind
    them into their weights: along the first axis, which in transposed ones is that of the inputs.
    """

    @staticmethod
    def replace(graph: Graph, layer: Node, call: tuple[Any, ...]) -> None:
        if why_pytorch(call) is None:
            with graph.inserting_before(layer):
                _put(layer, graph.call_function(_LAYER, call))


class FuseEpilogues(_LayerPass):
    """Replaces each with its epilogue."""

    @staticmethod
    def replace(graph: Graph, layer: Node, call: tuple[Any, ...]) -> None:
        reason = why_pytorch(call)
        if reason is not None:
            _log.info("PyTorch runs %s: %s", layer, reason)
            return
        found = list(epilogues(layer))
        result, program, operands = found[-1] if found else (layer, None, [])
        epilogue = "" if program is None else program.text
        with graph.inserting_before(result):
            prepared = _prepared(graph, call, epilogue)
            # Without an epilogue, too: gradients are behind us, and the other operator asks for them in each call.
            fused = graph.call_function(_LAYER_WITH_EPILOGUE, (*call, epilogue, operands, *prepared))
        if program is not None:
            _log.info("%s runs with its epilogue: %s", layer, program)
        _put(result, fused)


def _put(old: Node, new: Node) -> None:
    # What Inductor keeps of the arguments of an operator of ours is not of the new one's.
    new.meta.update({key: value for key, value in old.meta.items() if key != "eager_input_vals"})
    old.replace_all_uses_with(new)


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


def why_pytorch(call: tuple[Any, ...]) -> str | None:
    """Why PyTorch's operator should run a call; None if tconv runs it, or if that is decided when sizes are known."""
    decision = _decision(call)
    return None if decision is None or decision.plan is not None else decision.reason


def _decision(call: tuple[Any, ...], epilogue: str = "", input: Tensor | None = None) -> Decision | None:
    """What will run a call, on an input like `input` if one is given; None if that is decided when sizes are known."""
    own, weight = (node.meta["val"] for node in call[:2])
    input = own if input is None else input
    bias = None if call[2] is None else call[2].meta["val"]
    if any(isinstance(size, torch.SymInt) for size in (*input.shape, *weight.shape)):
        return None
    from tconv.jit.loader import gpu_of

    return decide(input, weight, bias, *call[3:], gpu=gpu_of(input.device.index or 0), epilogue=epilogue)


def _prepared(graph: Graph, call: tuple[Any, ...], epilogue: str) -> tuple[list[Node], list[str]]:
    """A call's weights as its kernels take them, new constants of the graph, and their layouts.

    Neither where the kernels take them as they are, where they are no constant, and where sizes are not known yet.
    Inductor folds constants before it runs passes like ours; so this computes them itself.
    """
    weight = call[1]
    if not torch._inductor.config.freezing or weight.op != "get_attr":
        return [], []
    decisions = (_decision(call, epilogue, input) for input in _as_may_come(graph, call[0].meta["val"]))
    plans = {layout_of(each.plan): each.plan for each in decisions if each is not None and each.plan is not None}
    plans.pop("", None)
    if not plans:
        return [], []
    module, fake = graph.owning_module, weight.meta["val"]
    try:
        with _disable_current_modes():  # some torch releases run passes where all tensors are fake
            memories = [_prepare(plan, attrgetter(weight.target)(module)) for plan in plans.values()]
    except torch.OutOfMemoryError:
        _log.info("%s is prepared for each call: there is no memory to keep it prepared", weight)
        return [], []
    return [_constant(graph, memory, fake.fake_mode) for memory in memories], list(plans)


def _as_may_come(graph: Graph, input: Any) -> Iterator[Tensor]:
    """The memory formats in which a layer may be given an input.

    Behind passes like ours Inductor decides whether the inputs of convolutions, and whatever leads there, become
    channels_last.
    """
    yield input
    convolves = any(node.target is _CONVOLUTION for node in graph.nodes)
    if input.dim() == 4 and convolves and torch._inductor.config.layout_optimization:
        with input.fake_mode:
            yield input.contiguous(memory_format=torch.channels_last)


def _prepare(plan: Plan, weight: Tensor) -> Tensor:
    from tconv.jit.loader import launcher

    return prepare(launcher(plan, weight.device.index or 0), weight)


def _constant(graph: Graph, tensor: Tensor, fake_mode: Any) -> Node:
    module: Any = graph.owning_module
    name = next(name for number in count() if not hasattr(module, name := f"_prepared_weight{number}"))
    module.register_buffer(name, tensor)
    constant = graph.get_attr(name)
    constant.meta["val"] = fake_mode.from_tensor(tensor, static_shapes=True)
    return constant


def epilogues(layer: Node) -> Iterator[tuple[Node, Program, list[Node]]]:
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
                _log.info("the epilogue of %s runs by itself from %s on: %s", layer, node, reason)
                return
        node = node.next
