"""Transposed convolutions as modules: torch's own, with another forward.

Constructor, parameters, random draws, ``state_dict``, hooks and parametrizations are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tconv.functional import conv_transpose1d, conv_transpose2d, conv_transpose3d


class ConvTranspose1d(torch.nn.ConvTranspose1d):
    """Equivalent to: ``torch.nn.ConvTranspose1d``, with the same arguments."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return _forward(self, conv_transpose1d, input, output_size)


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """Equivalent to: ``torch.nn.ConvTranspose2d``, with the same arguments."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return _forward(self, conv_transpose2d, input, output_size)


class ConvTranspose3d(torch.nn.ConvTranspose3d):
    """Equivalent to: ``torch.nn.ConvTranspose3d``, with the same arguments."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return _forward(self, conv_transpose3d, input, output_size)


def call_arguments(
    module: torch.nn.modules.conv._ConvTransposeNd, input: Tensor, output_size: list[int] | None = None
) -> dict[str, Any]:
    """The keyword arguments of the function that `module` calls on `input`.

    Raises:
        ValueError: `output_size` cannot be reached; torch's own message.
    """
    output_padding = module._output_padding(
        input,
        output_size,
        module.stride,  # type: ignore[arg-type]
        module.padding,  # type: ignore[arg-type]
        module.kernel_size,  # type: ignore[arg-type]
        len(module.kernel_size),
        module.dilation,  # type: ignore[arg-type]
    )
    return {
        "bias": module.bias,
        "stride": module.stride,
        "padding": module.padding,
        "output_padding": output_padding,
        "groups": module.groups,
        "dilation": module.dilation,
    }


def _forward(
    module: torch.nn.modules.conv._ConvTransposeNd,
    function: Callable[..., Tensor],
    input: Tensor,
    output_size: list[int] | None,
) -> Tensor:
    return function(input, module.weight, **call_arguments(module, input, output_size))
