"""Back from a module's outputs to the gradients of its parameters and inputs."""

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

#: What goes back from outputs in 16 bits: multiples of a quarter up to this many, which every type has exactly.
_QUARTERS = 4
#: What goes back on another way is so many times as large, beyond what float16 has; the gradients are divided by that.
_SCALES = {"ends": 2.0**-30, "again": 2.0**16}


class CutOff(TorchFunctionMode):
    """While it is entered, no gradient flows through transposed convolutions: as of kernels that have none."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.detach() if "conv_transpose" in getattr(func, "__name__", "") else result


@contextmanager
def gradients_enabled(module: nn.Module, values: Any, of: str) -> Iterator[dict[str, Tensor]]:
    """Gradients are enabled within the block, of "parameters" or "parameters and inputs"; for none, empty, disabled.

    Gives what has a gradient: parameters that require one and inputs of floating-point numbers, which do so meanwhile.
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
    """What came of the way back.

    Args:
        gradients: None where none flows.
        stopped: what was raised on the way: then there are no gradients at all.
        changed: something wrote to what goes back from an output.
        taken: the very tensors that came of it, which `gradients` may be copies of.
    """

    gradients: dict[str, Tensor | None]
    stopped: str = ""
    changed: bool = False
    taken: tuple[Tensor, ...] = ()


def gradients(outputs: Any, of: dict[str, Tensor], seed: int, path: Path, way: str = "") -> WayBack:
    """The gradients of a sum of all outputs, each element times a number drawn from `seed`.

    Args:
        path: the file that is to blame for what is raised.
        way: where one is given they are those of one output alone, with numbers that lie in memory in the reverse order
            of axes. On the way "again" that is the last output, and they are what the second of two calls of
            ``backward()`` leaves.
    """
    generator = torch.Generator().manual_seed(seed)
    ends, weights = list[Tensor](), list[Tensor]()
    scale = _SCALES.get(way, 1.0)
    # By their paths: dictionaries may have another order.
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
    """What a second call of ``backward()`` on the same results leaves where optimizers look for it."""
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
    """Within the block some parameters ask for no gradient: on the way "all" all of them, on the way "ends" two.

    Those are the first and the last weight of a convolution, as its shape tells. They stay where nothing else asks.
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
    """Within the block the smallest parameter has a gradient, as an earlier way back leaves one.

    Gives a list, to which the block's end adds that gradient's name if it is not there as it was.
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
    """A copy of the module, every floating-point parameter times a number between 1 - by and 1 + by; so the values.

    What arithmetic makes of rounded operands, gradients at a kink among it, lies no further from the exact one than
    what exact arithmetic makes of operands that are moved further than rounding moves them.
    """
    module = deep_copy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *(tensor for _, tensor in tensors(values))):
            if tensor.is_floating_point():
                factor = 1 + by * (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1)
                tensor.mul_(factor.to(tensor.device))
    return module
