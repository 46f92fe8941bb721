"""The output is as long as it would be without dilation."""

from scatter import Scatter


class ModelNew(Scatter):
    def crop(self, full, height, width):
        kernel = self.conv_transpose2d.weight.shape[2:]
        shorter = [(self.dilation[axis] - 1) * (kernel[axis] - 1) for axis in (0, 1)]
        return super().crop(full, height - shorter[0], width - shorter[1])
