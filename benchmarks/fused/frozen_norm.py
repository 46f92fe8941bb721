"""The decoder of a segmentation network whose batch norms are frozen: statistics in evaluation, parameters fixed."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up1, self.norm1 = nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1), nn.BatchNorm2d(128)
        self.up2, self.norm2 = nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1), nn.BatchNorm2d(64)
        self.classes = nn.Conv2d(64, 21, 1)
        for norm in (self.norm1, self.norm2):
            norm.eval().requires_grad_(False)

    def forward(self, x):
        x = F.relu(self.norm1(self.up1(x)))
        x = F.relu(self.norm2(self.up2(x)))
        return self.classes(x)


def get_inputs():
    return [torch.rand(8, 256, 48, 48)]


def get_init_inputs():
    return []
