"""PyTorch's layer with another forward."""

import torch.nn as nn
from layer import Layer
from scatter import Scatter


class Up(nn.ConvTranspose2d):
    output_size, taps, crop = Layer.output_size, Scatter.taps, Scatter.crop
    rows_of_group, add_bias = Scatter.rows_of_group, Scatter.add_bias

    def forward(self, x):
        return Scatter.compute(self, x, self.weight, self.bias)


class ModelNew(Layer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.conv_transpose2d.__class__ = Up

    def forward(self, x):
        return self.conv_transpose2d(x)
