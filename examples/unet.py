"""A small U-Net for segmentation: four levels down, four up by transposed convolutions, a skip connection at each."""

import torch
import torch.nn as nn


class DoubleConv(nn.Module):
    """Two 3x3 convolutions, each with batch normalisation and ReLU."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Up(nn.Module):
    """Doubles the size, joins the skip connection, and mixes both."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, kernel_size=2, stride=2)
        self.mix = DoubleConv(2 * out_channels, out_channels)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.mix(torch.cat([skip, self.up(x)], dim=1))


class Model(nn.Module):
    """
    A U-Net whose input sides are multiples of 16.

    Args:
        in_channels (int): Channels of the image.
        num_classes (int): Channels of the output, one map of logits for each class.
        width (int, optional): Channels of the first level; each level down has twice as many. Defaults to 32.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int = 32):
        super().__init__()
        channels = [width * 2**level for level in range(5)]
        self.stem = DoubleConv(in_channels, channels[0])
        self.downs = nn.ModuleList(DoubleConv(a, b) for a, b in zip(channels, channels[1:]))
        self.pool = nn.MaxPool2d(2)
        self.ups = nn.ModuleList(Up(b, a) for a, b in zip(channels[-2::-1], channels[:0:-1]))
        self.head = nn.Conv2d(channels[0], num_classes, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x (torch.Tensor): Images of shape (batch_size, in_channels, height, width).

        Returns:
            torch.Tensor: Logits of shape (batch_size, num_classes, height, width).
        """
        x = self.stem(x)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = down(self.pool(x))
        for up, skip in zip(self.ups, reversed(skips)):
            x = up(x, skip)
        return self.head(x)


batch_size = 8
in_channels = 3
num_classes = 2
height = 256
width = 256


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, num_classes]
