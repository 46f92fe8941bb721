"""Sums in float64, rounded once."""

from scatter import Scatter


class ModelNew(Scatter):
    def compute(self, x, weight, bias):
        wide_bias = None if bias is None else bias.double()
        return super().compute(x.double(), weight.double(), wide_bias).to(x.dtype)
