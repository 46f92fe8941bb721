"""PyTorch's own operator."""

from layer import Layer
from plain_operator import operator


class ModelNew(Layer):
    def compute(self, x, weight, bias):
        return operator(self, x, weight, bias)
