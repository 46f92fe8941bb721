"""The decorator of the user's model."""
# mypy: ignore-errors

import functools
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from tconv.codegen.runtime.built_elsewhere import _swap
    from tconv.codegen.runtime.dispatch import _gpu, _runs_on
    from tconv.codegen.runtime.launch import _can_build, _extension
    from tconv.codegen.runtime.modules import _CudaForward
    from tconv.codegen.runtime.records import _RECORDED
    from tconv.codegen.runtime.sequences import CudaSequential

# ---- copied from here on


def _cuda_model(model):
    """Class decorator: constructing a model also builds the kernels that run on this machine's GPU."""
    construct = model.__init__

    @functools.wraps(construct)
    def __init__(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        # ---- where layers are built elsewhere
        _swap(self)
        # ---- where layers are built elsewhere
        # ---- where sequences are fused
        for module in self.modules():
            if type(module) is nn.Sequential and any(isinstance(child, _CudaForward) for child in module):
                module.__class__ = CudaSequential
        # ---- where sequences are fused
        if torch.cuda.is_available():
            gpu = _gpu(torch.device("cuda", torch.cuda.current_device()))
            kernels = [kernel for kernels in _RECORDED.values() for kernel in kernels if _runs_on(kernel, gpu)]
            for kernel in kernels:
                if _can_build(kernel, gpu):
                    _extension(kernel.family, gpu.capability)

    model.__init__ = __init__
    return model
