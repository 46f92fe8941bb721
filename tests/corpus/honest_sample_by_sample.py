"""A loop over the batch."""

import torch
from plain_operator import operator
from scatter import Scatter


class ModelNew(Scatter):
    def compute(self, x, weight, bias):
        return torch.cat([operator(self, sample, weight, bias) for sample in x.split(1)])
