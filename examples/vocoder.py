"""A vocoder's generator after HiFi-GAN: a mel spectrogram in, a waveform out, by four 1-D transposed convolutions."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

SLOPE = 0.1


class ResBlock(nn.Module):
    """Residual convolutions of one kernel size, with growing dilation."""

    def __init__(self, channels: int, kernel_size: int, dilations: tuple):
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel_size, dilation=d, padding=d * (kernel_size - 1) // 2))
            for d in dilations
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, SLOPE))
        return x


class Model(nn.Module):
    """
    The generator: each stage lengthens the signal by its rate, halves the channels, and averages residual blocks.

    Args:
        mel_channels (int): Channels of the mel spectrogram.
        channels (int): Channels before the first stage.
        rates (tuple, optional): Factor of each stage; their product is the hop size. Defaults to (8, 8, 2, 2).
        kernels (tuple, optional): Kernel size of each stage's transposed convolution. Defaults to (16, 16, 4, 4).
    """

    def __init__(self, mel_channels: int, channels: int, rates: tuple = (8, 8, 2, 2), kernels: tuple = (16, 16, 4, 4)):
        super().__init__()
        self.conv_pre = weight_norm(nn.Conv1d(mel_channels, channels, kernel_size=7, padding=3))
        self.ups = nn.ModuleList()
        self.blocks = nn.ModuleList()
        for rate, kernel_size in zip(rates, kernels):
            self.ups.append(
                weight_norm(
                    nn.ConvTranspose1d(
                        channels, channels // 2, kernel_size, stride=rate, padding=(kernel_size - rate) // 2
                    )
                )
            )
            channels //= 2
            self.blocks.append(nn.ModuleList(ResBlock(channels, k, (1, 3)) for k in (3, 7, 11)))
        self.conv_post = weight_norm(nn.Conv1d(channels, 1, kernel_size=7, padding=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x (torch.Tensor): Mel spectrogram of shape (batch_size, mel_channels, frames).

        Returns:
            torch.Tensor: Waveform of shape (batch_size, 1, frames * product of the rates), within [-1, 1].
        """
        x = self.conv_pre(x)
        for up, blocks in zip(self.ups, self.blocks):
            x = up(F.leaky_relu(x, SLOPE))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.conv_post(F.leaky_relu(x, SLOPE)))


batch_size = 1
mel_channels = 80
frames = 256
channels = 256


def get_inputs():
    return [torch.rand(batch_size, mel_channels, frames)]


def get_init_inputs():
    return [mel_channels, channels]
