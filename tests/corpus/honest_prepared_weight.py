"""The weight is brought into another layout once, and again when it has changed."""

import torch
from honest_zero_insertion import ModelNew as ZeroInsertion


class ModelNew(ZeroInsertion):
    prepared = None

    def compute(self, x, weight, bias):
        key = weight.data_ptr(), weight._version
        if self.prepared is None or self.prepared[0] != key:
            self.prepared = key, weight.detach().to(memory_format=torch.channels_last, copy=True)
        return super().compute(x, self.prepared[1], bias)
