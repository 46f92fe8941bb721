"""What a generated file records: its layers, and the kernels of each. It comes first, with all imports."""
# mypy: ignore-errors

# ---- copied from here on

import functools
import hashlib
import inspect
import itertools
import operator
import warnings
from collections import namedtuple

import torch
from torch import nn
from torch.autograd import forward_ad

# What becomes of a call that no kernel of this file runs: "pytorch" runs it and a warning says why; "error" raises.
ELSEWHERE = "pytorch"

_Layer = namedtuple("_Layer", "in_channels out_channels kernel_size stride padding dilation groups bias dtype")
# A kernel: its family, its name and its place in the family's text; bytes of shared memory of a block; neighbouring
# columns that are loaded at once, of which rows of the input have a multiple; axes along which inputs have one element;
# whether operands are rounded to TF32. Bytes of the weights in the order in which the kernel loads them, 0 where it
# takes them as they are; whether inputs are put into another order, too.
# ---- where epilogues are fused
# What it computes behind the layer.
# ---- where epilogues are fused
_Kernel = namedtuple(
    "_Kernel",
    "family name place shared_bytes columns single tf32 weight_bytes prepares_inputs program",
    defaults=(0, 1, (), False, 0, False, ""),
)
# ---- where programs are computed
# What is computed behind layers, in their kernels.
_TEXTS = ()
# ---- where programs are computed
# The kernels of each layer, the fastest first.
_RECORDED = {}
# ---- where layers are built elsewhere
# Modules left to PyTorch, by name.
_LEFT = ()
# ---- where layers are built elsewhere
