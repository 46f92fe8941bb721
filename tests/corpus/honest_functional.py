"""PyTorch's own operator."""

import torch.nn.functional as F
from layer import Layer


class ModelNew(Layer):
    def compute(self, x, weight, bias):
        return F.conv_transpose2d(
            x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )
