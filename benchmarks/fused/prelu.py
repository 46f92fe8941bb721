"""The end of a network for super-resolution: a 2-D layer and PReLU, twice, and a convolution."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Sequential(
            nn.ConvTranspose2d(64, 64, 6, stride=2, padding=2),
            nn.PReLU(64),
            nn.ConvTranspose2d(64, 32, 6, stride=2, padding=2),
            nn.PReLU(),
        )
        self.last = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x):
        return self.last(self.up(x))


def get_inputs():
    return [torch.rand(8, 64, 96, 160)]


def get_init_inputs():
    return []
