"""A module's transposed convolutions with attributes that they were not built with, as a program may set them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from torch import nn

Attribute = Literal["padding", "bias"]
#: All at once, and one by one, for models that do not run with all of them.
TOGETHER: tuple[Attribute, ...] = ("padding", "bias")


def change_layers(module: nn.Module, attributes: Collection[Attribute]) -> None:
    """Give each transposed convolution one more of padding, or no bias."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.conv._ConvTransposeNd):
            if "padding" in attributes:
                layer.padding = tuple(int(size) + 1 for size in layer.padding)
            if "bias" in attributes:
                layer.bias = None
