"""One convolution that makes the channels of all phases, then a shuffle of channels into pixels."""

import torch.nn.functional as F
from honest_phases import taps_of
from layer import Layer


class ModelNew(Layer):
    def compute(self, x, weight, bias):
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        height, width = self.output_size(x, weight)
        back = (dh * (weight.shape[2] - 1) // sh, dw * (weight.shape[3] - 1) // sw)
        dense = weight.new_zeros(sh, sw, *weight.shape[:2], back[0] + 1, back[1] + 1)
        for rh in range(sh):
            for kh, bh in taps_of(rh, weight.shape[2], sh, dh):
                for rw in range(sw):
                    for kw, bw in taps_of(rw, weight.shape[3], sw, dw):
                        dense[rh, rw, :, :, back[0] - bh, back[1] - bw] = weight[:, :, kh, kw]
        # (phases, C_in, C_out/groups, ...) to a convolution's (groups * C_out/groups * phases, C_in/groups, ...).
        grouped = dense.flatten(0, 1).unflatten(1, (self.groups, -1)).permute(1, 3, 0, 2, 4, 5)
        rows = max(back[0], -(-(height + ph) // sh) - x.shape[2])
        columns = max(back[1], -(-(width + pw) // sw) - x.shape[3])
        padded = F.pad(x, (back[1], columns, back[0], rows))
        y = F.conv2d(padded, grouped.flatten(0, 2), groups=self.groups)
        y = y.unflatten(1, (-1, sh, sw)).permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)
        y = y[:, :, ph : ph + height, pw : pw + width]
        return (y if bias is None else y + bias.view(1, -1, 1, 1)).contiguous()
