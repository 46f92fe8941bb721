"""An operator registered with PyTorch."""

import torch
import torch.nn.functional as F
from layer import Layer
from torch import Tensor


@torch.library.custom_op("corpus::up", mutates_args=())
def up(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], more: list[int], groups: int, dilation: list[int]
) -> Tensor:
    return F.conv_transpose2d(x, weight, None, stride, padding, more, groups, dilation)


class ModelNew(Layer):
    def compute(self, x, weight, bias):
        sizes = map(list, (self.stride, self.padding, self.output_padding))
        y = up(x, weight, *sizes, self.groups, list(self.dilation))
        return y if bias is None else y + bias.view(1, -1, 1, 1)
