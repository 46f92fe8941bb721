"""What the candidates share: Model's constructor and parameters. A candidate fills in `compute`."""

import torch.nn as nn


def pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


class Layer(nn.Module):
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
        super().__init__()
        self.stride, self.padding, self.dilation = pair(stride), pair(padding), pair(dilation)
        self.output_padding, self.groups = pair(output_padding), groups
        # It holds the parameters; its forward is not used.
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
        )

    def forward(self, x):
        return self.compute(x, self.conv_transpose2d.weight, self.conv_transpose2d.bias)

    def output_size(self, x, weight):
        """(height, width) of the output."""
        return tuple(
            (x.shape[2 + a] - 1) * self.stride[a]
            - 2 * self.padding[a]
            + self.dilation[a] * (weight.shape[2 + a] - 1)
            + self.output_padding[a]
            + 1
            for a in (0, 1)
        )

    def compute(self, x, weight, bias):
        raise RuntimeError("a candidate fills this in")
