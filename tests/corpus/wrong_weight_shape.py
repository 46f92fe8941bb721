"""The weight as a convolution has it, (out_channels, in_channels / groups, ...)."""

import torch.nn as nn
from scatter import Scatter


class ModelNew(Scatter):
    def __init__(self, in_channels, out_channels, kernel_size, *args, **kwargs):
        super().__init__(in_channels, out_channels, kernel_size, *args, **kwargs)
        weight = self.conv_transpose2d.weight
        turned = weight.detach().reshape(out_channels, in_channels // self.groups, *weight.shape[2:])
        self.conv_transpose2d.weight = nn.Parameter(turned)

    def compute(self, x, weight, bias):
        shape = (x.shape[1], weight.shape[0] // self.groups, *weight.shape[2:])
        return super().compute(x, weight.reshape(shape), bias)
