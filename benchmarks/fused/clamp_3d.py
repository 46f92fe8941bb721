"""A 3-D layer, a clamp and a division."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose3d(64, 128, 3, stride=2, padding=1)

    def forward(self, x):
        return torch.clamp(self.up(x), min=-1.0) / 2.0


def get_inputs():
    return [torch.rand(16, 64, 24, 48, 48)]


def get_init_inputs():
    return []
