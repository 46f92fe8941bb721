"""Records of a generated file's layers and their kernels. This part comes first and has all imports."""
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

# For calls that no kernel of this file runs. "pytorch": PyTorch runs them, and a warning says why. "error": they raise.
ELSEWHERE = "pytorch"

_Layer = namedtuple("_Layer", "in_channels out_channels kernel_size stride padding dilation groups bias dtype")
# A kernel: its family, its name, its number in the family's text, and the bytes of shared memory of a block. `columns`:
# neighbouring columns that it loads at once; a row of the input must have a multiple of them. `single`: axes along
# which the input must have one element. `input_size`: the only one that it takes, if it is not None. `tf32`: it rounds
# operands to TF32. `weight_bytes`: size of the weights in the order in which it loads them; 0 if it takes them as they
# are. `prepares_inputs`: inputs are reordered, too.
# ---- where epilogues are fused
# `program`: its epilogue.
# ---- where epilogues are fused
_Kernel = namedtuple(
    "_Kernel",
    "family name place shared_bytes columns single input_size tf32 weight_bytes prepares_inputs program",
    defaults=(0, 1, (), None, False, 0, False, ""),
)
# ---- where programs are computed
# Programs: the texts of epilogues that kernels compute.
_TEXTS = ()
# ---- where programs are computed
# The kernels of each layer, the fastest first.
_RECORDED = {}
# ---- where layers are built elsewhere
# Names of modules that are left to PyTorch.
_LEFT = ()
# ---- where layers are built elsewhere
