"""Input channels in two halves of each group, one after the other."""

from plain_operator import operator
from scatter import Scatter


class ModelNew(Scatter):
    def compute(self, x, weight, bias):
        first = x.shape[1] // self.groups // 2
        keep = x.new_zeros(x.shape[1] // self.groups)
        keep[:first] = 1
        mask = keep.repeat(self.groups).view(1, -1, 1, 1) == 1
        halves = (x.masked_fill(mask, 0), x.masked_fill(~mask, 0))
        return self.add_bias(sum(operator(self, half, weight, None) for half in halves), bias)
