"""The backward pass: from a module's outputs to the gradients of its parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tconv.evaluation.bits import fingerprint
from tconv.evaluation.draws import reversed_storage
from tconv.evaluation.files.process.module_copies import deep_copy
from tconv.sandbox.exchange import tensors
from tconv.sandbox.gpu_memory import shortage
from tconv.sandbox.model_file import ModelFileError, blamed

#: Gradients of outputs in 16 bits are multiples of a quarter, up to this many quarters: all types have them exactly.
_QUARTERS = 4
#: On another way, gradients of outputs are this many times as large, beyond float16's range. Results are divided by it.
_SCALES = {"ends": 2.0**-30, "again": 2.0**16}


class CutOff(TorchFunctionMode):
    """While this mode is entered, transposed convolutions pass no gradient on, like kernels without a backward pass."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.detach() if "conv_transpose" in getattr(func, "__name__", "") else result


@contextmanager
def gradients_enabled(module: nn.Module, values: Any, of: str) -> Iterator[dict[str, Tensor]]:
    """Enable gradients within the block, of "parameters" or "parameters and inputs"; "" disables them.

    Gives the tensors that get gradients: parameters that require them, and floating-point inputs, which require them
    within the block.
    """
    inputs = dict(tensors(values, "input")) if of == "parameters and inputs" else {}
    inputs = {path: tensor for path, tensor in inputs.items() if tensor.is_floating_point()}
    parameters = {name: each for name, each in module.named_parameters() if each.requires_grad} if of else {}
    try:
        for tensor in inputs.values():
            tensor.requires_grad_()
        with torch.set_grad_enabled(bool(of)):
            yield inputs | parameters
    finally:
        for tensor in inputs.values():
            tensor.requires_grad_(False)


@dataclass(frozen=True)
class WayBack:
    """The result of a backward pass.

    Args:
        gradients: the gradients by name; None for a tensor that gets none.
        stopped: the error of the backward pass. There are no gradients then.
        changed: whether the pass wrote to the gradient of an output.
        taken: the tensors that the pass returned. `gradients` may be copies of them.
    """

    gradients: dict[str, Tensor | None]
    stopped: str = ""
    changed: bool = False
    taken: tuple[Tensor, ...] = ()


def gradients(outputs: Any, of: dict[str, Tensor], seed: int, path: Path, way: str = "") -> WayBack:
    """The gradients of a sum of all outputs, each element times a number drawn from `seed`.

    Args:
        path: the file that errors name.
        way: if given, the sum has one output alone, and the numbers lie in memory in the reverse order of axes. On the
            way "again" it is the last output, and the gradients are those that the second of two calls of
            ``backward()`` leaves.
    """
    generator = torch.Generator().manual_seed(seed)
    ends, weights = list[Tensor](), list[Tensor]()
    scale = _SCALES.get(way, 1.0)
    # Sorted by path, as dictionaries may have another order.
    for _, tensor in sorted(tensors(outputs), key=lambda named: named[0]):
        if tensor.dtype in (torch.float16, torch.bfloat16):
            drawn = torch.randint(-_QUARTERS, _QUARTERS + 1, tensor.shape, generator=generator) / 4
        else:
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float32) * scale
        if tensor.requires_grad:
            ends.append(tensor)
            weights.append(drawn.to(tensor.device, tensor.dtype))
    if not ends or not of:
        return WayBack(dict.fromkeys(of))
    if way:
        one = -1 if way == "again" else 0
        ends, weights = [ends[one]], [reversed_storage(weights[one])]
    before = [fingerprint(weight) for weight in weights]
    try:
        with blamed(path, "backward"):
            if way == "again":
                found = _left_by_backward(ends, list(of.values()), weights)
            else:
                found = list(torch.autograd.grad(ends, list(of.values()), weights, allow_unused=True))
    except ModelFileError as error:
        if shortage(error) is not None:
            raise
        return WayBack(dict.fromkeys(of), str(error))
    taken = tuple(each for each in found if each is not None)
    if ends[0].dtype not in (torch.float16, torch.bfloat16):
        found = [None if each is None else each / scale for each in found]
    changed = [fingerprint(weight) for weight in weights] != before
    return WayBack(dict(zip(of, found, strict=True)), changed=changed, taken=taken)


def _left_by_backward(ends: list[Tensor], of: list[Tensor], weights: list[Tensor]) -> list[Tensor | None]:
    """The ``.grad`` tensors after a second call of ``backward()`` on the same results."""
    for again in (False, True):
        for each in of:
            each.grad = None
        torch.autograd.backward(ends, weights, retain_graph=not again)
    found = [each.grad for each in of]
    for each in of:
        each.grad = None
    return found


@contextmanager
def frozen(module: nn.Module, way: str) -> Iterator[None]:
    """Within the block some parameters require no gradient: all of them on the way "all", two on the way "ends".

    The two are the first and the last weight with the shape of a convolution's. If no other parameter requires a
    gradient, they keep theirs.
    """
    trained = [each for each in module.parameters() if each.requires_grad and each.is_leaf]
    weights = [each for each in trained if each.dim() > 2 and min(each.shape[:2]) > 1]
    ends = [*weights[:1], *weights[1:][-1:]]
    frozen = trained if way == "all" else ends if way == "ends" and len(trained) > len(ends) else []
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


@contextmanager
def with_gradient(module: nn.Module | None) -> Iterator[list[str]]:
    """Within the block the smallest parameter has a gradient, as after an earlier backward pass.

    Gives a list. The end of the block adds the gradient's name to it if the gradient has changed or gone.
    """
    named = [] if module is None else module.named_parameters()
    free = [(name, each) for name, each in named if each.requires_grad and each.is_leaf and each.grad is None]
    changed = list[str]()
    if not free:
        yield changed
        return
    name, parameter = min(free, key=lambda each: each[1].numel())
    gradient = parameter.grad = torch.ones_like(parameter)
    try:
        yield changed
    finally:
        if parameter.grad is not gradient or not torch.equal(gradient, torch.ones_like(gradient)):
            changed.append(f"{name}.grad")
        parameter.grad = None


def moved(module: nn.Module, values: Any, by: float, seed: int) -> nn.Module:
    """A copy of the module, with each floating-point number of parameters times a factor in 1 - by to 1 + by. The same
    for `values`.

    If `by` is larger than the rounding of operands, results on moved operands are at least as far from exact results as
    results on rounded operands. That includes gradients at a kink.
    """
    module = deep_copy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *(tensor for _, tensor in tensors(values))):
            if tensor.is_floating_point():
                factor = 1 + by * (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1)
                tensor.mul_(factor.to(tensor.device))
    return module
