"""One sample's layer, mapped over the batch."""

import torch
from layer import Layer
from plain_operator import operator


class ModelNew(Layer):
    def compute(self, x, weight, bias):
        return torch.vmap(lambda sample: operator(self, sample, weight, bias))(x)
