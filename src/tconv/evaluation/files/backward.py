"""Back from a module's outputs to the gradients of its parameters and inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tconv.sandbox.exchange import tensors
from tconv.sandbox.gpu_memory import shortage
from tconv.sandbox.model_file import ModelFileError, blamed

#: What goes back from each output: multiples of a quarter up to this many, which every type has exactly.
_QUARTERS = 4


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


def gradients(outputs: Any, of: dict[str, Tensor], seed: int, path: Path) -> tuple[dict[str, Tensor | None], str]:
    """The gradients of a sum of all outputs, each element times a number drawn from `seed`; None where none flows.

    Beside them, what was raised on the way: then there are none at all. `path` is the file that is to blame for it.
    """
    generator = torch.Generator().manual_seed(seed)
    ends, weights = [], []
    for _, tensor in tensors(outputs):
        drawn = torch.randint(-_QUARTERS, _QUARTERS + 1, tensor.shape, generator=generator) / 4
        if tensor.requires_grad:
            ends.append(tensor)
            weights.append(drawn.to(tensor.device, tensor.dtype))
    if not ends or not of:
        return dict.fromkeys(of), ""
    try:
        with blamed(path, "backward"):
            found = torch.autograd.grad(ends, list(of.values()), weights, allow_unused=True)
    except ModelFileError as error:
        if shortage(error) is not None:
            raise
        return dict.fromkeys(of), str(error)
    return dict(zip(of, found, strict=True)), ""


def moved(module: nn.Module, values: Any, by: float, seed: int) -> nn.Module:
    """A copy of the module, every floating-point parameter times a number between 1 - by and 1 + by; so the values.

    What arithmetic makes of rounded operands, gradients at a kink among it, lies no further from the exact one than
    what exact arithmetic makes of operands that are moved further than rounding moves them.
    """
    module = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *(tensor for _, tensor in tensors(values))):
            if tensor.is_floating_point():
                factor = 1 + by * (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1)
                tensor.mul_(factor.to(tensor.device))
    return module
