"""One matrix product for all taps, whose columns index_add puts where they belong."""

import torch
from layer import Layer


class ModelNew(Layer):
    def compute(self, x, weight, bias):
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        height, width = self.output_size(x, weight)
        kh, kw = weight.shape[2:]
        rows = torch.arange(kh)[:, None] * dh + torch.arange(x.shape[2]) * sh
        columns = torch.arange(kw)[:, None] * dw + torch.arange(x.shape[3]) * sw
        whole = (int(rows.max()) + 1 + self.output_padding[0], int(columns.max()) + 1 + self.output_padding[1])
        places = rows[:, None, :, None] * whole[1] + columns[None, :, None, :]
        products = torch.einsum(
            "ngchw,gcoyx->ngoyxhw", x.unflatten(1, (self.groups, -1)), weight.unflatten(0, (self.groups, -1))
        )
        y = x.new_zeros(x.shape[0], weight.shape[1] * self.groups, whole[0] * whole[1])
        y.index_add_(2, places.flatten(), products.flatten(3).flatten(1, 2))
        y = y.unflatten(2, whole)[:, :, ph : ph + height, pw : pw + width]
        return (y if bias is None else y + bias.view(1, -1, 1, 1)).contiguous()
