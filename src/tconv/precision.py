"""Which arithmetic PyTorch runs on float32 layers: what its flags allow, and what it does with that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tconv.planner.gpu import FIRST_WITH_TF32, Gpu
from tconv.planner.tuned import Question
from tconv.problem import Layer, Precision, Problem

#: Up to this many output channels of a 1-D or 2-D layer, cuDNN had no TF32 engine.
_FEW_CHANNELS = 3
#: A map of at most this many points on every axis is tiny.
_TINY_AXIS = 4


def allows_tf32() -> bool:
    """Whether PyTorch may run float32 convolutions in TF32, by the flags of this process.

    The newer flag counts where it is there: reading the older one raises once the newer one is set. Both are read as
    torch.backends.cudnn reads them, which takes ten times as long: this is part of every call. Written files have a
    copy of this function.
    """
    if newer := getattr(torch._C, "_get_fp32_precision_getter", None):
        return bool(newer("cuda", "conv") == "tf32")
    return torch._C._get_cudnn_allow_tf32()


@contextmanager
def without_tf32() -> Iterator[None]:
    """PyTorch may not run float32 convolutions in TF32 within the block; afterwards the flag is as it was."""
    conv = getattr(torch.backends.cudnn, "conv", None)
    newer = getattr(conv, "fp32_precision", None) is not None
    owner, name, strict = (conv, "fp32_precision", "ieee") if newer else (torch.backends.cudnn, "allow_tf32", False)
    before = getattr(owner, name)
    setattr(owner, name, strict)
    try:
        yield
    finally:
        setattr(owner, name, before)


def of_kind(problem: Problem) -> Precision:
    """What PyTorch does on float32 layers of this kind, as measured on one NVIDIA H200 with cuDNN 9.19.

    fp32 for groups, for few output channels in one or two dimensions, and for tiny maps in a batch; else TF32.
    """
    layer = problem.layer
    few_channels = layer.spatial_dims < 3 and layer.out_channels <= _FEW_CHANNELS
    tiny_maps = problem.batch > 1 and max(problem.input_size) <= _TINY_AXIS
    return "fp32" if layer.groups > 1 or few_channels or tiny_maps else rounding_of_kind(layer)


def question_of(problem: Problem, gpu: Gpu, allowed: bool, channels_last: bool = False) -> Question:
    """What the planner is asked for a call of the library: what it answers, and what `tconv tune` measures.

    To PyTorch TF32 is a permission, and so it is here: whether cuDNN has an engine that rounds does not matter.

    Args:
        problem: with the precision of its dtype.
        allowed: whether PyTorch may round float32 operands to TF32.
    """
    rounds = allowed and problem.layer.precision == "fp32" and gpu.capability >= FIRST_WITH_TF32
    return Question(problem, rounding_of_kind(problem.layer) if rounds else None, channels_last)


def rounding_of_kind(layer: Layer) -> Precision:
    """How PyTorch's TF32 engines round the operands of such a layer: most to even, strided and dilated ones away."""
    strided_and_dilated = any(axis.stride > 1 and axis.dilation > 1 for axis in layer.axes)
    return "tf32_rna" if strided_and_dilated else "tf32"
