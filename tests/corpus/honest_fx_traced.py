"""The graph that torch.fx takes of a layer."""

import torch.fx
from honest_sequential import ModelNew as Sequential
from layer import Layer


class ModelNew(Layer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        inner = Sequential(*args, **kwargs)
        inner.conv_transpose2d = self.conv_transpose2d
        self.run = torch.fx.symbolic_trace(inner).forward
        self.conv_transpose2d = inner.conv_transpose2d

    def forward(self, x):
        return self.run(x)
