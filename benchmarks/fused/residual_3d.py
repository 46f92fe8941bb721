"""A 3-D layer whose result is used again and again."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose3d(32, 64, 3, stride=2, padding=1, output_padding=1)
        self.shift = nn.Parameter(torch.randn(64, 1, 1, 1))

    def forward(self, x):
        y = self.up(x)
        original = y.clone().detach()
        y = y + self.shift
        y = y + original
        y = y * original
        return y + original


def get_inputs():
    return [torch.rand(16, 32, 16, 32, 32)]


def get_init_inputs():
    return []
