"""Every group takes the weights of the first one."""

from scatter import Scatter


class ModelNew(Scatter):
    def rows_of_group(self, weight, group, inputs):
        return weight[:inputs]
