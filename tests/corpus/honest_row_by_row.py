"""A loop over the input's rows, each of which adds its share to the output."""

from scatter import Scatter


class ModelNew(Scatter):
    def compute(self, x, weight, bias):
        y = 0
        for row in range(x.shape[2]):
            alone = x.new_zeros(x.shape)
            alone[:, :, row] = x[:, :, row]
            y = y + super().compute(alone, weight, None)
        return self.add_bias(y, bias)
