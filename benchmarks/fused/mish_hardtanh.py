"""A 2-D layer, Mish, an addition, hardtanh and a scaling."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        y = nn.functional.mish(self.up(x))
        y = nn.functional.hardtanh(y + 0.5, min_val=-1.0, max_val=1.0)
        return y * 2.0


def get_inputs():
    return [torch.rand(128, 64, 128, 128)]


def get_init_inputs():
    return []
