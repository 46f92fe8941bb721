"""A 2-D layer, an addition for each channel, two clamps and two scalings."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1, output_padding=1)
        self.shift = nn.Parameter(torch.randn(64, 1, 1))

    def forward(self, x):
        y = self.up(x) + self.shift
        y = torch.clamp(y, min=0.0, max=1.0)
        y = y * 2.0
        y = torch.clamp(y, min=0.0, max=1.0)
        return y / 2.0


def get_inputs():
    return [torch.rand(128, 64, 128, 128)]


def get_init_inputs():
    return []
