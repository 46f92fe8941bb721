"""The generator of DCGAN (Radford et al., 2015), in evaluation mode."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = []
        for first, last, stride, padding in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
            blocks.append(nn.ConvTranspose2d(first, last, 4, stride, padding, bias=False))
            blocks += [nn.BatchNorm2d(last), nn.ReLU(True)]
        self.main = nn.Sequential(*blocks, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())
        self.eval()

    def forward(self, x):
        return self.main(x)


def get_inputs():
    return [torch.rand(64, 100, 1, 1)]


def get_init_inputs():
    return []
