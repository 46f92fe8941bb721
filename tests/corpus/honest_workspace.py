"""Zeros between the inputs go into memory that is kept; the result has memory of its own."""

from scatter import Scatter


class ModelNew(Scatter):
    scratch = None

    def compute(self, x, weight, bias):
        if self.scratch is None or (self.scratch.shape, self.scratch.dtype) != (x.shape, x.dtype):
            self.scratch = x.new_empty(x.shape)
        return super().compute(self.scratch.copy_(x), weight, bias)
