"""The same layer with little that could go wrong: stride 1, no padding, no dilation, no groups, no bias."""

import torch
from model import Model  # noqa: F401


def get_inputs():
    return [torch.rand(2, 4, 7, 6)]


def get_init_inputs():
    return [4, 6, (3, 2)]
