"""Which convolutions a forward pass runs, seen where PyTorch dispatches its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tconv.problem import DTYPE_OF, Layer, Precision, Problem, Triple

_aten = torch.ops.aten
#: Operators that give another view of a tensor or prepare a call, and compute nothing.
_NO_WORK = {_aten.detach.default, _aten.alias.default, _aten.view.default, _aten._unsafe_view.default}

#: What a convolution becomes; the second in modules that torch.jit traced. Both begin with the same nine arguments.
CONVOLUTIONS = (_aten.convolution.default, _aten._convolution.default)
#: Parts of the names of operators that compute nothing but one; a convolution's gradient is one, too.
_TRANSPOSED = ("conv_transpose", "convolution_transpose", "convolution_backward")


@dataclass(frozen=True)
class Convolution:
    """One call of a convolution, with the tensors themselves.

    Args:
        problem: for a transposed one of a dtype that has a precision here, else None.
        multiply_adds: products of an input element with a weight that it computes.
        empty: it is a transposed one of which padding leaves nothing; such a one has no problem.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    result: Tensor
    problem: Problem | None
    multiply_adds: int
    empty: bool = False

    def to_dict(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """JSON-able, without the tensors: weight and bias by their names in `state`, None for other tensors."""
        names = {id(tensor): name for name, tensor in state.items()}
        return {
            "problem": None if self.problem is None else asdict(self.problem),
            "multiply_adds": self.multiply_adds,
            "outputs": self.result.numel(),
            "weight": names.get(id(self.weight)),
            "bias": names.get(id(self.bias)),
        }


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode whose first operator does not import torch.compile's machinery, which takes seconds.

    PyTorch imports it to keep the mode's own Python from being compiled. Nothing compiled runs under a mode.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Recorder(Mode):
    """While it is entered, notes every convolution and counts the other operators that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.convolutions: list[Convolution] = []
        self.others = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if (parts := decomposed(self, func, args, kwargs)) is not NotImplemented:
            return parts
        result = func(*args, **(kwargs or {}))
        if func in CONVOLUTIONS:
            self.convolutions.append(_convolution(args[:9], result))
        elif func not in _NO_WORK:
            self.others += 1
        return result


def preload() -> None:
    """Import what recording needs; for the process that those of programs are forked from.

    It starts neither CUDA nor a thread: no fork would survive those.
    """
    with Recorder():
        torch.empty(0)


class OwnOperators(Mode):
    """While it is entered, notes by name PyTorch's own operators that compute a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        if func in CONVOLUTIONS and args[6]:
            self.names.add(f"{name} (transposed)")
        elif name.startswith("aten.") and any(part in name for part in _TRANSPOSED):
            self.names.add(name)
        return func(*args, **(kwargs or {}))


class OwnFunctions(TorchFunctionMode):
    """While it is entered, notes by name PyTorch's own functions that compute a transposed convolution.

    It sees those that Python calls, and changes nothing for a file that does otherwise under a mode of dispatch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        is_general = name in ("convolution", "_convolution") and len(args) > 6 and args[6]
        if is_general or any(part in name for part in _TRANSPOSED):
            self.names.add(f"torch.{name}")
        return func(*args, **(kwargs or {}))


def decomposed(mode: TorchDispatchMode, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of a function like ``conv_transpose2d`` by what it is made of, seen by `mode`; else NotImplemented.

    In inference mode PyTorch dispatches such functions whole.
    """
    if ".conv" not in str(func.overloadpacket) or func in CONVOLUTIONS:
        return NotImplemented
    with mode:
        return func.decompose(*args, **(kwargs or {}))


def _convolution(args: tuple[Any, ...], result: Tensor) -> Convolution:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    # Every element of the transposed one's input, or of the other's output, meets one column of the weight.
    products = (x if transposed else result).numel() * (weight.numel() // max(1, weight.shape[0]))
    problem = None
    precision = _precision(x.dtype)
    empty = transposed and 0 in result.shape[2:]
    if transposed and precision is not None and x.dim() == weight.dim() and not empty:
        layer = Layer(
            x.dim() - 2,
            x.shape[1],
            weight.shape[1] * groups,
            _three(weight.shape[2:], 1),
            _three(stride, 1),
            _three(padding, 0),
            _three(dilation, 1),
            groups,
            bias is not None,
            precision,
        )
        problem = Problem(layer, x.shape[0], _three(x.shape[2:], 1), _three(output_padding, 0))
    return Convolution(x, weight, bias, result, problem, products, empty)


def _precision(dtype: torch.dtype) -> Precision | None:
    for precision, name in DTYPE_OF.items():
        if getattr(torch, name) == dtype:
            return precision
    return None


def _three(values: Sequence[int], fill: int) -> Triple:
    depth, height, width = (*[fill] * (3 - len(values)), *map(int, values))
    return depth, height, width
