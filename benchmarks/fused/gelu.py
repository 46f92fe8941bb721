"""A 2-D layer, an addition, a minimum, GELU and a scaling."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 128, 4, stride=2)

    def forward(self, x):
        y = self.up(x) + 0.5
        y = torch.min(y, torch.tensor(0.0, device=y.device))
        y = nn.functional.gelu(y)
        return y * 2.0


def get_inputs():
    return [torch.rand(128, 64, 64, 64)]


def get_init_inputs():
    return []
