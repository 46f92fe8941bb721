"""Inputs added into the output, tap by tap."""

from scatter import Scatter


class ModelNew(Scatter):
    pass
