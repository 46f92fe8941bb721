"""A decoder like that of DAC (Kumar et al., 2023): snake before each transposed convolution."""

import torch
from torch import nn


class Snake(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x):
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


class Residual(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            nn.Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation),
            Snake(channels),
            nn.Conv1d(channels, channels, 1),
        )

    def forward(self, x):
        return x + self.block(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        channels, layers = 1536, [nn.Conv1d(1024, 1536, 7, padding=3)]
        for stride in (8, 8, 4, 2):
            layers += [
                Snake(channels),
                nn.ConvTranspose1d(channels, channels // 2, 2 * stride, stride, padding=stride // 2),
                *(Residual(channels // 2, dilation) for dilation in (1, 3, 9)),
            ]
            channels //= 2
        self.model = nn.Sequential(*layers, Snake(channels), nn.Conv1d(channels, 1, 7, padding=3), nn.Tanh())

    def forward(self, x):
        return self.model(x)


def get_inputs():
    return [torch.rand(1, 1024, 430)]


def get_init_inputs():
    return []
