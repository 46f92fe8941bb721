"""Transposed convolutions as modules: torch's own, with another forward.

Constructor, parameters, random draws, ``state_dict``, hooks and parametrizations are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor

from tconv import ops
from tconv.weights import FrozenWeights

_jit: Any = torch.jit


class Layer(torch.nn.modules.conv._ConvTransposeNd):
    """What the layers below have beyond torch's: another forward, and weights that `tconv.optimize` may freeze."""

    #: Keeps the weights prepared while they are frozen; no part of the ``state_dict``.
    frozen = cast("FrozenWeights | None", None)  # TorchScript would read an annotation
    _torchs_forward: Callable[..., Tensor]

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The transposed convolution of `input`; `output_size` chooses among the sizes that a stride leaves open.

        Both, and the result's shape, are as of torch's layer of the same name.
        """
        if _jit.is_scripting():  # TorchScript compiles this branch alone
            return self._torchs_forward(input, output_size)
        else:
            weight, bias = parameters_of(self)
            extra = self.output_padding if output_size is None else _output_padding(self, input, output_size)
            arguments = (self.stride, self.padding, extra, self.groups, self.dilation)
            return ops.conv_transpose(len(self.kernel_size), input, weight, bias, *arguments, frozen=self.frozen)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        if self.frozen is not None:
            self.frozen.forget()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        before = self._kinds()
        applied = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.frozen is not None:
            # Memory that a captured graph reads stays where it is, as do weights that are moved to where they are.
            (self.frozen.forget if self._kinds() == before else self.frozen.release)()
        return applied

    def _kinds(self) -> set[tuple[torch.device, torch.dtype]]:
        return {(parameter.device, parameter.dtype) for parameter in self.parameters(recurse=False)}


def _for_scripts(kind: type[torch.nn.Module]) -> Callable[..., Tensor]:
    """torch's forward by the name under which TorchScript finds it in a layer of ours."""
    own: Any = kind.forward
    copy = FunctionType(own.__code__, own.__globals__, "_torchs_forward", own.__defaults__, own.__closure__)
    copy.__annotations__ = own.__annotations__
    return copy


class ConvTranspose1d(Layer, torch.nn.ConvTranspose1d):
    """A layer that computes `conv_transpose1d` with its own weight and bias.

    Constructor, parameters, ``state_dict`` and hooks are torch's. The input is (N, in_channels, L) or
    (in_channels, L); the result has out_channels and the sizes of `conv_transpose1d`'s formula, axis by axis.

    Raises:
        As `conv_transpose1d`; ValueError: ``output_size`` cannot be reached.

    Equivalent to: ``torch.nn.ConvTranspose1d``, with the same arguments.
    """

    _torchs_forward = _for_scripts(torch.nn.ConvTranspose1d)


class ConvTranspose2d(Layer, torch.nn.ConvTranspose2d):
    """A layer that computes `conv_transpose2d` with its own weight and bias.

    Constructor, parameters, ``state_dict`` and hooks are torch's. The input is (N, in_channels, H, W) or
    (in_channels, H, W); the result has out_channels and the sizes of `conv_transpose1d`'s formula, axis by axis.

    Raises:
        As `conv_transpose1d`; ValueError: ``output_size`` cannot be reached.

    Equivalent to: ``torch.nn.ConvTranspose2d``, with the same arguments.
    """

    _torchs_forward = _for_scripts(torch.nn.ConvTranspose2d)


class ConvTranspose3d(Layer, torch.nn.ConvTranspose3d):
    """A layer that computes `conv_transpose3d` with its own weight and bias.

    Constructor, parameters, ``state_dict`` and hooks are torch's. The input is (N, in_channels, D, H, W) or
    (in_channels, D, H, W); the result has out_channels and the sizes of `conv_transpose1d`'s formula, axis by axis.

    Raises:
        As `conv_transpose1d`; ValueError: ``output_size`` cannot be reached.

    Equivalent to: ``torch.nn.ConvTranspose3d``, with the same arguments.
    """

    _torchs_forward = _for_scripts(torch.nn.ConvTranspose3d)


def call_arguments(
    module: torch.nn.modules.conv._ConvTransposeNd, input: Tensor, output_size: list[int] | None = None
) -> dict[str, Any]:
    """The arguments of the function that `module` calls on `input`, behind input and weight, in their order.

    Raises:
        ValueError: `output_size` cannot be reached; torch's own message.
    """
    return {
        "bias": module.bias,
        "stride": module.stride,
        "padding": module.padding,
        "output_padding": _output_padding(module, input, output_size),
        "groups": module.groups,
        "dilation": module.dilation,
    }


def parameters_of(layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Its weight and bias, which a module looks for in all other places first."""
    found: dict[str, Any] = layer._parameters
    try:
        return found["weight"], found["bias"]
    except KeyError:  # parametrized, or a replica's
        return layer.weight, layer.bias


def _output_padding(
    module: torch.nn.modules.conv._ConvTransposeNd, input: Tensor, output_size: list[int] | None
) -> list[int]:
    return module._output_padding(
        input,
        output_size,
        module.stride,  # type: ignore[arg-type]
        module.padding,  # type: ignore[arg-type]
        module.kernel_size,  # type: ignore[arg-type]
        len(module.kernel_size),
        module.dilation,  # type: ignore[arg-type]
    )
