"""A transposed convolution by its definition: every input adds its products with all taps to the output.

The methods are the places where a candidate can go wrong; each wrong one overrides one of them.
"""

import torch
from layer import Layer


class Scatter(Layer):
    def taps(self, weight):
        """(kernel row, kernel column, row offset, column offset) of every tap."""
        for kh in range(weight.shape[2]):
            for kw in range(weight.shape[3]):
                yield kh, kw, kh * self.dilation[0], kw * self.dilation[1]

    def rows_of_group(self, weight, group, inputs):
        return weight[group * inputs : (group + 1) * inputs]

    def crop(self, full, height, width):
        """The output out of the sum that was made without padding."""
        top, left = self.padding
        return full[:, :, top : top + height, left : left + width]

    def add_bias(self, y, bias):
        return y if bias is None else y + bias.view(1, -1, 1, 1)

    def compute(self, x, weight, bias):
        height, width = self.output_size(x, weight)
        (sh, sw), (ph, pw) = self.stride, self.padding
        inputs, outputs = x.shape[1] // self.groups, weight.shape[1]
        full = x.new_zeros(x.shape[0], outputs * self.groups, height + 2 * ph, width + 2 * pw)
        for group in range(self.groups):
            part = x[:, group * inputs : (group + 1) * inputs]
            rows = self.rows_of_group(weight, group, inputs)
            target = full[:, group * outputs : (group + 1) * outputs]
            for kh, kw, top, left in self.taps(weight):
                product = torch.einsum("nchw,co->nohw", part, rows[:, :, kh, kw])
                bottom, right = top + (x.shape[2] - 1) * sh + 1, left + (x.shape[3] - 1) * sw + 1
                target[:, :, top:bottom:sh, left:right:sw] += product
        return self.add_bias(self.crop(full, height, width), bias).contiguous()
