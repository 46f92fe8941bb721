"""Right, but for one group only."""

from scatter import Scatter


class ModelNew(Scatter):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.groups != 1:
            raise NotImplementedError("groups are not supported")
