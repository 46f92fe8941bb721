"""The gradient of a convolution with respect to its input, which is what a transposed convolution is."""

import torch
from layer import Layer


class ModelNew(Layer):
    def compute(self, x, weight, bias):
        inputs = x.new_empty(x.shape[0], weight.shape[1] * self.groups, *self.output_size(x, weight))
        y, _, _ = torch.ops.aten.convolution_backward(
            x,
            inputs,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0, 0],
            self.groups,
            [True, False, False],
        )
        return y if bias is None else y + bias.view(1, -1, 1, 1)
