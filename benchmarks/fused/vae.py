"""A decoder of a VAE: four transposed convolutions with SiLU, and a residual block behind each."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.up = nn.ConvTranspose2d(first, last, 4, 2, 1)
        self.conv = nn.Conv2d(last, last, 3, padding=1)

    def forward(self, x):
        x = nn.functional.silu(self.up(x))
        return x + nn.functional.silu(self.conv(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(256, 128), Block(128, 64), Block(64, 32), Block(32, 16))
        self.last = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        return self.last(self.blocks(x))


def get_inputs():
    return [torch.rand(8, 256, 32, 32)]


def get_init_inputs():
    return []
