"""A 3-D layer between leaky ReLUs and a pooling."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose3d(16, 32, 3, stride=2, padding=1, output_padding=1)
        self.scale = nn.Parameter(torch.randn(32, 1, 1, 1))

    def forward(self, x):
        y = nn.functional.leaky_relu(self.up(x), 0.2)
        y = nn.functional.leaky_relu(y * self.scale, 0.2)
        return nn.functional.max_pool3d(y, 2)


def get_inputs():
    return [torch.rand(16, 16, 16, 32, 32)]


def get_init_inputs():
    return []
