"""Output padding moves the whole result, instead of making it longer at the end."""

import torch.nn.functional as F
from scatter import Scatter


class ModelNew(Scatter):
    def crop(self, full, height, width):
        down, right = self.output_padding
        return super().crop(F.pad(full, (right, 0, down, 0)), height, width)
