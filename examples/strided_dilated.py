import torch
import torch.nn as nn


class Model(nn.Module):
    """
    A 2-D transposed convolution with a stride larger than its kernel, and dilation.

    Args:
        in_channels (int): Channels of the input.
        out_channels (int): Channels of the output.
        kernel_size (int): Side of the square kernel.
        stride (int, optional): Step between two inputs in the output. Defaults to 1.
        padding (int, optional): Outputs cut off at each border. Defaults to 0.
        dilation (int, optional): Distance between two taps of the kernel. Defaults to 1.
        bias (bool, optional): Whether a learnable bias is added. Defaults to False.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, bias=bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x (torch.Tensor): Input of shape (batch_size, in_channels, height_in, width_in).

        Returns:
            torch.Tensor: Output of shape (batch_size, out_channels, height_out, width_out).
        """
        return self.conv_transpose2d(x)


batch_size = 16
in_channels = 32
out_channels = 64
kernel_size = 3
height = 64
width = 128
stride = 5
padding = 1
dilation = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, dilation]
