"""A 2-D layer of stride 1, GELU and a group norm."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 64, 3)
        self.norm = nn.GroupNorm(8, 64)

    def forward(self, x):
        return self.norm(nn.functional.gelu(self.up(x)))


def get_inputs():
    return [torch.rand(128, 64, 256, 256)]


def get_init_inputs():
    return []
